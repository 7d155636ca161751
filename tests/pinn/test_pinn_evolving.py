"""Networks that hold the start of an evolution: exact there for any weights, and handed on by a march."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad import pinn

KEY = jax.random.key(0)
PERIODIC = pinn.SpaceTime(pinn.Box([-1], [1], periodic=True), 0.5, 2)
WALLS = pinn.SpaceTime(pinn.Box([-1], [1]), 0.5, 2)
DISC = pinn.SpaceTime(pinn.Ball([0, 0], 1), 0.5, 2)
POINTS = jnp.linspace(-1, 1, 7)
TIMES = (0.5, 0.8, 1.0, 1.7, 2.0)


def smooth(x):
    return jnp.exp(jnp.sin(jnp.pi * x[1] + 0.3))


def front(x):
    """As wide as a hundredth of the box, and zero at both ends."""
    return (1 - x[1] ** 2) * jnp.tanh(50 * (x[1] - 0.1))


def hill(x):
    return jnp.exp(-(x[1] ** 2) - x[1] * x[2])


def kink(x):
    return jnp.exp(x[0]) * x[1] ** 2


def nested(fn, x, axes):
    """A partial derivative by nested differentiation."""
    for axis in axes:
        fn = (lambda inner, axis: lambda x: jax.jacfwd(inner)(x)[..., axis])(fn, axis)
    return fn(x)


@pytest.mark.parametrize(("fn", "domain"), [(smooth, PERIODIC), (front, WALLS), (hill, DISC)])
def test_the_start_holds_with_its_derivatives(fn, domain):
    """Whatever the weights, on any domain of space."""
    network = pinn.Evolving(pinn.network(domain, (5, 5)), domain, fn)
    params, orders = network.init(KEY), [(), (1,), (1, 1), (1, 1, 1), (1, domain.dim - 1, 1, 1)]
    for x in domain.initial().spread(KEY, 5):
        found = pinn.partials(lambda x: network(params, x), x, orders)
        expected = [nested(fn, x, axes) for axes in orders]
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_later_the_network_speaks():
    inner = pinn.network(PERIODIC, (5,))
    network = pinn.Evolving(inner, PERIODIC, smooth)
    params, x = network.init(KEY), jnp.array([1.1, 0.2])
    expected = smooth(x) + 0.6 / 1.5 * inner(params, jnp.array([0.6, 0.2]))
    np.testing.assert_allclose(network(params, x), expected, rtol=1e-13)
    moved = x + jnp.array([0, 2.0])  # one period on
    np.testing.assert_allclose(network(params, moved), network(params, x), rtol=1e-12)


def one_by_one(inner, weights, start, velocity, lift):
    """Slab after slab, each from where the one before is at its end: what a march means.

    A network sees a time that takes as long in each slab as in the mean one.
    """
    mean = (TIMES[-1] - TIMES[0]) / (len(TIMES) - 1)
    rate = lambda u: lambda x: nested(u, x, (0,))  # noqa: E731
    lift = lift or (lambda x: jnp.zeros(()))

    def slab(u, v, begin, end, params):
        def found(x):
            first, local = x.at[0].set(begin), x[0] - begin
            s = local / (end - begin)
            out = inner(params, x.at[0].set(mean * s))
            known = lift(x) + u(first) - lift(first)
            if v is None:
                return known + s * out
            return known + local * (v(first) - rate(lift)(first)) + s**2 * out

        return found

    found = [slab(start, velocity, *TIMES[:2], weights[0])]
    for begin, end, params in zip(TIMES[1:], TIMES[2:], weights[1:], strict=False):
        found.append(slab(found[-1], velocity and rate(found[-1]), begin, end, params))
    return found


def handed_on(inner, weights, **options):
    """The networks of as many slabs as there are weights."""
    found = [pinn.Evolving(inner, WALLS, smooth, **options).over(TIMES)]
    for params in weights[:-1]:
        found.append(found[-1].after(params))
    return found


ORDERS = [(), (0,), (1,), (0, 1), (1, 1), (0, 0)]


@pytest.mark.parametrize(("velocity", "lift"), [(None, None), (None, kink), (front, kink)])
def test_slabs_follow_each_other(velocity, lift):
    """Three slabs of four, of different lengths: the last one speaks for all times, with all derivatives."""
    inner = pinn.network(WALLS, (4, 4))
    weights = [inner.init(jax.random.key(i)) for i in range(3)]
    expected = one_by_one(inner, weights, smooth, velocity, lift)
    network = handed_on(inner, weights, velocity=velocity, lift=lift)[-1]
    u = lambda x: network(weights[-1], x)  # noqa: E731
    for slab, times in enumerate([(0.5, 0.6), (0.8, 0.9), (1.0, 1.4)]):  # at a border the later one counts
        x = jnp.stack([jnp.array(times), jnp.array([0.3, -0.6])], axis=1)
        true = jax.jit(jax.vmap(lambda x, v=expected[slab]: jnp.stack([nested(v, x, a) for a in ORDERS])))(x)
        found = jax.jit(jax.vmap(lambda x: jnp.stack(pinn.partials(u, x, ORDERS))))(x)
        np.testing.assert_allclose(found, true, rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose(jax.vmap(jax.grad(u))(x), true[:, 1:3], rtol=1e-10, atol=1e-12)


def test_rows_have_nothing_of_the_past():
    """Rows of the Jacobian are those by automatic differentiation, in several dimensions of space too."""

    def residual(u, x):
        value, gradient, laplace = pinn.derivatives(u, x, slice(1, None))
        return gradient[0] + value**2 - laplace

    inner = pinn.network(DISC, (4, 4))
    weights = [inner.init(jax.random.key(i)) for i in range(3)]
    network = pinn.Evolving(inner, DISC, hill).over(TIMES).after(weights[0]).after(weights[1])
    domain = pinn.SpaceTime(DISC.space, *TIMES[2:4])
    problem = pinn.PINN(network, [pinn.Block("interior", residual, domain, 6)])
    params, batch = problem.init(KEY) | {"network": weights[2]}, problem.draw(KEY)
    dense = jax.jit(jax.jacobian(lambda p: problem.residuals(p, batch)["interior"]))(params)
    dense = jnp.concatenate([leaf.reshape(6, -1) for leaf in jax.tree.leaves(dense)], axis=1)
    gram = problem.linearise(params, batch).jacobian.gram()
    np.testing.assert_allclose(gram, dense @ dense.T / 6, rtol=1e-10)


def test_float32_keeps_the_derivatives_of_a_start():
    """What three slabs have left, beside the same in float64: stored values would be at 1e-2."""
    whole = pinn.network(WALLS, (16, 16), activation="tanh")
    weights = [jax.tree.map(np.float32, whole.init(jax.random.key(i))) for i in range(3)]

    def curvature():
        domain = pinn.SpaceTime(pinn.Box([-1], [1]), 0.5, 2)
        network = pinn.Evolving(pinn.network(domain, (16, 16), activation="tanh"), domain, smooth).over(TIMES)
        for params in weights[:2]:
            network = network.after(jax.tree.map(lambda p: jnp.asarray(p, float), params))
        params = jax.tree.map(lambda p: jnp.asarray(p, float), weights[2])
        u = lambda x: network(params, x)  # noqa: E731
        points = jnp.stack([jnp.full(50, 1.0), jnp.linspace(-1, 1, 50)], axis=1)
        return np.asarray(jax.jit(jax.vmap(lambda x: pinn.derivative(u, x, (1, 1))))(points))

    exact = curvature()
    with jax.enable_x64(False):
        rounded = curvature()
    assert rounded.dtype == np.float32
    np.testing.assert_allclose(rounded, exact, atol=3e-6 * np.max(np.abs(exact)))


def test_several_outputs_and_walls_inside():
    """With a hard network inside and a start that vanishes there, walls hold exactly at all times."""
    walls = pinn.Hard.box(pinn.network(WALLS, (5,), outputs=2), WALLS)
    start = lambda x: jnp.stack([front(x), 1 - x[1] ** 2])  # noqa: E731
    network = pinn.Evolving(walls, WALLS, start)
    params = network.init(KEY)
    u = jax.vmap(lambda x: network(params, x))
    np.testing.assert_allclose(u(jnp.array([[0.7, -1.0], [1.9, 1.0]])), np.zeros((2, 2)), atol=1e-15)
    x = jnp.array([[0.5, 0.3]])
    np.testing.assert_allclose(u(x)[0], start(x[0]), rtol=1e-13)


DOMAIN = pinn.SpaceTime(pinn.Box([-1], [1], periodic=True), 0, 1)
OPTIONS = {"slabs": 3, "steps": 120, "record_every": 20}


def decay(x):
    """u_t = u_xx/5."""
    return jnp.exp(-0.2 * jnp.pi**2 * x[0]) * jnp.sin(jnp.pi * x[1])


def heat(u, x):
    _, (u_t, _), u_xx = pinn.derivatives(u, x, 1)
    return u_t - u_xx / 5


BLOCKS = [pinn.Block("interior", heat, DOMAIN, 120)]
PROBLEM = pinn.PINN(pinn.Evolving(pinn.network(DOMAIN, (6,)), DOMAIN, decay), BLOCKS, decay)


@pytest.fixture(scope="module")
def marched():
    return pinn.march(PROBLEM, KEY, **OPTIONS)


def test_a_march_hands_it_on(marched):
    """Without a block for the start: slabs meet to rounding, and the error is small at all times."""
    assert marched.relative_l2 < 1e-3
    for (before, after), time in zip(pairwise(marched.slabs), marched.times[1:-1], strict=True):
        points = jnp.stack([jnp.full_like(POINTS, time), POINTS], axis=1)
        np.testing.assert_allclose(after(points), before(points), atol=1e-13)
        slope = [jax.vmap(lambda x, u=u: pinn.derivative(u, x, (1, 1)))(points) for u in (before, after)]
        np.testing.assert_allclose(*slope, atol=1e-10)


def test_all_slabs_share_one_program(marched):
    """They differ in numbers alone."""
    first, *others = (slab.problem for slab in marched.slabs)
    for other in others:
        assert jax.tree.structure(first) == jax.tree.structure(other)
        for one, two in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
            assert (one.shape, one.dtype, one.weak_type) == (two.shape, two.dtype, two.weak_type)


def test_interrupted_and_resumed_to_the_same_bytes(marched, tmp_path):
    def stop(record, state):
        if record["slab"] == 1 and record["step"] == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pinn.march(PROBLEM, KEY, checkpoint=tmp_path, callback=stop, **OPTIONS)
    resumed = pinn.march(PROBLEM, KEY, checkpoint=tmp_path, **OPTIONS)
    for one, other in zip(jax.tree.leaves(resumed.params), jax.tree.leaves(marched.params), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_the_last_slab_speaks_for_all_times(marched):
    """The march is one pass through the networks of all slabs, and what each of them has said."""
    for slab, (begin, end) in zip(marched.slabs, pairwise(marched.times), strict=True):
        time = np.linspace(begin, end, 4)[:-1]
        points = jnp.stack([time, jnp.full(3, 0.3)], axis=1)
        np.testing.assert_allclose(marched(points), slab(points), atol=1e-14)
        np.testing.assert_allclose(
            *[jax.vmap(lambda x, u=u: pinn.time_derivative(u, x))(points) for u in (marched, slab)],
            rtol=1e-10,
        )


def test_a_march_in_the_plane():
    """Without a block for the start, in two dimensions of space."""
    domain = pinn.SpaceTime(pinn.Box([-1, -1], [1, 1], periodic=True), 0, 1)

    def plane(x):
        return jnp.exp(-0.2 * jnp.pi**2 * x[0]) * jnp.sin(jnp.pi * x[1]) * jnp.cos(jnp.pi * x[2])

    def spread(u, x):
        _, gradient, laplace = pinn.derivatives(u, x, (1, 2))
        return gradient[0] - laplace / 10

    network = pinn.Evolving(pinn.network(domain, (16,)), domain, plane)
    problem = pinn.PINN(network, [pinn.Block("interior", spread, domain, 300)], plane)
    assert pinn.march(problem, KEY, slabs=2, steps=200).relative_l2 < 0.02


def test_advice_speaks_of_slabs():
    assert "sg.pinn.march" in pinn.advice(PROBLEM)


def test_saved_and_loaded(marched, tmp_path):
    solution = marched.slabs[1]
    solution.save(tmp_path / "slab.snap")
    again = pinn.load(tmp_path / "slab.snap", solution.problem)
    points = jnp.array([[0.5, 0.3], [0.6, -0.2]])
    np.testing.assert_array_equal(again(points), solution(points))


def test_a_march_hands_on_velocities():
    """u_tt = u_xx with u = sin πx at rest at first, between walls."""
    domain = pinn.SpaceTime(pinn.Box([0], [1]), 0, 1)

    def string(x):
        return jnp.cos(jnp.pi * x[0]) * jnp.sin(jnp.pi * x[1])

    def wave(u, x):
        u_tt, u_xx = pinn.partials(u, x, [(0, 0), (1, 1)])
        return u_tt - u_xx

    inner = pinn.Hard.box(pinn.network(domain, (6,)), domain)
    network = pinn.Evolving(inner, domain, string, velocity=lambda x: jnp.zeros(()))
    problem = pinn.PINN(network, [pinn.Block("interior", wave, domain, 100)], string)
    marched = pinn.march(problem, KEY, slabs=2, steps=80)
    assert marched.relative_l2 < 1e-3
    x = jnp.array([[0.5, 0.3]])
    rates = [jax.vmap(lambda x, u=u: pinn.time_derivative(u, x))(x) for u in marched.slabs]
    np.testing.assert_allclose(*rates, rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"domain": pinn.Box([0, 0], [1, 1])}, TypeError, "`domain` must be a sg.pinn.SpaceTime, got Box"),
        ({"domain": pinn.SpaceTime(pinn.Box([0], [1]), 1, 1)}, ValueError, "must last some time"),
        ({"start": 3.0}, TypeError, "`start` must be a function of a point, got float"),
        ({"lift": 3.0}, TypeError, "`lift` must be a function"),
        ({"velocity": 0.0}, TypeError, "`velocity` must be a function"),
        ({"network": 3}, TypeError, "`network` must have"),
    ],
)
def test_what_it_refuses(change, error, message):
    given = {"network": pinn.MLP([2, 3, 1]), "domain": WALLS, "start": front} | change
    with pytest.raises(error, match=message):
        pinn.Evolving(given.pop("network"), given.pop("domain"), given.pop("start"), **given)
