"""Problems and samplers: rows, weights, batches, and errors that say what is wrong."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import snapgrad as sg
from snapgrad import pinn

KEY = jax.random.key(0)


BOX = pinn.Box([0, 0], [1, 1])
SMALL = pinn.PINN(
    pinn.MLP([2, 6, 1]),
    [
        pinn.Block("interior", lambda u, x: pinn.laplacian(u, x) + u(x) ** 2, BOX, 7, weight=2.0),
        pinn.Block("boundary", lambda u, x: jnp.stack([u(x), pinn.gradient(u, x)[0]]), BOX.boundary(), 4),
    ],
    exact=lambda x: jnp.sin(x[0]) * x[1],
)


def test_linearisation_is_the_derivative_of_the_residual():
    params, batch = SMALL.init(KEY), SMALL.draw(KEY)
    flat, unravel = jax.flatten_util.ravel_pytree(params)

    @jax.jit
    def everything(flat):
        residual = lambda flat: SMALL.linearise(unravel(flat), batch).residual  # noqa: E731
        lin = SMALL.linearise(unravel(flat), batch)
        trial = lin.residual_at(jax.tree.map(lambda p: 0.1 * jnp.ones_like(p), params))
        parts = SMALL.residuals(unravel(flat), batch)
        return (
            lin.residual,
            lin.jacobian.dense(),
            jax.jacrev(residual)(flat),
            trial,
            residual(flat - 0.1),
            parts,
        )

    residual, J, expected, trial, moved, parts = everything(flat)
    assert residual.shape == (7 + 2 * 4,)
    np.testing.assert_allclose(J, expected, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(trial, moved, rtol=1e-12)
    # ½‖r‖² is the weighted sum of mean squares.
    loss = 2 * jnp.mean(parts["interior"] ** 2) + jnp.mean(jnp.sum(parts["boundary"] ** 2, axis=1))
    np.testing.assert_allclose(jnp.sum(residual**2), loss, rtol=1e-12)


@pytest.mark.parametrize("points", [(100, 50), (300, 100)])  # all pairs of products at once, and one by one
def test_kernel_is_that_of_the_rows(points):
    """Many outer products a row in the interior, one on the boundary."""
    problem = pinn.zoo("poisson-5d", hidden=(32, 30), points=points)
    jac = lambda key: problem.linearise(problem.init(key), problem.draw(key)).jacobian  # noqa: E731
    J, kernel = map(np.asarray, jax.jit(lambda key: (jac(key).dense(), jac(key).gram()))(KEY))
    np.testing.assert_allclose(kernel, J @ J.T, atol=1e-13 * np.sum(J**2))


def no_rows(batch):
    raise AssertionError("a plain sampler does not look at the rows")


def drawn(sampler, steps):
    """A coordinate of the first point of each step."""

    def one(state, step):
        batch, state = sampler.draw(jax.random.fold_in(KEY, step), state, no_rows)
        return state, batch["interior"][0, 0]

    return jax.lax.scan(one, sampler.init(KEY), jnp.arange(steps))[1].tolist()


def test_samplers():
    fixed, some, fresh = (drawn(pinn.Collocation(SMALL, every), 4) for every in (None, 2, 1))
    assert len(set(fixed)) == 1 and len(set(fresh)) == 4
    assert some[0] == some[1] != some[2] == some[3]


def test_points_are_kept_longer_and_longer():
    found = drawn(pinn.Collocation(SMALL, refresh_every=3, warm_up=True), 16)
    assert [len(list(run)) for _, run in itertools.groupby(found)] == [1, 1, 1, 2, 2, 3, 3, 3]


def test_adaptive_points_go_where_the_residual_is():
    peak = pinn.Block("interior", lambda u, x: u(x) * 0 + jnp.exp(-100 * (x[0] - 0.5) ** 2), BOX, 200)
    data = pinn.Block("data", lambda u, x: u(x), pinn.Points(np.eye(3, 2)))
    problem = pinn.PINN(pinn.MLP([2, 3, 1]), [peak, data])
    sampler = pinn.ResidualAdaptive(problem, refresh_every=1, floor=0.1)
    params = problem.init(KEY)
    draw = jax.jit(lambda state: sampler.draw(KEY, state, lambda b: problem.linearise(params, b)))
    batch, state = draw(sampler.init(KEY))
    near = lambda b: float(jnp.mean(jnp.abs(b["interior"][:, 0] - 0.5) < 0.1))  # noqa: E731
    assert 0.1 < near(batch) < 0.3
    batch, _ = draw(state)
    assert near(batch) > 0.5 and bool(jnp.all(batch["data"] == np.eye(3, 2)))
    assert jnp.unique(batch["interior"], axis=0).shape[0] == 200


def test_errors_say_what_is_wrong():
    def problem(residual, **more):
        return pinn.PINN(pinn.MLP([2, 4, 1]), [pinn.Block("pde", residual, BOX, 10)], **more)

    with pytest.raises(ValueError, match=r"block 'pde' is NaN or infinite at .* x = \["):
        pinn.solve(problem(lambda u, x: u(x) + jnp.log(x[0] - 0.5)), KEY)
    with pytest.raises(ValueError, match="'pde' does not depend on the network"):
        pinn.solve(problem(lambda u, x: x[0] ** 2), KEY)
    with pytest.raises(ValueError, match=r"'pde' must be one real number, or a vector .* got shape \(2, 2\)"):
        problem(lambda u, x: jax.hessian(u)(x))
    with pytest.raises(ValueError, match="`exact` must have the shape of the network's output"):
        problem(lambda u, x: u(x), exact=lambda x: x)
    with pytest.raises(ValueError, match=r"`exact` must be a pair \(points, values\)"):
        data = pinn.Block("data", lambda u, x: u(x), pinn.Points(np.zeros((3, 2))))
        pinn.PINN(pinn.MLP([2, 4, 1]), [data], exact=lambda x: x[0])
    with pytest.raises(ValueError, match="the box is empty"):
        pinn.Box([0, 1], [1, 1])
    with pytest.raises(ValueError, match="the ball is empty"):
        pinn.Ball([0, 0], 0)
    with pytest.raises(ValueError, match="`rows` must not be empty"):
        pinn.Points(np.zeros((0, 2)))
    with pytest.raises(ValueError, match="`points` is missing for block 'pde'"):
        pinn.Block("pde", lambda u, x: u(x), BOX)
    with pytest.raises(ValueError, match="`blocks` must hold at least one"):
        pinn.PINN(pinn.MLP([2, 4, 1]), [])
    with pytest.raises(ValueError, match="different names"):
        pinn.PINN(pinn.MLP([2, 4, 1]), [pinn.Block("a", lambda u, x: u(x), BOX, 3)] * 2)
    with pytest.raises(ValueError, match="`name` must be one of poisson-1d"):
        pinn.zoo("poisson-3d")
    with pytest.raises(ValueError, match="`points` must have 2 entries"):
        pinn.zoo("poisson-1d", points=(3,))
    with pytest.raises(ValueError, match="`seconds` must be above 0"):
        pinn.solve(problem(lambda u, x: u(x)), KEY, seconds=0)


def test_adam_on_a_problem_with_data():
    """`sg.run` and optax take a PINN like any other problem."""
    x = np.linspace(0, 1, 9)[:, None]
    block = pinn.Block("data", lambda u, row: u(row[0]) - row[1], pinn.Points((x, np.sin(x[:, 0]))), points=5)
    problem = pinn.PINN(pinn.MLP([1, 5, 1]), [block], exact=(x, np.sin(x[:, 0])))
    sampler, adam = pinn.Collocation(problem), optax.adam(1e-2)
    result = sg.run(
        problem, KEY, method=sg.SGD(), sampler=sampler, optimizer=adam, steps=200, record_every=100
    )
    assert result.history["relative_l2"][-1] < 0.5 * result.history["relative_l2"][0]
