"""Every public name has an example that runs as printed, after the imports of the documentation."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import snapgrad as sg

ROOMS = {
    "sg": sg,
    "diagnosis": sg.diagnosis,
    "linalg": sg.linalg,
    "methods": sg.methods,
    "molecules": sg.molecules,
    "operators": sg.operators,
    "pinn": sg.pinn,
    "problems": sg.problems,
    "sampling": sg.sampling,
    "theory": sg.theory,
    "theory.exact": sg.theory.exact,
    "training": sg.training,
}


NO_EXAMPLE = re.compile(
    r"""
    \w+\.\w*State$  # what a method or loop remembers, made by it alone
    |theory\.exact\.(all_subsets|probabilities|weight|singular_values)$  # for the other files of theory
    """,
    re.VERBOSE,
)


def public() -> Iterator[tuple[str, Any]]:
    """Classes and functions of every room, each once, under the shortest name."""
    seen = set()
    for room, module in ROOMS.items():
        for name, value in vars(module).items():
            full, home = f"{room}.{name}", getattr(value, "__module__", "")
            if not callable(value) or not home.startswith("snapgrad"):
                continue
            if name.startswith("_") or NO_EXAMPLE.match(full) or id(value) in seen:
                continue
            if room == "theory.exact" and home != module.__name__:
                continue
            seen.add(id(value))
            yield full, value


PUBLIC = dict(public())


@pytest.mark.parametrize("name", PUBLIC)
def test_example(name, tmp_path, monkeypatch):
    if name in ("molecules.hartree_fock", "molecules.pretrain"):
        pytest.importorskip("pyscf")
    document = PUBLIC[name].__doc__
    assert document, f"{name} has no docstring"
    blocks = re.findall(r"```python\n(.*?)```", inspect.cleandoc(document), flags=re.DOTALL)
    assert blocks, f"{name} has no example"
    monkeypatch.chdir(tmp_path)
    names = {"sg": sg, "jax": jax, "jnp": jnp, "np": np, "eqx": eqx, "optax": optax}
    for block in blocks:
        exec(compile(block, f"example of {name}", "exec"), names)


NEVER_CALLED = {
    "operators.StructuredJacobian",
    "sampling.SquaredVolume",
}  # made by functions that are documented
PASSED_ON = inspect.signature(
    sg.fit
).parameters  # options of another function, which a docstring may refer to


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_names_every_argument(name):
    text = inspect.cleandoc(PUBLIC[name].__doc__ or "").split("```python")[0]
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", text))))
    arguments = set(inspect.signature(PUBLIC[name]).parameters) - named - {"key", "code", "args", "kwargs"}
    if "options" in named:
        arguments -= set(PASSED_ON)
    assert not arguments or name in NEVER_CALLED, f"the docstring of {name} does not name {sorted(arguments)}"
