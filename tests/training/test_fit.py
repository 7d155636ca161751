"""The host loop: what it stops for, records, stores and refuses; for a user with a model and data."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import snapgrad as sg
from snapgrad.training import _fit, _store
from snapgrad.training._step import Setup

KEY = jax.random.key(0)
X = np.linspace(-1, 1, 24)[:, None]
Y = np.concatenate([np.sin(2 * X), np.cos(2 * X)], axis=1) + 0.01 * np.cos(40 * X)


def model_of(key):
    return eqx.nn.MLP(1, 2, 5, 1, activation=jnp.tanh, key=key)


def residual(model, row):
    return model(row[0]) - row[1]


PROBLEM = sg.LeastSquares(residual, (X, Y), model_of)
OPTIONS = {"record_every": 5, "batch_size": 8}


def assert_same_bytes(a, b):
    same = jax.tree.map(lambda x, y: np.asarray(x).tobytes() == np.asarray(y).tobytes(), a, b)
    assert jax.tree.structure(a) == jax.tree.structure(b) and all(jax.tree.leaves(same))


@pytest.fixture(scope="module")
def undisturbed():
    return sg.fit(PROBLEM, KEY, steps=20, **OPTIONS)


def test_a_model_with_two_outputs(undisturbed):
    """Fitted by default settings; what comes back is a model again."""
    result = sg.fit(PROBLEM, KEY, steps=60, record_every=30)
    assert result.history["loss"][-1] < 1e-3 * result.history["loss"][0]
    assert result.params(jnp.zeros(1)).shape == (2,)
    assert isinstance(result, sg.Result) and result.reason == "steps" and int(result.rejected) == 0
    assert {"step", "seconds", "loss", "rejected", "damping", "gain"} <= result.history.keys()
    assert undisturbed.history["step"].tolist() == [0, 5, 10, 15, 20]
    assert undisturbed.history["loss"][-1] < 0.1 * undisturbed.history["loss"][0]
    assert "0." not in repr(result), "a repr shows shapes, not weights"


def test_killed_and_resumed(tmp_path, undisturbed, monkeypatch):
    """A process that dies loses what came after its last checkpoint; going on ends with the same bytes."""
    monkeypatch.setattr(_store, "CHECKPOINT_SECONDS", 0.0)

    class KilledError(Exception):
        pass

    def kill(record, state):
        if record["step"] == 15:
            raise KilledError

    with pytest.raises(KilledError):
        sg.fit(PROBLEM, KEY, steps=20, checkpoint=tmp_path, callback=kill, **OPTIONS)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.snap"]
    seen = []
    result = sg.fit(
        PROBLEM, KEY, steps=20, checkpoint=tmp_path, callback=lambda r, s: seen.append(r["step"]), **OPTIONS
    )
    assert seen == [15, 20], "it went on from step 10"
    assert_same_bytes(result.state, undisturbed.state)
    for name in ("step", "loss", "damping"):
        assert_same_bytes(result.history[name], undisturbed.history[name])
    again = sg.fit(PROBLEM, KEY, steps=20, checkpoint=tmp_path, **OPTIONS)
    assert again.reason == "steps", "nothing was left to do"
    assert_same_bytes(again.state, undisturbed.state)


def test_interrupted_and_resumed(tmp_path, undisturbed):
    """Ctrl-C stores the state first, even long before a checkpoint is due."""

    def stop(record, state):
        if record["step"] == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sg.fit(PROBLEM, KEY, steps=20, checkpoint=tmp_path, callback=stop, **OPTIONS)
    result = sg.fit(PROBLEM, KEY, steps=20, checkpoint=tmp_path, **OPTIONS)
    assert result.history["step"].tolist() == [0, 5, 10, 15, 20]
    assert_same_bytes(result.state, undisturbed.state)


@pytest.mark.slow
def test_killed_by_the_system(tmp_path, undisturbed):
    """The same with a real SIGKILL in another process."""
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import jax; jax.config.update("jax_enable_x64", True)
import test_fit as t, snapgrad as sg
t._store.CHECKPOINT_SECONDS = 0.0
die = lambda record, state: os.kill(os.getpid(), signal.SIGKILL) if record["step"] == 15 else None
sg.fit(t.PROBLEM, t.KEY, steps=20, checkpoint=sys.argv[1], callback=die, **t.OPTIONS)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True)
    assert done.returncode == -9
    result = sg.fit(PROBLEM, KEY, steps=20, checkpoint=tmp_path, **OPTIONS)
    assert_same_bytes(result.state, undisturbed.state)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    first = sg.fit(PROBLEM, KEY, steps=5, checkpoint=tmp_path, **OPTIONS)
    before = (tmp_path / "checkpoint.snap").read_bytes()
    other = sg.LeastSquares(residual, (X, 2 * Y), model_of)
    wrong = {
        "another key": lambda: sg.fit(PROBLEM, jax.random.key(1), steps=9, checkpoint=tmp_path, **OPTIONS),
        "another problem": lambda: sg.fit(other, KEY, steps=9, checkpoint=tmp_path, **OPTIONS),
        "another method": lambda: sg.fit(
            PROBLEM, KEY, steps=9, method=sg.SNG(), checkpoint=tmp_path, **OPTIONS
        ),
        "another sampler": lambda: sg.fit(
            PROBLEM, KEY, steps=9, checkpoint=tmp_path, record_every=5, batch_size=7
        ),
        "holds a run already": lambda: sg.fit(
            PROBLEM, KEY, steps=9, checkpoint=tmp_path, resume=False, **OPTIONS
        ),
    }
    for words, call in wrong.items():
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(ValueError, match="holds a run already"):  # a state has its own past
        sg.fit(PROBLEM, KEY, steps=9, checkpoint=tmp_path, state=first.state, **OPTIONS)
    assert (tmp_path / "checkpoint.snap").read_bytes() == before


def test_the_best_is_kept(tmp_path):
    """Down for ten steps, then up: what comes back is of the turning point, also after an interruption."""
    rate = lambda step: jnp.where(step < 10, 0.02, -0.02)  # noqa: E731
    options = {"steps": 20, "method": sg.SGD(), "optimizer": rate, "record_every": 5}

    def stop(record, state):
        if record["step"] == 15:
            raise KeyboardInterrupt

    last, best = (sg.fit(PROBLEM, KEY, keep_best=keep, **options) for keep in (False, True))
    losses = last.history["loss"]
    assert losses.argmin() == 2 and losses[-1] > 1.01 * losses[2]
    assert best.history["loss"].tolist() == [*losses, losses[2]]
    assert best.history["step"].tolist() == [0, 5, 10, 15, 20, 20]
    half = sg.fit(PROBLEM, KEY, **{**options, "steps": 10})
    np.testing.assert_allclose(half.params(X[0]), best.params(X[0]))
    assert_same_bytes(best.state, last.state)
    with pytest.raises(KeyboardInterrupt):
        sg.fit(PROBLEM, KEY, keep_best=True, checkpoint=tmp_path, callback=stop, **options)
    again = sg.fit(PROBLEM, KEY, keep_best=True, checkpoint=tmp_path, **options)
    assert_same_bytes([again.params, again.state], [best.params, best.state])
    assert again.history["loss"].tolist() == best.history["loss"].tolist()
    with pytest.raises(ValueError, match="checkpoint"):  # it holds both
        sg.fit(PROBLEM, KEY, checkpoint=tmp_path, **options)


def test_few_seconds_are_kept_to_a_step():
    """However many steps there are between records, steps that take long are counted."""
    log, limits = _store.Log(spent=4.0), _fit._limits(None, 5.0, None, None)
    assert _fit._affordable(_store.Log(), 0, limits) == 1  # to find out how long one takes
    assert _fit._affordable(log, 8, limits) == 2
    assert _fit._affordable(_store.Log(spent=4.9), 8, limits) == 1
    assert _fit._affordable(log, 8, _fit._limits(9, None, None, None)) == np.inf


def test_reasons(undisturbed):
    """One word for each way to stop."""
    losses = undisturbed.history["loss"]
    tol = sg.fit(PROBLEM, KEY, steps=20, tol=float(losses[2]), **OPTIONS)
    assert tol.reason == "tol" and tol.history["step"][-1] == 10
    stop = sg.fit(PROBLEM, KEY, callback=lambda record, state: record["step"] >= 5, **OPTIONS)
    assert stop.reason == "callback" and stop.history["step"][-1] == 5
    at_once = sg.fit(PROBLEM, KEY, callback=lambda record, state: True, **OPTIONS)
    assert at_once.reason == "callback" and at_once.history["step"].tolist() == [0]
    time = sg.fit(PROBLEM, KEY, seconds=1e-9, **OPTIONS)
    assert time.reason == "seconds" and time.history["step"].tolist() == [0, 1]  # the least that there is
    still = sg.fit(PROBLEM, KEY, steps=50, patience=10, method=sg.SGD(), optimizer=0.0, **OPTIONS)
    assert still.reason == "patience" and still.history["step"][-1] == 10
    rest = sg.fit(PROBLEM, KEY, steps=10, state=tol.state, **OPTIONS)
    assert rest.history["step"].tolist() == [10, 15, 20]
    assert_same_bytes(rest.state, undisturbed.state)


def test_compilation_is_not_counted(monkeypatch):
    """Neither at first nor for the shorter last chunk, which used to be a program of its own."""
    calls = []
    compiled = _fit.advance
    monkeypatch.setattr(_fit, "advance", lambda *args: calls.append(int(args[2])) or compiled(*args))
    result = sg.fit(PROBLEM, KEY, steps=7, **OPTIONS)
    assert calls == [0, 5, 2], "the first call compiles and takes no step"
    assert result.history["step"].tolist() == [0, 5, 7]


def test_a_step_is_traced_once_and_the_start_is_a_few_programs(monkeypatch, caplog):
    """Eager operations would be compiled one by one: a hundred of them took longer than the first step."""
    traced, step = [], Setup.step
    monkeypatch.setattr(Setup, "step", lambda self, state: traced.append(state) or step(self, state))
    x = jnp.linspace(0, 1, 11)
    problem = sg.LeastSquares(lambda p, row: p["v"] @ jnp.sin(p["w"] * row[0]) - row[1], (x, x**2), _start)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        result = sg.fit(problem, KEY, steps=7, record_every=5)
    assert result.history["step"].tolist() == [0, 5, 7] and len(traced) == 1
    compiled = [record.message for record in caplog.records if record.message.startswith("Compiling")]
    assert 0 < len(compiled) <= 8, compiled


def _start(key):
    return {name: jax.random.normal(jax.random.fold_in(key, i), (3,)) for i, name in enumerate("vw")}


def nan_problem(bad_row):
    """A straight line whose residual has a finite value and an infinite slope in one row."""

    def residual(p, row):
        zero = jnp.sqrt(jnp.where(row[2], p["w"] - p["w"], 1.0))  # in the bad row, with slope NaN
        return p["w"] * row[0] - row[1] + jnp.where(row[2], zero, 0.0)

    x = jnp.arange(1.0, 7.0)
    return sg.LeastSquares(residual, (x, 2 * x, jnp.arange(6) == bad_row), {"w": 1.0})


def test_a_refused_step_moves_nothing():
    """Parameters, method, optimizer and sampler are as before, for a user with a residual and data."""
    problem = nan_problem(3)
    sampler = sg.sampling.SwapChain(6, 2)
    options = {"method": sg.Spring(1e-2), "sampler": sampler, "optimizer": optax.adam(1e-2)}
    refused = 0
    state = sg.run(problem, KEY, steps=1, **options).state
    for _ in range(12):
        after = sg.run(problem, KEY, steps=1, state=state, **options).state
        assert int(after.step) == int(state.step) + 1
        if int(after.rejected) > int(state.rejected):
            refused += 1
            assert_same_bytes(
                (after.params, after.method, after.optimizer, after.sampler),
                (state.params, state.method, state.optimizer, state.sampler),
            )
        else:
            assert not bool(eqx.tree_equal(after.params, state.params))
        state = after
    assert 0 < refused < 12


def test_nothing_but_refusals_is_an_error():
    with pytest.raises(FloatingPointError, match=r"last 10 steps were not finite, from step 0"):
        sg.fit(nan_problem(3), KEY, steps=50, record_every=5, method=sg.SNG(1e-2))
    bad = sg.LeastSquares(lambda p, x: jnp.log(p * x), jnp.array([1.0, 2.0, -3.0]), 1.0)
    with pytest.raises(ValueError, match=r"1 of 3 rows, for example in row 2"):
        sg.fit(bad, KEY, steps=5)


class TestLeastSquares:
    """`sg.least_squares` without settings on curve fits whose parameters are known."""

    t = jnp.linspace(0, 2, 40)
    CURVES: ClassVar = {
        "decay": (lambda p, t: p[0] * jnp.exp(-p[1] * t) + p[2], [1.0, 1.0, 0.0], [2.5, 1.3, 0.5]),
        "logistic": (lambda p, t: p[0] / (1 + jnp.exp(-p[1] * (t - p[2]))), [1.0, 1.0, 0.5], [3.0, 4.0, 1.1]),
        "wave": (lambda p, t: p[0] * jnp.sin(p[1] * t + p[2]), [1.0, 2.5, 0.1], [1.7, 3.0, 0.4]),
        "gauss": (
            lambda p, t: p[0] * jnp.exp(-((t - p[1]) ** 2) / p[2] ** 2),
            [1.0, 0.7, 1.0],
            [2.0, 1.2, 0.3],
        ),
    }

    @pytest.mark.parametrize("name", CURVES)
    def test_curve_fits(self, name):
        """To ten digits on exact data, and it notices that it is done."""
        curve, start, truth = self.CURVES[name]
        data = (self.t, curve(jnp.asarray(truth), self.t))
        result = sg.least_squares(lambda p, row: curve(p, row[0]) - row[1], jnp.asarray(start), data)
        np.testing.assert_allclose(result.params, truth, rtol=1e-10)
        assert result.reason == "converged" and result.history["step"][-1] < 40

    def test_noisy_data(self):
        """The minimum of noisy data, against the closed form of a linear model."""
        noise = 0.1 * jax.random.normal(KEY, self.t.shape)
        y = 2 * self.t - 1 + noise
        A = np.stack([self.t, np.ones(40)], axis=1)
        exact = np.linalg.lstsq(A, np.asarray(y))[0]
        result = sg.least_squares(
            lambda p, row: p["a"] * row[0] + p["b"] - row[1], {"a": 0.0, "b": 0.0}, (self.t, y)
        )
        np.testing.assert_allclose([result.params["a"], result.params["b"]], exact, rtol=1e-10)

    def test_float32(self):
        data = (self.t.astype(jnp.float32), (2 * jnp.exp(-self.t)).astype(jnp.float32))
        start = jnp.array([1.0, 0.0], jnp.float32)
        result = sg.least_squares(lambda p, row: p[0] * jnp.exp(p[1] * row[0]) - row[1], start, data)
        assert result.params.dtype == jnp.float32
        np.testing.assert_allclose(result.params, [2.0, -1.0], rtol=1e-5)

    def test_signature_shows_the_options(self):
        shown = inspect.signature(sg.least_squares).parameters
        assert list(shown)[:4] == ["residual", "params", "data", "key"]
        assert {"steps", "tol", "checkpoint", "progress"} <= shown.keys() and "options" not in shown


def test_default_sampler(monkeypatch):
    """All rows while they fit, else uniform batches of a bounded size; `batch_size` is heard."""
    params = PROBLEM.init(KEY)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert isinstance(_fit._default_sampler(PROBLEM, params, None), sg.sampling.AllRows)
    assert _fit._default_sampler(PROBLEM, params, 7).sample_size == 7
    monkeypatch.setattr(_fit, "ALL_ROWS_NUMBERS", 2 * size * 24 - 1)
    assert _fit._default_sampler(PROBLEM, params, None).sample_size == 23
    monkeypatch.setattr(_fit, "BATCH_ROWS", 10)
    assert _fit._default_sampler(PROBLEM, params, None).sample_size == 10
    monkeypatch.setattr(_fit, "ALL_ROWS_NUMBERS", 1)
    assert _fit._default_sampler(PROBLEM, params, None).sample_size == 1


def test_progress_bar(capsys):
    sg.fit(PROBLEM, KEY, steps=10, progress=True, **OPTIONS)
    shown = capsys.readouterr().out
    assert "100 %" in shown and "loss" in shown and "step 10" in shown


WRONG = {
    "method by name": (lambda: sg.fit(PROBLEM, KEY, method="adam"), TypeError, ["method", "adam"]),
    "two samplers": (
        lambda: sg.fit(PROBLEM, KEY, sampler=sg.sampling.AllRows(24), batch_size=3),
        ValueError,
        ["sampler", "batch_size"],
    ),
    "large batch": (lambda: sg.fit(PROBLEM, KEY, batch_size=25), ValueError, ["batch_size", "24", "25"]),
    "other rows": (
        lambda: sg.fit(PROBLEM, KEY, sampler=sg.sampling.AllRows(9)),
        ValueError,
        ["sampler", "9", "24"],
    ),
    "no time": (lambda: sg.fit(PROBLEM, KEY, seconds=0), ValueError, ["seconds", "0"]),
    "no patience": (lambda: sg.fit(PROBLEM, KEY, patience=0), ValueError, ["patience", "0"]),
    "negative tolerance": (lambda: sg.fit(PROBLEM, KEY, tol=-1.0), ValueError, ["tol", "-1"]),
    "rate by name": (lambda: sg.fit(PROBLEM, KEY, optimizer="adam"), TypeError, ["optimizer", "adam"]),
    "rates": (lambda: sg.fit(PROBLEM, KEY, optimizer=jnp.ones(2)), ValueError, ["optimizer", "(2,)"]),
    "params and state": (
        lambda: sg.fit(PROBLEM, KEY, params=model_of(KEY), state=PARTS.state, batch_size=8),
        ValueError,
        ["params", "state"],
    ),
}
PARTS = eqx.filter_eval_shape(
    lambda: sg.run(PROBLEM, KEY, method=sg.SGD(), sampler=sg.sampling.AllRows(24), steps=1)
)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    call, kind, words = WRONG[name]
    with pytest.raises(kind) as error:
        call()
    assert all(word in str(error.value) for word in words), str(error.value)


def test_start_from_a_whole_model_and_from_two_batches():
    """`params` may hold activation functions; a sampler of pairs has each half of its batch checked."""
    start = model_of(jax.random.key(3))
    result = sg.fit(PROBLEM, KEY, steps=5, params=start, record_every=5)
    assert result.history["loss"][-1] < result.history["loss"][0]
    pairs = sg.sampling.TwoBatches(sg.sampling.Uniform(24, 20))
    two = sg.fit(
        PROBLEM, KEY, steps=5, method=sg.TwoBatch(1.0), sampler=pairs, optimizer=1e-2, record_every=5
    )
    assert int(two.rejected) == 0
