"""Every public name of `sg.theory`, and `sg.kaczmarz`, has an example that runs as printed."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg

NAMES = [
    name for name, value in vars(sg.theory).items() if inspect.isclass(value) or inspect.isfunction(value)
]
NAMES += ["exact.constants", "exact.HasLogProb"]


def run_examples(document):
    blocks = re.findall(r"```python\n(.*?)```", inspect.cleandoc(document), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "docstring", "exec"), {"sg": sg, "jax": jax, "jnp": jnp, "np": np})


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_theory(name):
    value = sg.theory
    for part in name.split("."):
        value = getattr(value, part)
    run_examples(value.__doc__)


@pytest.mark.parametrize("name", ["kaczmarz", "kaczmarz_step", "accelerated_step", "nesterov_step"])
def test_examples_of_linear_systems(name):
    run_examples(getattr(sg.methods, name).__doc__)
