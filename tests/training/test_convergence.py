"""When a fit on all rows ends by itself, and when it must not."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import snapgrad as sg

KEY = jax.random.key(0)
T = jnp.linspace(0, 2, 30)
NOISE = 0.05 * jax.random.normal(KEY, (30,))
START = jnp.array([1.0, 0.0])


def residual(p, row):
    return p[0] * jnp.exp(p[1] * row[0]) - row[1]


def problem(noise=0.0, dtype=jnp.float64):
    y = 2 * jnp.exp(-T) + noise * NOISE
    return sg.LeastSquares(residual, (T.astype(dtype), y.astype(dtype)), START.astype(dtype))


def gradient(p, y):
    """The largest cosine between the residual and a column of J, and ‖r‖."""
    p, t = np.asarray(p, float), np.asarray(T)
    J = np.stack([np.exp(p[1] * t), p[0] * t * np.exp(p[1] * t)], axis=1)
    r = p[0] * np.exp(p[1] * t) - np.asarray(y, float)
    size = np.linalg.norm(r)
    return np.max(np.abs(J.T @ r) / np.linalg.norm(J, axis=0)) / size, size


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_ends_at_round_off_in_few_steps(dtype):
    """With a residual that stays and without one; parameters as exact as their type allows."""
    eps = float(jnp.finfo(dtype).eps)
    noisy = problem(1.0, dtype)
    result = sg.fit(noisy, KEY)
    assert result.reason == "converged" and result.history["step"][-1] <= 15
    assert result.params.dtype == dtype
    cosine, size = gradient(result.params, noisy.data[1])
    assert cosine < 30 * eps / size  # the residual itself is known to some eps
    exact = sg.fit(problem(0.0, dtype), KEY)
    assert exact.reason == "converged" and exact.history["step"][-1] <= 12
    np.testing.assert_allclose(exact.params, [2.0, -1.0], rtol=10 * eps)
    assert exact.history["converged"].tolist()[0] == 0 and exact.history["converged"][-1] > 0


def test_a_start_at_the_solution_is_left_at_once():
    for noise in (0.0, 1.0):
        found = sg.fit(problem(noise), KEY).params
        again = sg.fit(problem(noise), KEY, params=found)
        assert again.reason == "converged" and again.history["step"][-1] <= 3
        np.testing.assert_allclose(again.params, found, rtol=1e-13)


def test_batches_do_not_end_it():
    """At the exact solution every batch is fitted to rounding, but the others are not known."""
    exact = problem()
    result = sg.fit(exact, KEY, batch_size=10, steps=30, params=jnp.array([2.0, -1.0]), record_every=10)
    assert result.reason == "steps" and result.history["converged"][-1] > 0


class Countdown(sg.AbstractMethod):
    """Plain descent that has had enough after a number of steps."""

    left: jax.Array

    def init(self, params):
        return self.left

    def propose(self, lin, state):
        return jax.tree.map(lambda g: 1e-3 * g, lin.jacobian.rmv(lin.residual)), state - 1

    def converged(self, state):
        return state <= 0


def test_any_method_may_say_so(tmp_path):
    """The loop knows no more of it; what was stored as converged stays so, and a state goes on."""
    options = {"method": Countdown(jnp.asarray(7)), "record_every": 5}
    result = sg.fit(problem(), KEY, checkpoint=tmp_path, **options)
    assert result.reason == "converged" and result.history["step"].tolist() == [0, 5, 7]
    again = sg.fit(problem(), KEY, checkpoint=tmp_path, **options)
    assert again.reason == "converged" and again.history["step"].tolist() == [0, 5, 7]
    further = sg.fit(problem(), KEY, state=result.state, **options)
    assert further.reason == "converged" and further.history["step"].tolist() == [7, 8]
    limited = sg.fit(problem(), KEY, steps=7, **options)
    assert limited.reason == "converged", "not the limit, which it happens to meet"
    assert not sg.SGD().converged(())


def test_optax_loop():
    tx, params = sg.as_optax(sg.Auto()), {"p": START}
    x, y = problem(1.0).data

    @jax.jit
    def step(params, state):
        lin = sg.linearise(lambda p, row: residual(p["p"], row), params, (x, y))
        updates, state = tx.update(None, state, params, linearisation=lin)
        return optax.apply_updates(params, updates), state, sg.Auto().converged(state.method)

    state, done, count = tx.init(params), False, 0
    while not done and count < 30:
        params, state, done = step(params, state)
        count += 1
    assert done and count <= 15
    np.testing.assert_allclose(params["p"], sg.fit(problem(1.0), KEY).params, rtol=1e-12)


def test_fewer_rows_than_parameters():
    """An exact fit, by SPRING: to rounding, and noticed."""
    t, y = jnp.linspace(0, 1, 6), jnp.sin(5 * jnp.linspace(0, 1, 6))
    start = {name: jax.random.normal(jax.random.key(i), (5,)) for i, name in enumerate("wbv")}
    result = sg.least_squares(
        lambda p, row: jnp.tanh(p["w"] * row[0] + p["b"]) @ p["v"] - row[1], start, (t, y)
    )
    assert result.reason == "converged" and result.history["step"][-1] < 150
    assert result.history["loss"][-1] < 1e-29


def test_poor_starts_of_the_documentation():
    """The example of docs/training.md ends next to the truth, four times."""
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    blocks = [
        block for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if "curves = {" in block
    ]
    assert len(blocks) == 1
    names = {"sg": sg, "jax": jax, "jnp": jnp}
    exec(compile(blocks[0], "docs/training.md", "exec"), names)
    for name, (_, truth, _) in names["curves"].items():
        fit = names["fits"][name]
        assert fit.reason == "converged" and fit.history["step"][-1] < 100, name
        np.testing.assert_allclose(fit.params, truth, rtol=0.02, err_msg=name)


@pytest.mark.slow
def test_a_million_parameters():
    """By default through all three ways, in float32: batches of rows, and the loss falls."""
    import equinox as eqx

    rng = np.random.default_rng(0)
    x = rng.normal(size=(4096, 20)).astype(np.float32)
    y = np.sin(x[:, :2].sum(axis=1, keepdims=True)).astype(np.float32)
    model = eqx.nn.MLP(20, 1, 1000, 2, activation=jnp.tanh, key=KEY, dtype=jnp.float32)

    def wrong(model, row):
        return model(row[0]) - row[1]

    size = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
    assert size > 1e6
    by_call = sg.least_squares(wrong, model, (x, y), steps=5, record_every=5)
    by_fit = sg.fit(sg.LeastSquares(wrong, (x, y), model), KEY, steps=5, record_every=5, batch_size=512)
    for result in (by_call, by_fit):
        assert result.reason == "steps" and int(result.rejected) == 0
        assert result.history["loss"][-1] < result.history["loss"][0]
        assert result.params.layers[0].weight.dtype == jnp.float32
    tx, params = sg.as_optax(sg.Auto()), eqx.filter(model, eqx.is_inexact_array)
    static = eqx.filter(model, eqx.is_inexact_array, inverse=True)

    @jax.jit
    def step(params, state, rows):
        lin = sg.linearise(lambda p, row: wrong(eqx.combine(p, static), row), params, rows)
        updates, state = tx.update(None, state, params, linearisation=lin)
        return optax.apply_updates(params, updates), state, jnp.mean(lin.residual**2)

    state, losses = tx.init(params), []
    for i in range(5):
        rows = slice(512 * i, 512 * (i + 1))
        params, state, loss = step(params, state, (x[rows], y[rows]))
        losses.append(float(loss))
    assert int(state.rejected) == 0 and losses[-1] < losses[0]
