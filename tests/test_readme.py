"""The README's examples run as printed, in order, in one namespace."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import jax
import jax.numpy as jnp

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_examples_run_as_printed():
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 3
    namespace: dict = {}
    outputs = []
    for block in blocks:
        with redirect_stdout(io.StringIO()) as out:
            exec(compile(block, "README.md", "exec"), namespace)
        outputs.append(out.getvalue().split())
    points = (namespace["x"], jnp.sin(3 * namespace["x"]))
    misfit = jax.vmap(namespace["residual"], (None, 0))(namespace["params"], points)
    assert float(jnp.abs(misfit).max()) < 0.01
    assert namespace["errors"].shape == (8, 3) and bool(jnp.all(namespace["errors"][0] < 0.05))
    assert namespace["solution"].history["relative_l2"][-1] < 1e-5
    assert outputs[-1][0] == "tol"


def test_both_commands_and_every_link():
    for command in ("make reproduce", "make test"):
        assert command in README
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
