"""The problems of Moré, Garbow and Hillstrom by default settings: solved, to rounding, in few steps.

The quick ones share little but their purpose, so that each costs a compilation; all of them are a slow test.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg

_path = Path(__file__).parents[2] / "benchmarks" / "_mgh.py"
_spec = importlib.util.spec_from_file_location("_mgh", _path)
mgh = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mgh)
PROBLEMS = {problem.name: problem for problem in mgh.PROBLEMS}


def solve(problem, factor):
    start = jnp.asarray(problem.begin(factor))
    return sg.least_squares(lambda p, row: problem.residual(p), start, jnp.zeros(1))


def value(result):
    return 2 * float(result.history["loss"][-1])


# A curved valley, bad scales, a residual that stays, an ill-conditioned Jacobian and a singular one.
QUICK = {
    "Rosenbrock": 30,
    "Powell badly scaled": 40,
    "Jennrich-Sampson": 30,
    "Osborne 1": 30,
    "Watson 12": 60,
    "Powell singular": 70,
}


@pytest.mark.parametrize("name", QUICK)
def test_standard_start(name):
    problem = PROBLEMS[name]
    result = solve(problem, 1.0)
    assert problem.solved(value(result)), value(result)
    assert result.reason == "converged" and result.history["step"][-1] <= QUICK[name]
    assert result.history["converged"][-1] in (1, 2, 3) and result.history["converged"][0] == 0
    ten = solve(problem, 10.0)
    assert ten.reason == "converged" and int(ten.rejected) == 0
    assert problem.solved(value(ten)) or name == "Jennrich-Sampson"  # which ends at infinity


@pytest.mark.slow
def test_all():
    """No fewer than the best of SciPy's methods (72 of 78), all of them noticed, none lost to NaN."""
    lost, steps = [], []
    for problem in mgh.PROBLEMS:
        for factor in (1.0, 10.0):
            result = solve(problem, factor)
            assert result.reason == "converged" and np.isfinite(value(result)), problem.name
            assert int(result.rejected) == 0
            steps.append(result.history["step"][-1])
            if not problem.solved(value(result)):
                lost.append((problem.name, factor))
    assert len(lost) <= 78 - 72, lost
    assert all(factor == 10 for _, factor in lost), lost
    assert np.median(steps) <= 30


@pytest.mark.slow
def test_all_in_float32():
    """Without float64, in a process of its own: all end at round-off, soon, next to a minimum."""
    code = f"""
import sys
sys.path.insert(0, {str(_path.parent)!r})
import jax.numpy as jnp, snapgrad as sg
from _mgh import PROBLEMS
for problem in PROBLEMS:
    start = jnp.asarray(problem.begin(1.0), jnp.float32)
    result = sg.least_squares(lambda p, row: problem.residual(p), start, jnp.zeros(1))
    assert result.params.dtype == jnp.float32
    loss = result.history["loss"]
    print(problem.name, result.reason, int(result.history["step"][-1]), 2 * loss[0], 2 * loss[-1], sep=";")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [line.split(";") for line in done.stdout.splitlines()]
    assert len(lines) == len(PROBLEMS)
    for name, reason, steps, begun, ended in lines:
        assert reason == "converged" and int(steps) <= 200, name
        assert float(ended) <= 1.02 * PROBLEMS[name].minima[-1] + 1e-6 * min(1.0, float(begun)), name
