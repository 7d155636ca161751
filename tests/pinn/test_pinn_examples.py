"""Every public name of `sg.pinn` has an example that runs as printed; so does the tutorial."""

import inspect
import re
import runpy
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad import pinn

NAMES = [name for name, value in vars(pinn).items() if inspect.isclass(value) or inspect.isfunction(value)]


@pytest.mark.parametrize("name", NAMES)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"```python\n(.*?)```", inspect.cleandoc(getattr(pinn, name).__doc__), flags=re.DOTALL
    )
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), {"sg": sg, "jax": jax, "jnp": jnp, "np": np, "eqx": eqx})


def test_tutorial_runs(monkeypatch):
    path = Path(__file__).parents[2] / "tutorials" / "pinn.py"
    monkeypatch.setattr(sys, "argv", ["pinn.py", "100"])
    assert runpy.run_path(str(path))["error"] < 1e-3
