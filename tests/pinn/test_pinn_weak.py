"""Weak forms: rows are the dual norm of the residual, and training minimises the error in that norm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad import pinn

KEY = jax.random.key(0)
BOX = pinn.Box([0, -1], [1, 2])


def problem(residual, weak, network=None, box=BOX):
    network = pinn.Polynomial(box.low, box.high, 4) if network is None else network
    return pinn.PINN(network, [pinn.Block("all", residual, box, weak=weak, weight=4.0)])


def bubble(x, power):
    """A polynomial of degree 3 + 2 · power in each coordinate that vanishes on the sides of the box."""
    s = (2 * x - (BOX.low + BOX.high)) / (BOX.high - BOX.low)
    return jnp.prod(1 - s**2) ** power * (1 + 0.3 * s[0] - 0.2 * s[1] * s[0] ** 2 + 0.1 * s[1] ** 3)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_rows_are_the_dual_norm(order):
    """r = (−Δ)ᵐφ with a φ that test functions can be: Σ r̂² is the mean of φ², |∇φ|² and (Δφ)²."""

    def laplacian(f):
        return lambda x: jnp.trace(jax.hessian(f)(x))

    phi = energy = lambda x: bubble(x, order)
    for _ in range(order):
        phi = laplacian(phi)
    for _ in range(order // 2):
        energy = laplacian(energy)
    weak = pinn.Weak(2 * order + 3, order)
    made = problem(lambda u, x: phi(x) + 0 * u(x), weak)
    batch = made.draw(KEY)
    rows = made.rows(made.init(KEY), batch)["all"]
    assert rows.shape == (16,)

    nodes, weights = np.polynomial.legendre.leggauss(20)
    unit = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2) / 2 + 0.5
    points = BOX.place(jnp.asarray(unit))
    size = jax.vmap(jax.grad(energy))(points) if order % 2 else jax.vmap(energy)(points)[:, None]
    mean = np.sum(np.outer(weights, weights).reshape(-1) / 4 * np.sum(np.asarray(size) ** 2, axis=1))
    np.testing.assert_allclose(np.sum(rows**2) / 4, mean, rtol=1e-9)


def test_the_jacobian_is_that_of_the_rows():
    """Two outputs, a network that is not linear, and a second block: one row of them for each test."""

    def residual(u, x):
        value, gradient, laplace = pinn.derivatives(u, x)
        return jnp.stack([laplace + value**2, gradient[0] * value])

    sides = pinn.Block("sides", lambda u, x: u(x), BOX.boundary(), points=6)
    block = pinn.Block("all", residual, BOX, weak=pinn.Weak(5, order=1), weight=4.0)
    made = pinn.PINN(pinn.MLP([2, 4, 1]), [block, sides])
    params, batch = made.init(KEY), made.draw(KEY)
    lin = made.linearise(params, batch)
    J = jax.jacrev(lambda p: made.linearise(p, batch).residual)(params)
    J = jnp.concatenate([leaf.reshape(2 * 16 + 6, -1) for leaf in jax.tree.leaves(J)], axis=1)
    assert lin.residual.shape == (38,) and made.counts(params) == (38, J.shape[1])
    np.testing.assert_allclose(lin.jacobian.dense(), J, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(lin.jacobian.gram(), J @ J.T, rtol=1e-9, atol=1e-12)
    u = jnp.arange(38.0)
    back = jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(lin.jacobian.rmv(u))])
    np.testing.assert_allclose(back, J.T @ u, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(lin.residual_at(jax.tree.map(jnp.zeros_like, params)), lin.residual)


@pytest.mark.parametrize("sampler", [pinn.ResidualAdaptive, pinn.Balanced, pinn.Collocation])
def test_samplers_leave_its_nodes_alone(sampler):
    equation = lambda u, x: pinn.laplacian(u, x) + jnp.exp(-50 * jnp.sum(x**2))  # noqa: E731
    made = pinn.PINN(
        pinn.MLP([2, 4, 1]),
        [
            pinn.Block("all", equation, BOX, weak=pinn.Weak(6)),
            pinn.Block("other", equation, BOX, points=64),
        ],
    )
    solution = pinn.solve(made, KEY, steps=6, sampler=sampler(made))
    drawn = [made.draw(jax.random.key(seed))["all"] for seed in (1, 2)]
    np.testing.assert_array_equal(*drawn)
    assert drawn[0].shape == (100, 2) and np.isfinite(solution.history["loss"][-1])


def test_advice_looks_at_points_only_where_the_equation_is_asked_there():
    source = lambda x: jnp.exp(-2000 * jnp.sum(x**2))  # noqa: E731
    equation = lambda u, x: pinn.laplacian(u, x) + 1e6 * source(x)  # noqa: E731

    def said(**how):
        made = pinn.PINN(pinn.MLP([2, 4, 1]), [pinn.Block("all", equation, BOX, **how)])
        return pinn.advice(pinn.solve(made, KEY, steps=1))

    strong, weak = said(points=2000), said(weak=pinn.Weak(6, nodes=45))
    assert "largest in a few places" in strong and "sg.pinn.Weak" in strong
    assert "largest in a few places" not in weak


def test_it_minimises_the_error_in_the_norm_of_the_energy():
    """A corner of 270° less the corner: of u = r^(2/3) sin(2θ/3), ∇u is not bounded, and Δu is far less so.

    From the same polynomials pointwise residuals make something many times worse.
    """

    def exact(x):
        r, theta = jnp.hypot(x[0], x[1]), jnp.arctan2(x[1], x[0])
        return r ** (2 / 3) * jnp.sin(2 / 3 * theta)

    box = pinn.Box([0, 0], [1, 1])
    sides = pinn.Block("sides", lambda u, x: u(x) - exact(x), box.boundary(), points=200, weight=100)

    def error(**how):
        blocks = [pinn.Block("all", lambda u, x: pinn.laplacian(u, x), box, **how), sides]
        made = pinn.PINN(pinn.Polynomial([0, 0], [1, 1], 10), blocks, exact)
        return pinn.solve(made, KEY, steps=6).history["relative_l2"][-1]

    weak, strong = error(weak=pinn.Weak(10)), error(grid=(16, 16))
    assert weak < 2e-3 and strong > 3 * weak


def test_what_it_cannot_be_used_for():
    equation = lambda u, x: u(x)  # noqa: E731
    ring, time = pinn.Box([0], [1], periodic=True), pinn.SpaceTime(pinn.Box([0], [1]), 0, 1)
    for domain, word in [(ring, "one with some"), (time, "SpaceTime"), (pinn.Ball([0], 1), "Ball")]:
        with pytest.raises(ValueError, match=f"`weak` is for sg.pinn.Box.*{word}"):
            pinn.Block("all", equation, domain, weak=pinn.Weak(4))
    with pytest.raises(TypeError, match=r"`weak` must be a sg\.pinn\.Weak, got int"):
        pinn.Block("all", equation, BOX, weak=4)
    with pytest.raises(ValueError, match="`grid` must be left out where `weak` is given"):
        pinn.Block("all", equation, BOX, weak=pinn.Weak(4), grid=(3, 3))
    with pytest.raises(ValueError, match="`points` must be left out"):
        pinn.Block("all", equation, BOX, weak=pinn.Weak(4), points=10)
    with pytest.raises(ValueError, match="`degree` must be at least 4 for `order` = 2, got 3"):
        pinn.Weak(3, order=2)
    with pytest.raises(ValueError, match="`order` must be 0, 1, …, got -1"):
        pinn.Weak(3, order=-1)
    with pytest.raises(ValueError, match="`nodes` must be at least 5 for `degree` = 4, got 4"):
        pinn.Weak(4, nodes=4)
    with pytest.raises(ValueError, match=r"`degree` = 20 makes 6859 test functions of 3 coordinates"):
        pinn.Block("all", equation, pinn.Box([0, 0, 0], [1, 1, 1]), weak=pinn.Weak(20))
