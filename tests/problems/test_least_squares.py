"""A problem from a function and data: what it linearises, measures and refuses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg

KEY = jax.random.key(0)
DATA = {"x": np.linspace(0, 1, 10), "y": np.arange(20.0).reshape(10, 2)}
START = {"a": 1.0, "b": np.zeros(2)}


def residual(p, row):
    return p["a"] * row["x"] + p["b"] - row["y"]


PROBLEM = sg.LeastSquares(residual, DATA, START)


def test_linearise():
    """Against the Jacobian of all rows at once."""
    params, rows = PROBLEM.init(KEY), jnp.array([7, 2])
    lin = PROBLEM.linearise(params, rows)

    def whole(p):
        return (p["a"] * DATA["x"][rows, None] + p["b"][None] - DATA["y"][rows]).reshape(-1)

    dense = jax.jacobian(whole)(params)
    np.testing.assert_allclose(lin.residual, whole(params), rtol=1e-12)
    np.testing.assert_allclose(
        lin.jacobian.dense(), np.concatenate([dense["a"][:, None], dense["b"]], axis=1)
    )
    step = {"a": jnp.asarray(0.3), "b": jnp.array([1.0, -1.0])}
    moved = jax.tree.map(lambda p, s: p - s, params, step)
    np.testing.assert_allclose(lin.residual_at(step), whole(moved), rtol=1e-12)


def test_loss_is_the_mean_over_rows(monkeypatch):
    from snapgrad.problems import _least_squares

    params = PROBLEM.init(KEY)
    values = np.asarray(jax.vmap(residual, (None, 0))(params, DATA))
    expected = np.mean(np.sum(values**2, axis=1)) / 2
    np.testing.assert_allclose(PROBLEM.metrics(params)["loss"], expected, rtol=1e-12)
    monkeypatch.setattr(_least_squares, "METRIC_NUMBERS", 9)  # in pieces of three rows
    np.testing.assert_allclose(PROBLEM.metrics(params)["loss"], expected, rtol=1e-12)


def test_initial_parameters():
    """Given, or made from a key; a model that can be called is parameters, not a function of a key."""
    assert PROBLEM.num_rows == 10 and PROBLEM.init(KEY)["a"].dtype == jnp.float64
    make = lambda key: eqx.nn.Linear(1, 2, key=key)  # noqa: E731
    row = lambda m, row: m(row["x"][None]) - row["y"]  # noqa: E731
    made, given = sg.LeastSquares(row, DATA, make), sg.LeastSquares(row, DATA, make(KEY))
    assert bool(eqx.tree_equal(made.complete(made.init(KEY)), make(KEY)))
    assert bool(eqx.tree_equal(given.complete(given.init(jax.random.key(5))), make(KEY)))


def test_flax_parameters():
    linen = pytest.importorskip("flax.linen")
    net = linen.Dense(2)
    problem = sg.LeastSquares(
        lambda p, row: net.apply(p, row["x"][None]) - row["y"], DATA, lambda key: net.init(key, jnp.ones(1))
    )
    assert jax.tree.structure(problem.complete(problem.init(KEY))) == jax.tree.structure(
        net.init(KEY, jnp.ones(1))
    )


WRONG = {
    "no function": (lambda: sg.LeastSquares(3, DATA, START), TypeError, ["residual", "int"]),
    "no data": (lambda: sg.LeastSquares(residual, {}, START), ValueError, ["data", "empty"]),
    "scalar data": (lambda: sg.LeastSquares(residual, {"x": 1.0}, START), ValueError, ["data['x']", "()"]),
    "unequal data": (
        lambda: sg.LeastSquares(residual, {**DATA, "y": np.ones((9, 2))}, START),
        ValueError,
        ["data['y']", "10", "(9, 2)"],
    ),
    "whole numbers": (
        lambda: sg.LeastSquares(residual, DATA, {"a": 1, "b": START["b"]}),
        TypeError,
        ["init['a']"],
    ),
    "two arrays": (
        lambda: sg.LeastSquares(lambda p, r: (p["a"], p["b"]), DATA, START),
        TypeError,
        ["residual"],
    ),
    "complex": (
        lambda: sg.LeastSquares(lambda p, r: p["a"] * 1j, DATA, START),
        ValueError,
        ["residual", "complex"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    call, kind, words = WRONG[name]
    with pytest.raises(kind) as error:
        call()
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    "problem",
    [PROBLEM, sg.problems.gaussian_llq(KEY, 20, 4), sg.problems.DiscretePoisson(num_rows=12, width=3)],
    ids=["least-squares", "least-quadratics", "poisson"],
)
def test_a_trial_step_is_the_residual_after_it(problem):
    """What self-tuning methods need: `residual_at` agrees with linearising at the moved parameters."""
    params, rows = problem.init(KEY), jnp.array([1, 3, 8])
    params = jax.tree.map(lambda p: np.asarray(p) + 0.1, params)
    step = jax.tree.map(lambda p: 0.01 * np.cos(np.arange(float(p.size))).reshape(p.shape), params)
    moved = jax.tree.map(lambda p, s: p - s, params, step)

    @jax.jit
    def both(params, step, moved):
        after = problem.linearise(params, rows).residual_at(step)
        return after, problem.linearise(moved, rows).residual

    np.testing.assert_allclose(*both(params, step, moved), rtol=1e-9, atol=1e-12)
