"""What is public and how it is documented, for the tests of the docstrings and of the reference."""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import snapgrad as sg

NO_EXAMPLE = re.compile(
    r"""
    \w+\.\w*State$  # what a method or loop remembers, made by it alone
    |theory\.exact\.(all_subsets|probabilities|weight|singular_values)$  # for the other files of theory
    """,
    re.VERBOSE,
)


def public(rooms: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Classes and functions of some rooms, each once, under the shortest name."""
    seen = set()
    for room, module in rooms.items():
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


def run_example(name: str, value: Any) -> None:
    """Runs the example in a docstring as printed, after the imports of the documentation."""
    assert value.__doc__, f"{name} has no docstring"
    blocks = re.findall(r"```python\n(.*?)```", inspect.cleandoc(value.__doc__), flags=re.DOTALL)
    assert blocks, f"{name} has no example"
    names = {"sg": sg, "jax": jax, "jnp": jnp, "np": np, "eqx": eqx, "optax": optax}
    for block in blocks:
        exec(compile(block, f"example of {name}", "exec"), names)


PASSED_ON = inspect.signature(sg.fit).parameters
"""Options of another function, which a docstring may refer to."""


def unnamed_arguments(value: Any) -> set[str]:
    """The arguments that the docstring does not name."""
    text = inspect.cleandoc(value.__doc__ or "").split("```python")[0]
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", text))))
    arguments = (
        set(inspect.signature(value).parameters) - named - {"key", "code", "args", "kwargs", "unknown"}
    )
    return arguments - set(PASSED_ON) if "options" in named else arguments


PLUMBING = {"inside", "surfaces", "whole_boundary", "source", "plan", "source_dtype", "gram_dtype"}
"""Methods by which parts of the library work together, and which nobody else calls."""


def methods_of(value: Any) -> list[str]:
    """Methods and properties that a class has beyond those of the public classes that it extends.

    What it has from classes that are not public is its own.
    """
    ours = [base for base in value.__mro__ if base.__module__.startswith("snapgrad")]
    extended = [base for base in ours[1:] if _is_public(base)]
    known = {name for base in extended for name in (*dir(base), *_annotated(base))} | PLUMBING
    found = []
    for base in ours:
        for name, member in vars(base).items():
            function = inspect.unwrap(getattr(member, "__func__", getattr(member, "method", member)))
            called = inspect.isfunction(function) or isinstance(member, property)
            if called and not name.startswith("_") and name not in (*known, *found):
                found.append(name)
    return found


def _is_public(value: Any) -> bool:
    """Whether a class is in the room of its module, or at the top."""
    room: Any = sg
    for name in value.__module__.split(".")[1:-1]:
        room = getattr(room, name, None)
    return any(getattr(place, value.__name__, None) is value for place in (sg, room))


def _annotated(value: Any) -> set[str]:
    return {name for base in value.__mro__ for name in vars(base).get("__annotations__", ())}
