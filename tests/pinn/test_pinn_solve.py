"""The solver: why it stops, what it returns, and that neither interruption nor bad steps change a run."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import snapgrad as sg
from snapgrad import pinn

KEY = jax.random.key(0)
STEPS = {"steps": 40, "record_every": 10}


@pytest.fixture(scope="module")
def undisturbed(line):
    return pinn.solve(line, KEY, **STEPS)


def assert_same_bytes(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_solve_stops_continues_and_reports(line, undisturbed):
    assert undisturbed.reason == "steps" and undisturbed.history["step"].tolist() == [0, 10, 20, 30, 40]
    assert {"loss", "relative_l2", "damping", "gain", "seconds"} <= undisturbed.history.keys()
    half = pinn.solve(line, KEY, steps=20, record_every=10)
    rest = pinn.solve(line, KEY, steps=20, record_every=10, state=half.state)
    assert_same_bytes(undisturbed.state, rest.state)
    early = pinn.solve(line, KEY, steps=4000, tol=1e-3, record_every=10)
    assert early.reason == "tol" and early.history["relative_l2"][-1] <= 1e-3
    assert pinn.solve(line, KEY, seconds=1e-6, record_every=10).reason == "seconds"


def test_the_solution_is_a_function_of_points(undisturbed):
    x = jnp.linspace(0, 1, 6)[:, None]
    assert undisturbed(x).shape == (6,) and undisturbed(x[0]).shape == ()
    np.testing.assert_array_equal(undisturbed(x.reshape(2, 3, 1)), undisturbed(x).reshape(2, 3))
    np.testing.assert_allclose(undisturbed(x[2]), undisturbed(x)[2], rtol=1e-13)
    assert undisturbed.unknowns == {}
    with pytest.raises(ValueError, match=r"`network` fails at a point of shape \(3,\)"):
        undisturbed(jnp.zeros((4, 3)))


def test_printing_a_solution_shows_no_weights(undisturbed):
    shown = repr(undisturbed)
    assert "'W': f64[1,8]" in shown
    assert not any(f"{value:.3f}"[1:] in shown for value in np.ravel(undisturbed.params["network"][0]["W"]))


def test_the_callback_stops_training(line):
    seen = []

    def callback(record, state):
        seen.append(int(state.step))
        return record["step"] >= 20

    stopped = pinn.solve(line, KEY, callback=callback, **STEPS)
    assert stopped.reason == "callback" and seen == [0, 10, 20]


def slow_to_trace(u, x):
    time.sleep(0.3)  # happens whenever JAX traces it, never when it runs
    return u(x) - x[0]


def test_seconds_do_not_count_compilation():
    """Neither that of the first chunk of steps nor that of the last, which is shorter."""
    problem = pinn.PINN(pinn.MLP([1, 2, 1]), [pinn.Block("all", slow_to_trace, pinn.Box(0, 1), 3)])
    began = time.perf_counter()
    solution = pinn.solve(problem, KEY, steps=5, record_every=3, method=sg.SGD(), optimizer=1e-2)
    assert time.perf_counter() - began > 0.3
    assert solution.history["step"].tolist() == [0, 3, 5] and solution.history["seconds"][-1] < 0.3


def test_interrupted_and_resumed_to_the_same_bytes(line, undisturbed, tmp_path):
    def stop(record, state):
        if record["step"] == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pinn.solve(line, KEY, checkpoint=tmp_path, callback=stop, **STEPS)
    seen = []
    resumed = pinn.solve(
        line, KEY, checkpoint=tmp_path, callback=lambda r, s: seen.append(r["step"]), **STEPS
    )
    assert seen[-1] == 40 and 10 not in seen
    assert_same_bytes(resumed.state, undisturbed.state)
    np.testing.assert_array_equal(resumed.history["relative_l2"], undisturbed.history["relative_l2"])


KILLED = """
import os, signal, sys
import conftest, jax
import snapgrad.training._store as loop
from snapgrad import pinn
loop.CHECKPOINT_SECONDS = 0.0
die = lambda record, state: os.kill(os.getpid(), signal.SIGKILL) if record["step"] == 30 else None
problem = pinn.zoo("poisson-1d", hidden=(8,), points=(30, 2))
pinn.solve(problem, jax.random.key(0), steps=40, record_every=10, checkpoint=sys.argv[1], callback=die)
"""


@pytest.mark.slow
def test_killed_and_resumed_to_the_same_bytes(line, undisturbed, tmp_path):
    """Another process is killed by the system; this one goes on from what it had stored."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])  # the settings of these tests
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    resumed = pinn.solve(line, KEY, checkpoint=tmp_path, **STEPS)
    assert_same_bytes(resumed.state, undisturbed.state)


def hole(u, x):
    """Not a number on a fifth of the interval, so on some batches and not on others."""
    return jnp.where(x[0] > 0.8, jnp.nan, u(x) - x[0])


HOLE = pinn.PINN(pinn.MLP([1, 2, 1]), [pinn.Block("all", hole, pinn.Box(0, 1), 2)])


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [(sg.Auto(), 1.0), (sg.Spring(1e-3, 0.8), optax.adam(1e-2))],
    ids=["auto", "spring and adam"],
)
def test_a_refused_step_leaves_everything_as_it_was(method, optimizer):
    states = []
    pinn.solve(
        HOLE,
        jax.random.key(1),
        method=method,
        optimizer=optimizer,
        sampler=pinn.Collocation(HOLE, refresh_every=2, spread=False),
        steps=12,
        record_every=1,
        callback=lambda record, state: states.append(state),
    )
    refused = 0
    for before, after in pairwise(states):
        assert int(after.step) == int(before.step) + 1
        if int(after.rejected) > int(before.rejected):
            refused += 1
            for name in ("params", "method", "optimizer", "sampler"):
                assert_same_bytes(getattr(before, name), getattr(after, name))
        else:
            assert not eqx.tree_equal(before.sampler, after.sampler)
    assert 0 < refused < 12


def test_inverse_problem_finds_its_coefficient():
    problem = pinn.zoo("inverse-heat-1d", hidden=(16,), points=(300, 100))
    solution = pinn.solve(problem, KEY, steps=300, record_every=100)
    np.testing.assert_allclose(float(solution.unknowns["diffusivity"]), 0.3, rtol=1e-3)


@pytest.mark.parametrize("name", ["lbfgs", "engd", "adam"])
def test_other_methods_in_the_same_loop(name, line):
    chosen = pinn.setting(name, line)._asdict()
    history = pinn.solve(line, KEY, steps=30, record_every=30, **chosen).history
    assert history["loss"][-1] < history["loss"][0]


def test_every_baseline_has_a_setting(line):
    for name in pinn.METHODS:
        assert isinstance(pinn.setting(name, line).method, sg.AbstractMethod)
    with pytest.raises(ValueError, match="`name` must be one of"):
        pinn.setting("sgdd", line)


class Wild(eqx.Module):
    """A network whose output is infinite wherever its one weight has fallen below a threshold."""

    def init(self, key):
        return jnp.array([1.0])

    def __call__(self, params, x):
        return jnp.where(params[0] > 0.5, params[0], jnp.inf) * (1 + x[0])


def test_a_diverging_step_is_refused_and_training_goes_on():
    """The minimum is beyond a wall of infinities: every step into it is refused, none is lost to NaN."""
    block = pinn.Block("all", lambda u, x: u(x) - 0.3, pinn.Box(0, 1), 10)
    solution = pinn.solve(pinn.PINN(Wild(), [block]), KEY, steps=40, record_every=20)
    assert 0.5 < float(solution.params["network"][0]) < 1
    assert solution.history["refused"][-1] > 0 and np.all(np.isfinite(solution.history["loss"]))


def test_a_problem_made_for_slabs_says_so():
    problem = pinn.zoo("heat-1d", hidden=(4,), points=(10, 4, 4))
    cut = pinn.zoo("advection", hidden=(4,), points=(20, 5))
    with pytest.warns(UserWarning, match=r"use sg\.pinn\.march\(problem, key, slabs=10\)"):
        pinn.solve(cut, KEY, steps=1)
    assert "slabs=10" in pinn.advice(cut)
    pinn.solve(problem, KEY, steps=1)  # warnings are errors here
    pinn.march(cut, KEY, slabs=2, steps=2)
