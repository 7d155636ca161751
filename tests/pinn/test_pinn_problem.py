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


def bump(u, x):
    """Large in a strip of a tenth of the square, whatever the network."""
    return u(x) * 0 + jnp.exp(-1000 * (x[0] - 0.5) ** 2)


ENDS = pinn.Block("ends", lambda u, x: u(x), pinn.SpaceTime(pinn.Box([0], [1]), 0, 1).boundary(), 2)
DATA = pinn.Block("data", lambda u, x: u(x), pinn.Points(np.eye(3, 2)))
BUMP = pinn.PINN(pinn.MLP([2, 3, 1]), [pinn.Block("interior", bump, BOX, 200), ENDS, DATA])


def followed(sampler, steps):
    """The batches of some steps at one network."""
    params = BUMP.init(KEY)

    def one(state, step):
        key = jax.random.fold_in(KEY, step)
        batch, state = sampler.draw(key, state, lambda b: BUMP.linearise(params, b))
        return state, batch

    return jax.jit(lambda: jax.lax.scan(one, sampler.init(KEY), jnp.arange(steps)))()[1]


def test_adaptive_points_go_where_the_residual_is():
    batches = followed(pinn.ResidualAdaptive(BUMP, refresh_every=1, floor=0.1), 40)
    points, weight = batches["interior"]
    near = jnp.mean(jnp.abs(points[:, :, 0] - 0.5) < 0.05, axis=1)
    assert near[0] < 0.2 and jnp.min(near[1:]) > 0.6
    assert jnp.all(batches["data"].points == np.eye(3, 2)[None])
    np.testing.assert_array_equal(jnp.sum(batches["ends"].points[:, :, 1], axis=1), 1)  # both ends, always
    assert jnp.max(weight) <= (1 + 1 / 0.1) / 200 * (1 + 1e-12)
    # The weighted mean estimates the same integral as an even one, and of the residual a better one.
    for value, exact in ((points[..., 1] ** 2, 1 / 3), (points[..., 0], 1 / 2)):
        mean = jnp.sum(weight * value, axis=1)[1:]
        assert abs(jnp.mean(mean) - exact) < 5 * jnp.std(mean) / np.sqrt(39) + 1e-4
    square = jnp.sum(weight * jnp.exp(-2000 * (points[..., 0] - 0.5) ** 2), axis=1)
    np.testing.assert_allclose(square[1:], np.sqrt(np.pi / 2000), rtol=0.05)
    assert abs(square[0] / np.sqrt(np.pi / 2000) - 1) < 0.3


def test_adaptive_points_are_replaced_a_part_at_a_time():
    points = np.asarray(
        followed(pinn.ResidualAdaptive(BUMP, refresh_every=16, parts=4), 140)["interior"].points
    )
    changed = np.any(points[1:] != points[:-1], axis=2)
    late = changed[100:]  # points have reached their full age
    assert set(late.sum(axis=1)) == {0, 50}
    for start in range(20):
        np.testing.assert_array_equal(late[start : start + 16].sum(axis=0), 1)
    assert changed[0].all()  # early ones are replaced sooner


def test_points_stay_even_where_the_residual_is_not_concentrated():
    batches = followed(pinn.ResidualAdaptive(BUMP, refresh_every=1, threshold=0), 3)
    points, weight = batches["interior"]
    assert jnp.all(weight == 1 / 200) and jnp.all(jnp.any(points[1:] != points[:-1], axis=2))
    for batch in points:  # every two hundredth of each axis has one point
        np.testing.assert_allclose(np.diff(np.sort(batch, axis=0), axis=0), 1 / 200, rtol=1e-9)


def test_weights_of_points_scale_rows_and_residuals_alike():
    params, batch = BUMP.init(KEY), BUMP.draw(KEY)
    rng = np.random.default_rng(0)
    step = jax.tree.map(lambda p: 0.1 * jnp.ones_like(p), params)

    @jax.jit
    def seen(batch):
        lin = BUMP.linearise(params, batch)
        return lin.residual, lin.jacobian.dense(), lin.residual_at(step)

    even = pinn.ResidualAdaptive(BUMP).init(KEY)[0]
    weighted = {
        name: entry._replace(points=batch[name], weight=jnp.asarray(rng.uniform(0.5, 2, entry.weight.shape)))
        for name, entry in even.items()
    }
    factor = np.concatenate([np.sqrt(part.weight * part.weight.size) for part in weighted.values()])
    for one, other in zip(seen(weighted), seen(batch), strict=True):
        np.testing.assert_allclose(one, (factor * np.asarray(other).T).T, rtol=1e-12, atol=1e-15)


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
