"""Networks without hidden layers, Fourier series and polynomials, and the grids that they are trained on."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad import pinn

KEY = jax.random.key(0)
RING = pinn.SpaceTime(pinn.Box([-1], [1], periodic=True), 0, 0.5)


def spectral(degree, modes, end=0.5):
    times = pinn.Polynomial([0], [end], degree, pinn.Series.outputs(modes))
    return pinn.Series(times, axis=1, period=2.0, modes=modes)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_polynomial_is_a_chebyshev_series_in_every_coordinate(outputs):
    network = pinn.Polynomial([0, -1], [2, 3], degree=4, outputs=outputs)
    params = network.init(KEY)
    x = jnp.array([0.3, 2.2])
    coefficients = np.asarray(params).reshape(5, 5, outputs)
    expected = np.polynomial.chebyshev.chebval2d(0.3 - 1, (2.2 - 1) / 2, coefficients)
    np.testing.assert_allclose(network(params, x), expected[0] if outputs == 1 else expected, rtol=1e-13)
    assert jnp.shape(network(params, x)) == (() if outputs == 1 else (2,))


def test_a_series_is_one_with_all_derivatives():
    network = spectral(3, 2)
    params, (t, y) = network.init(KEY), (0.2, 0.37)
    a = np.asarray(jax.vmap(lambda t: network.network(params, t[None]))(jnp.array([t])))[0]
    rates = np.asarray(jax.jacfwd(network.network, 1)(params, jnp.array([t])))[:, 0]
    k = np.pi * np.array([1, 2])
    weights = 1 / np.array([1.0, 4.0])
    cos, sin = weights * np.cos(k * y), weights * np.sin(k * y)

    def total(c, orders):  # of waves, each multiplied by a power of its wave number
        turns = {0: (cos, sin), 3: (k**3 * sin, -(k**3) * cos)}[orders]
        return (c[0] if orders == 0 else 0) + c[1:3] @ turns[0] + c[3:] @ turns[1]

    found = pinn.partials(lambda x: network(params, x), jnp.array([t, y]), [(), (0,), (1, 1, 1)])
    np.testing.assert_allclose(found, [total(a, 0), total(rates, 0), total(a, 3)], rtol=1e-11)


def test_linear_networks_say_so():
    assert pinn.Polynomial([0], [1], 3).linear and spectral(3, 2).linear
    perceptron = pinn.Series(pinn.MLP([1, 4, 5]), axis=1, period=2.0, modes=2)
    assert not perceptron.linear and perceptron(perceptron.init(KEY), jnp.array([0.1, 0.2])).shape == ()


def test_a_start_need_not_be_periodic_beyond_the_domain():
    """x² is so on [−1, 1] alone; advice has nothing against it."""
    held = pinn.Evolving(spectral(2, 3), RING, lambda x: x[1] ** 2)
    block = pinn.Block("all", lambda u, x: pinn.derivative(u, x, (0,)), RING, grid=(4, 8))
    assert "periodic" not in pinn.advice(pinn.PINN(held, [block]))
    perceptron = pinn.PINN(pinn.MLP([2, 4, 1]), [block])
    assert "Coordinate 1 is periodic and the network is not" in pinn.advice(perceptron)


class Plain(eqx.Module):
    """A network that does not say whether it is linear."""

    network: pinn.Series

    def init(self, key):
        return self.network.init(key)

    def __call__(self, params, x):
        return self.network(params, x)


@pytest.mark.parametrize("done", [0, 2])
def test_slabs_of_linear_networks_are_summed(done):
    """The same function, with its derivatives, as the sum of the outputs of all slabs, long and short."""
    inner, times = spectral(3, 2), (0, 0.01, 0.04, 0.2, 0.5)

    def held(network):
        found = pinn.Evolving(network, RING, lambda x: jnp.cos(jnp.pi * x[1])).over(times)
        for i in range(done):
            found = found.after(inner.init(jax.random.key(i)))
        return found

    params, orders = inner.init(jax.random.key(9)), [(), (0,), (1, 1)]
    end = times[done + 1]
    when = jnp.array([*times[: done + 1], 0.005, 0.3 * end, 0.7 * end, 0.99 * end])
    points = jnp.stack([when, jnp.full(when.shape, 0.3)], 1)

    def at(network):
        return jax.vmap(lambda x: jnp.stack(pinn.partials(lambda x: network(params, x), x, orders)))(points)

    np.testing.assert_allclose(at(held(inner)), at(held(Plain(inner))), rtol=1e-10, atol=1e-12)


def test_a_series_of_several_functions_in_several_coordinates():
    """Two functions of (t, x, y): each wave of y has a series in x for a coefficient."""
    waves = pinn.Series.outputs(2)
    times = pinn.Polynomial([0], [1], 1, pinn.Series.outputs(2, 2 * waves))
    network = pinn.Series(pinn.Series(times, 1, 2.0, 2, count=2 * waves), 2, 1.0, 2, count=2)
    params, point = network.init(KEY), (0.3, 0.4, 0.7)
    a = np.asarray(params).reshape(2, 2, 5, 5)  # time, function, wave of y, wave of x

    def basis(angle):
        k, size = np.array([1, 2]), 1 / np.array([1, 4, 1, 4])
        return np.append(1, np.concatenate([np.cos(k * angle), np.sin(k * angle)]) * size)

    expected = np.einsum("t,tfyx,y,x->f", [1, -0.4], a, basis(2 * np.pi * 0.7), basis(np.pi * 0.4))
    np.testing.assert_allclose(network(params, jnp.array(point)), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="must have 10 outputs for 2 modes of 2 functions"):
        pinn.Series(pinn.MLP([1, 4, 5]), 1, 2.0, 2, count=2)(
            pinn.MLP([1, 4, 5]).init(KEY), jnp.array([0.1, 0.2])
        )


def test_a_grid_has_nodes_of_gauss_and_even_ones():
    block = pinn.Block("all", lambda u, x: u(x), RING, grid=(4, 6))
    points = np.asarray(block.draw(KEY, grid=True))
    assert block.points == 24 and points.shape == (24, 2)
    times, places = np.unique(points[:, 0]), np.unique(points[:, 1].round(12))
    np.testing.assert_allclose(times, 0.25 * (np.polynomial.legendre.leggauss(4)[0] + 1), rtol=1e-13)
    assert len(places) == 6
    np.testing.assert_allclose(np.diff(places), 1 / 3, rtol=1e-9)
    other = np.asarray(block.draw(jax.random.key(1), grid=True))
    np.testing.assert_allclose(other[:, 0], points[:, 0])
    assert np.abs(other[:, 1] - points[:, 1]).min() > 1e-3  # shifted
    assert len(np.unique(np.asarray(block.draw(KEY))[:, 0])) == 24  # scattered, unless a grid is asked for


def test_steps_are_on_the_grid_and_the_loss_is_not():
    block = pinn.Block("all", lambda u, x: u(x), RING, grid=(4, 30))
    problem = pinn.PINN(spectral(2, 3), [block])
    sampler = problem.default_sampler(problem.init(KEY))
    batch, *_ = sampler.init(KEY)
    assert len(np.unique(batch["all"][:, 0])) == 4
    assert len(np.unique(problem.loss_points["all"][:, 0])) == 120
    adaptive = pinn.ResidualAdaptive(problem).init(KEY)[0]["all"]
    assert len(np.unique(adaptive.points[:, 0])) == 120


def test_what_a_network_cannot_hold_spoils_nothing_on_a_grid():
    """u_t + u_x = 0 with more waves than the series has: scattered points alias them onto the others."""

    def error(**points):  # of the waves that the series has
        start = lambda x: jnp.exp(2 * jnp.sin(jnp.pi * x[1]))  # noqa: E731
        equation = lambda u, x: sum(pinn.partials(u, x, [(0,), (1,)]))  # noqa: E731
        held = pinn.Evolving(spectral(8, 4, 0.1), domain, start)
        problem = pinn.PINN(held, [pinn.Block("all", equation, domain, **points)])
        solution = pinn.solve(problem, KEY, steps=12, record_every=12)
        t, x = np.meshgrid(np.linspace(0, 0.1, 6), np.arange(-1, 1, 1 / 16), indexing="ij")
        wrong = solution(np.stack([t, x], axis=-1)) - np.exp(2 * np.sin(np.pi * (x - t)))
        return np.abs(np.fft.rfft(wrong, axis=1))[:, :4].max() / 32

    domain = pinn.SpaceTime(RING.space, 0, 0.1)
    assert error(grid=(10, 16)) < 1e-9 and error(points=480) > 1e-5


def test_kdv_at_small_size():
    """The first slabs, in which sixteen waves are enough: exact to rounding after a few steps each."""
    problem = pinn.zoo("kdv", hidden=(6, 16), points=(8 * 50,))
    stop = lambda record, state: record["slab"] >= 4 and record["step"] >= 3  # noqa: E731
    marched = pinn.march(problem, KEY, slabs=80, steps=12 * 80, callback=stop)
    assert marched.reason.tolist()[:4] == ["converged"] * 4  # on points that it had not seen
    assert all(slab.history["step"][-1] <= 8 for slab in marched.slabs)
    assert marched.slabs[4].history["relative_l2"][-1] < 1e-11
    # Slabs share one memory of the past, of which each knows its own.
    memories = {id(slab.problem.network.earlier) for slab in marched.slabs}
    assert len(memories) == 1
    x = jnp.array([0.001, 0.3])
    np.testing.assert_array_equal(marched.slabs[0](x), marched(x))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: pinn.Polynomial([0], [0], 3), ValueError, ["`low`", "below"]),
        (lambda: pinn.Polynomial([0], [1], 0), ValueError, ["`degree`", "0"]),
        (lambda: pinn.Polynomial([0], [1], 2)(jnp.zeros((3, 1)), jnp.zeros(2)), ValueError, ["1 coord", "2"]),
        (lambda: pinn.Series(pinn.MLP([1, 5]), -1, 2.0, 2), ValueError, ["`axis`", "-1"]),
        (lambda: pinn.Series(pinn.MLP([1, 5]), 1, 0.0, 2), ValueError, ["`period`", "0.0"]),
        (lambda: pinn.Series(pinn.MLP([1, 5]), 1, 2.0, 0), ValueError, ["`modes`", "0"]),
        (lambda: _at(pinn.Series(pinn.MLP([1, 4]), 1, 2.0, 2), 2), ValueError, ["5 outputs", "(4,)"]),
        (lambda: _at(pinn.Series(pinn.MLP([1, 5]), 2, 2.0, 2), 2), ValueError, ["`axis` is 2", "2 coord"]),
        (lambda: _block(RING, grid=(3,)), ValueError, ["`grid`", "2 coordinates", "(3,)"]),
        (lambda: _block(RING, grid=(3, 0)), ValueError, ["`grid[1]`", "0"]),
        (lambda: _block(RING, grid=(3, 4), points=11), ValueError, ["`points`", "12", "11"]),
        (lambda: _block(RING.initial(), grid=(3, 4)), ValueError, ["`grid`", "SpaceTime"]),
        (lambda: _block(pinn.Ball([0, 0], 1), grid=(3, 4)), ValueError, ["`grid`", "Ball"]),
        (lambda: _block(pinn.Points(np.zeros((3, 2))), grid=(3, 4)), ValueError, ["`grid`", "Points"]),
    ],
)
def test_errors_name_the_argument(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def _at(network, dim):
    return network(network.init(KEY), jnp.zeros(dim))


def _block(domain, **options):
    return pinn.Block("all", lambda u, x: u(x), domain, **options)
