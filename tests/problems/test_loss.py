"""Losses on outputs: against Newton's method in NumPy, least squares, and plain differentiation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import snapgrad as sg

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)) @ np.diag([1.0, 0.3, 2.0, 1.0])
TRUE = np.array([1.0, -2.0, 0.5, 0.0])


def linear(p, row):
    return row[0] @ p


def logistic(v, row):
    return optax.losses.sigmoid_binary_cross_entropy(v, row[1])


def count(v, row):
    return jnp.exp(v) - row[1] * v


def huber(v, row):
    return optax.losses.huber_loss(v, row[1], delta=0.5)


CASES = {
    "logistic": (logistic, (RNG.uniform(size=60) < 1 / (1 + np.exp(-X @ TRUE))).astype(float)),
    "count": (count, RNG.poisson(np.exp(X @ TRUE)).astype(float)),
    "huber": (huber, X @ TRUE + RNG.standard_t(1.5, size=60)),
}


def newton(name, y):
    """Newton's method with halving, from its formulas: gradient and Hessian of each loss by hand."""

    def parts(w):
        v = X @ w
        if name == "logistic":
            p = 1 / (1 + np.exp(-v))
            return np.sum(np.logaddexp(0, v) - y * v), p - y, p * (1 - p)
        if name == "count":
            return np.sum(np.exp(v) - y * v), np.exp(v) - y, np.exp(v)
        u = v - y
        inside = np.abs(u) <= 0.5
        return (
            np.sum(np.where(inside, u**2 / 2, 0.5 * (np.abs(u) - 0.25))),
            np.clip(u, -0.5, 0.5),
            inside.astype(float),
        )

    w = np.zeros(4)
    for _ in range(200):
        loss, g, h = parts(w)
        step = np.linalg.solve((X.T * h) @ X + 1e-12 * np.eye(4), X.T @ g)
        size = 1.0
        while parts(w - size * step)[0] > loss and size > 1e-12:
            size /= 2
        w = w - size * step
    assert np.linalg.norm(X.T @ parts(w)[1]) < 1e-9
    return w


@pytest.mark.parametrize("name", CASES)
def test_converges_like_newton(name):
    loss, y = CASES[name]
    problem = sg.LossProblem(linear, loss, (X, y), jnp.zeros(4))
    result = sg.fit(problem, jax.random.key(0), steps=20, record_every=10)
    np.testing.assert_allclose(result.params, newton(name, y), rtol=1e-10, atol=1e-12)


def test_half_a_square_is_least_squares():
    y = X @ TRUE + 0.1 * RNG.normal(size=60)
    params, rows = jnp.ones(4), jnp.arange(3, 9)
    squares = sg.LeastSquares(lambda p, row: linear(p, row) - row[1], (X, y), params)
    problem = sg.LossProblem(linear, lambda v, row: (v - row[1]) ** 2 / 2, (X, y), params)
    one, other = problem.linearise(params, rows), squares.linearise(params, rows)
    np.testing.assert_allclose(one.residual, other.residual, rtol=1e-12)
    np.testing.assert_allclose(one.jacobian.dense(), other.jacobian.dense(), rtol=1e-12)
    step = jnp.array([0.1, -0.2, 0.3, 0.4])
    np.testing.assert_allclose(one.residual_at(step), other.residual_at(step), rtol=1e-12)
    np.testing.assert_allclose(one.loss_at(step), jnp.sum(other.residual_at(step) ** 2) / 2, rtol=1e-12)
    np.testing.assert_allclose(problem.metrics(params)["loss"], squares.metrics(params)["loss"], rtol=1e-12)


def network(params, row):
    return params["v"] @ jnp.tanh(params["W"] @ row[0])


def crossentropy(v, row):
    return optax.losses.softmax_cross_entropy_with_integer_labels(v, row[1])


def softmax(rows=24):
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(rows, 2)))
    labels = jnp.asarray((np.asarray(x[:, 0]) > 0).astype(int) + (np.asarray(x[:, 1]) > 0.5))
    params = {"W": jnp.asarray(rng.normal(size=(8, 2))), "v": jnp.asarray(rng.normal(size=(3, 8)))}
    return sg.LossProblem(network, crossentropy, (x, labels), params), params


def test_gradient_and_gauss_newton_matrix():
    """Of several outputs: Jᵀr is the gradient of the loss, JᵀJ the Gauss–Newton matrix if rows are many."""
    problem, params = softmax()
    flat, unravel = jax.flatten_util.ravel_pytree(params)

    def outputs(p):
        return jax.vmap(network, (None, 0))(unravel(p), problem.data)

    def losses(v):
        return jax.vmap(crossentropy)(v, problem.data)

    J = np.asarray(jax.jacobian(outputs)(flat))
    H = np.asarray(jax.vmap(jax.hessian(crossentropy))(outputs(flat), problem.data))
    for rows in (5, 24):
        lin = problem.linearise(params, jnp.arange(rows))
        got = np.asarray(lin.jacobian.dense())
        gradient = jax.grad(lambda p, rows=rows: jnp.sum(losses(outputs(p))[:rows]))(flat)
        np.testing.assert_allclose(got.T @ lin.residual, gradient, rtol=1e-8, atol=1e-12)
        nothing = jax.tree.map(jnp.zeros_like, params)
        np.testing.assert_allclose(lin.loss_at(nothing), jnp.sum(losses(outputs(flat))[:rows]), rtol=1e-12)
        np.testing.assert_allclose(lin.residual_at(nothing), lin.residual, rtol=1e-9, atol=1e-12)
        if rows == 5:
            np.testing.assert_allclose(got, J[:5].reshape(15, -1), rtol=1e-10, atol=1e-12)
    exact = np.einsum("pin,pij,pjm->nm", J, H, J)
    # Raised by at most a hundredth of the mean curvature, where the loss is flat: softmax is, one way.
    assert np.linalg.norm(got.T @ got - exact, 2) < 0.02 * np.linalg.norm(exact, 2)


@pytest.mark.parametrize(("batch_size", "part"), [(24, 0.1), (6, 0.5)])
def test_several_outputs_train(batch_size, part):
    """On all rows Levenberg–Marquardt (72 > 40), on six SPRING (18 rows)."""
    problem, _ = softmax()
    result = sg.fit(problem, jax.random.key(0), steps=40, batch_size=batch_size, record_every=40)
    assert result.history["loss"][-1] < part * result.history["loss"][0] and int(result.rejected) == 0


def test_in_an_optax_loop_and_across_jit():
    loss, y = CASES["logistic"]
    tx, params = sg.as_optax(sg.Auto()), jnp.zeros(4)
    state = tx.init(params)

    @jax.jit
    def step(params, state, lin):
        updates, state = tx.update(None, state, params, linearisation=lin)
        return optax.apply_updates(params, updates), state

    for _ in range(15):
        lin = sg.linearise(linear, params, (X, y), loss=loss)
        params, state = step(params, state, lin)
    np.testing.assert_allclose(params, newton("logistic", y), rtol=1e-8)


def test_a_loss_that_is_not_finite_is_a_refusal():
    """Beyond v = 1 the logarithm has no value: the step is refused, not taken or counted as rejected."""
    x = jnp.linspace(0.5, 1, 9)[:, None]
    problem = sg.LossProblem(linear, lambda v, row: -jnp.log(1 - v) - 3 * v, (x, x), jnp.zeros(1))
    result = sg.fit(problem, jax.random.key(0), steps=30, record_every=30)
    gradient = jnp.sum(x[:, 0] * (1 / (1 - x[:, 0] * result.params) - 3))
    np.testing.assert_allclose(gradient, 0, atol=1e-9)
    assert int(result.rejected) == 0
    with pytest.raises(ValueError, match="`loss` is NaN or infinite in 9 of 9 rows, for example in row 0"):
        problem.check(jnp.full(1, 2.5), jnp.arange(9))


def test_bad_input():
    _, y = CASES["logistic"]
    with pytest.raises(TypeError, match="`model` must be a function of"):
        sg.LossProblem(3, logistic, (X, y), jnp.zeros(4))
    with pytest.raises(TypeError, match="`loss` must be a function of"):
        sg.LossProblem(linear, None, (X, y), jnp.zeros(4))
    with pytest.raises(TypeError, match="`loss` must return one real number"):
        sg.LossProblem(linear, lambda v, row: jnp.stack([v, v]), (X, y), jnp.zeros(4))
    with pytest.raises(TypeError, match="`loss` must return one real number"):
        eqx.filter_jit(sg.linearise)(linear, jnp.zeros(4), (X, y), loss=lambda v, row: row[0])
    with pytest.raises(ValueError, match="`model` must return real"):
        sg.LossProblem(lambda p, row: 1j * p[0], logistic, (X, y), jnp.zeros(4))
    with pytest.raises(TypeError, match="loss_at"):
        sg.Linearisation(jnp.ones(3), sg.DenseJacobian(jnp.eye(3, 2)), None, 3.0)
