"""Wrappers around networks: what they promise holds exactly for random weights, with derivatives, nested."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from snapgrad import pinn
from snapgrad.pinn._network import FIRST_FREQUENCY

KEY = jax.random.key(0)
POINTS = jax.random.uniform(jax.random.key(1), (5, 2), minval=-1, maxval=1)
SPACETIME = pinn.SpaceTime(pinn.Box([-1], [2]), 1, 3)


class Own:
    """The least that is a network."""

    def init(self, key):
        return jax.random.normal(key, (7,))

    def __call__(self, params, x):
        return jnp.sin(params[: x.shape[0]] @ x + params[5]) * params[6]


def inner(name, inputs, outputs=1):
    return {
        "own": Own(),
        "mlp": pinn.MLP([inputs, 5, outputs], "sin"),
        "equinox": pinn.Equinox(lambda key: eqx.nn.MLP(inputs, outputs, 4, 1, jnp.tanh, key=key)),
        "flax": pinn.Flax(nn.Sequential([nn.Dense(4), nn.tanh, nn.Dense(outputs)]), inputs),
    }[name]


def at(network, points, key=KEY):
    """Value, gradient and Laplacian at each point."""
    params = jax.tree.map(lambda leaf: leaf.astype(float), network.init(key))
    u = lambda x: jnp.reshape(network(params, x), ())  # noqa: E731
    return jax.jit(jax.vmap(lambda x: pinn.derivatives(u, x)))(jnp.asarray(points))


@pytest.mark.parametrize("name", ["own", "mlp", "equinox", "flax"])
def test_periodic_with_all_derivatives(name):
    """One period on, value, gradient and Laplacian are the same; half a period on they are not."""
    network = pinn.Periodic(inner(name, 5), {1: 0.7}, harmonics=2)
    assert network.features(2) == 5
    here, there, between = (at(network, POINTS + shift * jnp.array([[0, 0.7]])) for shift in (0, 3, 0.5))
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    assert jnp.max(jnp.abs(here.value - between.value)) > 1e-3
    assert jnp.max(jnp.abs(here.gradient[:, 0])) > 1e-3  # the other coordinate is still there


def test_fourier_features():
    """Given frequencies are those of the output, random ones have the scale asked for; all may be trained."""
    waves = jnp.array([[1.0, 2.0], [0.0, 3.0]])
    linear = pinn.Fourier(pinn.MLP([4, 1]), waves)
    params = linear.init(KEY)
    x, weights = POINTS[0], params[0]["W"][:, 0]
    expected = weights[:2] @ jnp.cos(waves @ x) + weights[2:] @ jnp.sin(waves @ x)
    np.testing.assert_allclose(linear(params, x), expected, rtol=1e-13)
    random = pinn.Fourier.random(Own(), 2, count=4000, scale=[1, 10], seed=1)
    assert random.features(2) == 8000 and random.frequencies.shape == (4000, 2)
    np.testing.assert_allclose(jnp.std(random.frequencies, axis=0), [1, 10], rtol=5 / np.sqrt(2 * 4000))
    assert not jnp.array_equal(pinn.Fourier.random(Own(), 2, 3).frequencies, random.frequencies[:3])
    trained = pinn.Fourier(pinn.MLP([4, 1]), waves, trained=True)
    slope = jax.grad(trained)(trained.init(KEY), x)
    assert jnp.all(slope["frequencies"] != 0) and slope["network"][0]["W"].shape == (4, 1)


def test_scaled():
    network = pinn.Scaled(pinn.MLP([2, 1]), [0, -3], [10, 5])
    params = network.init(KEY)
    corners = jnp.array([[0.0, -3.0], [10.0, 5.0], [5.0, 1.0]])
    inside = jax.vmap(lambda z: network.network(params, z))(jnp.array([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]]))
    np.testing.assert_allclose(jax.vmap(lambda x: network(params, x))(corners), inside, atol=1e-14)


@pytest.mark.parametrize("outputs", [1, 2])
def test_hard_conditions_of_your_own(outputs):
    """On the circle u is the lift; inside it is not; a distance for each output leaves some free."""
    lift = lambda x: jnp.full(outputs, x[0]) if outputs > 1 else x[0]  # noqa: E731
    network = pinn.Hard(inner("mlp", 2, outputs), lambda x: 1 - x @ x, lift)
    params = network.init(KEY)
    circle = jnp.array([0.6, 0.8])
    np.testing.assert_allclose(network(params, circle), np.full(network(params, circle).shape, 0.6))
    assert jnp.all(jnp.abs(network(params, circle / 2) - 0.3) > 1e-3)
    if outputs == 2:
        free = pinn.Hard(network.network, lambda x: jnp.array([1 - x @ x, 1.0]))
        out = free(params, circle)
        assert out[0] == 0 and out[1] == network.network(params, circle)[1]


def on_faces(box_or_time, axis, end, count=6):
    points = np.array(box_or_time.sample(KEY, count))
    points[:, axis] = box_or_time.bounds()[end][axis]
    return points


@pytest.mark.parametrize(
    ("faces", "given"),
    [
        (None, [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ([1], [(1, 0), (1, 1)]),
        ([(0, "high"), (1, "low")], [(0, 1), (1, 0)]),
    ],
)
def test_hard_box(faces, given):
    """The value holds on the faces named, and on no other."""
    box = pinn.Box([-1, 0], [2, 0.5])
    value = lambda x: jnp.sin(x[0]) + x[1]  # noqa: E731
    network = pinn.Hard.box(inner("mlp", 2), box, value, faces=faces)
    for axis in range(2):
        for end in range(2):
            points = on_faces(box, axis, end)
            error = at(network, points).value - jax.vmap(value)(points)
            assert ((axis, end) in given) == bool(jnp.max(jnp.abs(error)) < 1e-14)
    middle = pinn.Hard.box(inner("mlp", 2), box)
    params = middle.init(KEY)
    centre = jnp.array([0.5, 0.25])  # where the distance is one
    np.testing.assert_allclose(middle(params, centre), middle.network(params, centre), rtol=1e-14)


@pytest.mark.parametrize("velocity", [None, lambda x: jnp.cos(x[1])])
def test_hard_start_and_ends(velocity):
    """Initial value, velocity and moving ends at once, which agree where they meet."""
    ends = lambda x: x[0] * x[1] + (x[0] - 1) * (jnp.cos(x[1]) - x[1])  # noqa: E731
    start = lambda x: x[1] + (x[1] + 1) * (x[1] - 2)  # equal to the ends' value at the ends  # noqa: E731
    network = pinn.Hard.box(inner("mlp", 2), SPACETIME, ends, initial=start, velocity=velocity)
    for end in range(2):
        points = on_faces(SPACETIME, 1, end)
        np.testing.assert_allclose(at(network, points).value, jax.vmap(ends)(points), atol=1e-13)
    points = on_faces(SPACETIME, 0, 0)
    found = at(network, points)
    np.testing.assert_allclose(found.value, jax.vmap(start)(points), atol=1e-13)
    slopes = jax.vmap(lambda x: jnp.cos(x[1]))(points)
    assert (velocity is not None) == bool(jnp.max(jnp.abs(found.gradient[:, 0] - slopes)) < 1e-13)


def test_start_alone_on_any_domain_of_space():
    ball = pinn.SpaceTime(pinn.Ball([0, 0]), 0, 2)
    network = pinn.Hard.box(inner("mlp", 3, 2), ball, faces=(), initial=lambda x: x[1:])
    params = network.init(KEY)
    np.testing.assert_allclose(network(params, jnp.array([0.0, 0.3, 0.4])), [0.3, 0.4])
    assert jnp.all(network(params, jnp.array([1.0, 0.3, 0.4])) != jnp.array([0.3, 0.4]))


def test_default_network_follows_the_domain():
    """Scaled to the bounds, periodic where the domain is, and trained as any other."""
    domain = pinn.SpaceTime(pinn.Box([0, 2], [4, 3], periodic=[False, True]), 0, 10)
    assert domain.periods == {2: 1.0}
    network = pinn.network(domain, hidden=(6,), outputs=2, harmonics=2)
    params = network.init(KEY)
    assert params[0]["W"].shape == (6, 6) and params[-1]["W"].shape == (6, 2)
    x = jnp.array([3.0, 1.0, 2.0])
    np.testing.assert_allclose(network(params, x), network(params, x.at[2].add(1)), atol=1e-14)
    assert jnp.all(network(params, x) != network(params, x.at[1].add(4)))
    other = pinn.network(domain, hidden=(6,), periodic={1: 4.0})
    params = other.init(KEY)
    np.testing.assert_allclose(other(params, x), other(params, x.at[1].add(4)), atol=1e-14)
    low, high = pinn.SpaceTime(pinn.Ball([1, 1], 2), 0, 1).initial().bounds()
    np.testing.assert_allclose([low, high], [[0, -1, -1], [0, 3, 3]])
    assert jnp.isfinite(pinn.network(domain.initial(), (3,)).init(KEY)[0]["W"]).all()


def test_everything_nested_in_a_problem():
    """Hard, periodic and Fourier around an equinox module: rows of the residual are its derivatives."""
    domain = pinn.SpaceTime(pinn.Box([-1], [1], periodic=True), 0, 1)
    fourier = pinn.Fourier.random(inner("equinox", 6), inputs=3, count=3)
    network = pinn.Hard.box(
        pinn.Periodic(fourier, domain.periods), domain, initial=lambda x: jnp.sin(jnp.pi * x[1])
    )
    heat = lambda u, x: pinn.time_derivative(u, x) - pinn.laplacian(u, x, 1)  # noqa: E731
    problem = pinn.PINN(network, [pinn.Block("pde", heat, domain, 7)])
    params, batch = problem.init(KEY), problem.draw(KEY)
    rows = jax.jit(lambda p: problem.linearise(p, batch).jacobian.dense())(params)
    flat, unravel = ravel_pytree(params)
    direct = jax.jit(jax.jacfwd(lambda p: problem.residuals(unravel(p), batch)["pde"] / np.sqrt(7)))(flat)
    np.testing.assert_allclose(rows, direct, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("depth", [1, 4])
def test_sine_networks_start_with_even_layers(depth):
    """The mean squares of a hidden layer and of its slope stay as they are, whatever the depth."""
    network = pinn.MLP([2, *(depth * [400]), 1], "sin")
    params = network.init(KEY)

    def last(x):
        for layer in params[:-1]:
            x = jnp.sin(x @ layer["W"] + layer["b"])
        return x

    points = 2 * jax.random.uniform(KEY, (20, 2)) - 1
    values, slopes = jax.jit(lambda x: (jax.vmap(last)(x), jax.vmap(jax.jacfwd(last))(x)))(points)
    np.testing.assert_allclose(jnp.mean(values**2), 0.5, rtol=0.1)
    np.testing.assert_allclose(jnp.mean(slopes**2), FIRST_FREQUENCY**2 / 2, rtol=0.3)


def test_activations_by_name_and_unchanged_tanh():
    x = jnp.array([0.3, -0.2])
    for name, fn in (("tanh", jnp.tanh), ("sin", jnp.sin), ("gelu", jax.nn.gelu), ("swish", jax.nn.swish)):
        named, given = pinn.MLP([2, 4, 1], name), pinn.MLP([2, 4, 1], fn)
        params = named.init(KEY)
        assert named == given and float(named(params, x)) == float(given(given.init(KEY), x))
    layer = pinn.MLP([2, 4, 1]).init(KEY)[0]
    expected = jnp.sqrt(2 / 6) * jax.random.normal(jax.random.fold_in(KEY, 0), (2, 4))
    np.testing.assert_array_equal(layer["W"], expected)
    assert not layer["b"].any()


BOX = pinn.Box([0, 0], [1, 1])
MLP = pinn.MLP([2, 3, 1])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: pinn.MLP([2, 3, 1], "relux"), ValueError, "`activation` must be .*swish.* got 'relux'"),
        (lambda: pinn.Periodic(jnp.tanh, {0: 1}), TypeError, "`network` must have `init"),
        (lambda: pinn.Periodic(MLP, {}), TypeError, "`periods` must be a dictionary"),
        (lambda: pinn.Periodic(MLP, {-1: 1.0}), ValueError, "`periods` must have axes 0, 1"),
        (lambda: pinn.Periodic(MLP, {0: 0.0}), ValueError, r"`periods\[0\]` must be a length above 0"),
        (lambda: at(pinn.Periodic(MLP, {2: 1.0}), POINTS), ValueError, "names axis 2, but .* 2 coordinates"),
        (
            lambda: pinn.PINN(pinn.Periodic(MLP, {0: 1}), [pinn.Block("b", lambda u, x: u(x), BOX, 3)]),
            ValueError,
            r"^`network` inside sg\.pinn\.Periodic fails at a point of shape \(3,\); does it take that many",
        ),
        (
            lambda: at(pinn.Fourier(Own(), np.ones((2, 3))), POINTS),
            ValueError,
            "points of 3 coordinates, got 2",
        ),
        (
            lambda: pinn.Fourier.random(Own(), 2, 3, scale=[1, 2, 3]),
            ValueError,
            "`scale` must .* or 2 of them",
        ),
        (lambda: pinn.Scaled(MLP, [0, 1], [1, 1]), ValueError, "`low` must be below `high`"),
        (lambda: at(pinn.Hard(MLP, lambda x: x), POINTS), ValueError, r"`distance` must return one number"),
        (lambda: pinn.Hard.box(MLP, pinn.Ball([0, 0])), TypeError, "`domain` must be a box"),
        (lambda: pinn.Hard.box(MLP, BOX, faces=[(0, "left")]), ValueError, r"`faces` .* \[0, 1\].*'left'"),
        (
            lambda: pinn.Hard.box(MLP, SPACETIME, faces=[0]),
            ValueError,
            r"`faces` .* \[1\].* time have no faces",
        ),
        (lambda: pinn.Hard.box(MLP, BOX, faces=()), ValueError, "`faces` must name at least one face"),
        (lambda: pinn.Hard.box(MLP, BOX, initial=0), TypeError, "`initial` needs a sg.pinn.SpaceTime"),
        (lambda: pinn.Hard.box(MLP, SPACETIME, velocity=0), ValueError, "`initial` is missing"),
        (lambda: pinn.Hard.box(MLP, SPACETIME.initial(), initial=0), ValueError, "must last some time"),
        (lambda: pinn.Box([0, 0], [1, 1], periodic=[True]), ValueError, "`periodic` must be .* or 2 of them"),
        (lambda: pinn.Box([0], [1], periodic=True).boundary(), ValueError, "has no boundary"),
    ],
)
def test_errors_name_the_argument(make, error, text):
    with pytest.raises(error, match=text):
        make()
