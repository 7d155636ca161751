"""Combined shapes: areas, uniform points and outward normals against exact ones; conditions on boundaries."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from snapgrad import pinn

KEY = jax.random.key(0)
COUNT = 6000
CLOUD = pinn.Points(np.zeros((3, 2)))
SQUARE, CORNER = pinn.Box([0, 0], [1, 1]), pinn.Box([0.5, 0.5], [1, 1])
# Shapes with their area and circumference; the same L three times, with edges shared in other ways.
SHAPES = {
    "L by difference": (lambda: SQUARE - CORNER, 3 / 4, 4),
    "L by union": (lambda: pinn.Box([0, 0], [1, 0.5]) | pinn.Box([0, 0], [0.5, 1]), 3 / 4, 4),
    "L by vertices": (
        lambda: pinn.Polygon([[0, 0], [0, 1], [0.5, 1], [0.5, 0.5], [1, 0.5], [1, 0]]),
        3 / 4,
        4,
    ),
    "annulus": (lambda: pinn.Ball([0, 0], 2) - pinn.Ball([0, 0], 1), 3 * np.pi, 6 * np.pi),
    "channel": (
        lambda: pinn.Box([0, 0], [3, 1]) - pinn.Ball([0.8, 0.5], 0.2),
        3 - 0.04 * np.pi,
        8 + 0.4 * np.pi,
    ),
    "half disc": (lambda: pinn.Ball([1, 1], 1) & pinn.HalfSpace([1, 1], [1, 1]), np.pi / 2, np.pi + 2),
    "two squares side by side": (lambda: SQUARE | pinn.Box([1, 0], [2, 1]), 2, 6),
    "shell": (lambda: pinn.Ball([0, 0, 0], 1) - pinn.Ball([0, 0, 0], 0.5), 7 / 6 * np.pi, 5 * np.pi),
    "two intervals": (lambda: pinn.Box(0, 3) - pinn.Box(1, 2), 2, 4),
}


@cache
def made(name):
    return SHAPES[name][0]()


@pytest.fixture(scope="module")
def ring():
    return made("annulus")


@eqx.filter_jit
def drawn(domain, how, count=COUNT):
    return getattr(domain, how)(KEY, count)


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_and_normals(name):
    """Boundary points lie on the boundary, and a step along the normal leaves the shape."""
    shape, (_, volume, area) = made(name), SHAPES[name]
    boundary = shape.boundary(normals=True)
    np.testing.assert_allclose([shape.volume, boundary.area], [volume, area], rtol=3e-3)
    assert bool(shape.contains(drawn(shape, "spread")).all())
    sites = drawn(boundary, "sample")
    x, normal = sites.x, sites.columns["normal"]
    np.testing.assert_allclose(jnp.linalg.norm(normal, axis=1), 1, rtol=1e-12)
    assert bool(shape.contains(x - 1e-7 * normal).all()) and not bool(shape.contains(x + 1e-7 * normal).any())
    # Gauss: the mean of n over a closed surface is zero, and that of x·n is d · volume / area.
    np.testing.assert_allclose(jnp.mean(normal, axis=0), 0, atol=5 / np.sqrt(COUNT))
    flux = jnp.sum(x * normal, axis=1)
    assert abs(float(jnp.mean(flux)) - shape.dim * volume / area) <= 5 * float(jnp.std(flux)) / np.sqrt(COUNT)


@pytest.mark.parametrize("name", [name for name in SHAPES if name.startswith("L")])
def test_points_of_an_l_are_uniform(name):
    """χ² over the twelve small squares of the L, and over sixteen pieces of its edge."""
    shape = made(name)
    x = np.asarray(drawn(shape, "sample"))
    cells = np.bincount(np.floor(4 * x).astype(int) @ [4, 1], minlength=16).reshape(4, 4)
    assert not cells[2:, 2:].any()
    inside = np.concatenate([cells[:2].ravel(), cells[2:, :2].ravel()])
    assert chisquare(inside).pvalue > 1e-3
    spread = np.asarray(drawn(shape, "spread"))
    even = np.bincount(np.floor(4 * spread).astype(int) @ [4, 1], minlength=16)
    assert np.std(even[even > 0]) < np.sqrt(COUNT / 12) / 3  # far more even than independent points
    edge = np.asarray(drawn(shape.boundary(), "sample"))
    pieces = np.floor(4 * np.minimum(edge, 1 - 1e-9)).astype(int) @ [4, 1]
    lines = [edge[:, axis] == value for value in (0, 1, 0.5) for axis in (0, 1)]
    assert np.all(np.any(lines, axis=0))
    sides = np.argmax(lines, axis=0)
    counts = np.unique(16 * sides + pieces, return_counts=True)[1]
    assert len(counts) == 16 and chisquare(counts).pvalue > 1e-3


def test_points_of_an_annulus_are_uniform(ring):
    radius = np.linalg.norm(drawn(ring, "sample"), axis=1)
    assert chisquare(np.histogram(radius**2, bins=10, range=(1, 4))[0]).pvalue > 1e-3
    edge = np.asarray(drawn(ring.boundary(), "sample"))
    inner = np.linalg.norm(edge, axis=1) < 1.5
    assert abs(inner.mean() - 1 / 3) < 5 * np.sqrt(2 / 9 / COUNT)
    angle = np.arctan2(edge[:, 1], edge[:, 0])
    assert chisquare(np.histogram(angle, bins=12, range=(-np.pi, np.pi))[0]).pvalue > 1e-3


def test_normals_are_the_analytic_ones(ring):
    circle = ring.boundary()
    for x, expected in (([0.6, 0.8], [-0.6, -0.8]), ([-1.2, 1.6], [-0.6, 0.8])):
        np.testing.assert_allclose(circle.normal(jnp.array(x)), expected, atol=1e-12)
    box = pinn.Box([0, 0, 0], [1, 2, 3])
    np.testing.assert_array_equal(box.boundary().normal(jnp.array([0.5, 0.0, 1.0])), [0, -1, 0])
    np.testing.assert_array_equal(box.boundary().normal(jnp.array([0.5, 1.0, 3.0])), [0, 0, 1])
    triangle = pinn.Polygon([[0, 0], [0, 3], [4, 0]])  # clockwise
    np.testing.assert_allclose(triangle.boundary().normal(jnp.array([2.0, 1.5])), [0.6, 0.8], atol=1e-12)


def test_periodic_sides_are_no_boundary():
    """A channel that is periodic along its length, with an obstacle."""
    channel = pinn.Box([0, 0], [2, 1], periodic=[True, False]) - pinn.Ball([1, 0.5], 0.25)
    boundary = channel.boundary(normals=True)
    np.testing.assert_allclose(boundary.area, 4 + np.pi / 2, rtol=3e-3)
    assert channel.periods == {0: 2.0}
    sites = drawn(boundary, "sample", 500)
    walls = np.isin(np.asarray(sites.x[:, 1]), [0, 1])
    np.testing.assert_array_equal(sites.columns["normal"][walls, 0], 0)
    np.testing.assert_allclose(
        np.linalg.norm(sites.x[~walls] - np.array([[1, 0.5]]), axis=1), 0.25, rtol=1e-9
    )


def test_parts_of_a_boundary():
    channel = made("channel")
    inlet = channel.boundary(where=lambda x: x[0] < 1e-9, normals=True)
    sites = drawn(inlet, "spread", 200)
    assert bool((sites.x[:, 0] == 0).all())
    np.testing.assert_array_equal(sites.columns["normal"], np.tile([-1.0, 0.0], (200, 1)))
    np.testing.assert_allclose(inlet.area, 1, rtol=3e-2)
    moving = pinn.SpaceTime(channel, 1, 3)
    assert bool(channel.contains(drawn(moving, "spread", 200)[:, 1:]).all())
    cylinder = moving.boundary(normals=True, where=lambda x: jnp.linalg.norm(x - jnp.array([0.8, 0.5])) < 0.3)
    sites = drawn(cylinder, "sample", 200)
    inward = jnp.array([[0.8, 0.5]]) - sites.x[:, 1:]
    np.testing.assert_allclose(sites.columns["normal"], jnp.pad(inward / 0.2, ((0, 0), (1, 0))), atol=1e-10)
    assert float(sites.x[:, 0].min()) < 1.2 and float(sites.x[:, 0].max()) > 2.8


def test_float32_finds_the_same_boundary():
    with jax.enable_x64(False):
        ring = pinn.Ball([0, 0], 2) - pinn.Ball([0, 0], 1)
        sites = drawn(ring.boundary(normals=True), "sample", 500)
        radius = jnp.linalg.norm(sites.x, axis=1)
        outward = jnp.where(radius > 1.5, 1.0, -1.0) / radius
        np.testing.assert_allclose(sites.columns["normal"], sites.x * outward[:, None], atol=1e-5)
        np.testing.assert_allclose(ring.boundary().area, 6 * np.pi, rtol=3e-3)


class Exact(eqx.Module):
    """A network that is a known function, times one parameter of one."""

    function: object = eqx.field(static=True)

    def init(self, key):
        del key
        return {"a": jnp.ones(())}

    def __call__(self, params, x):
        return params["a"] * self.function(x)


def test_conditions_hold_for_the_solution(ring):
    """u = log r on a ring, whose flux is −1 through the inner circle and ½ through the outer one."""
    domain = pinn.SpaceTime(ring, 0, 1)
    angle = np.linspace(0, 6, 9)
    cloud = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    for where, radius in (
        (ring, jnp.linalg.norm),
        (domain, lambda x: jnp.linalg.norm(x[1:])),
    ):
        blocks = [
            pinn.Dirichlet(where, lambda x: jnp.log(radius(x)), 20),
            pinn.Neumann(where, lambda x: jnp.where(radius(x) > 1.5, 0.5, -1.0), 20),
            pinn.Robin(where, 2.0, lambda x: radius(x), lambda x: 2 * jnp.log(radius(x)) + 1, 20,
                       where=lambda x: x @ x > 2),
        ]  # fmt: skip
        if where is ring:
            blocks.append(pinn.Neumann(pinn.Points(cloud, normal=cloud), 1.0, name="cloud"))
            blocks.append(
                pinn.Neumann(ring.boundary(normals=True, where=lambda x: x @ x > 2), 0.5, 5, name="n")
            )
            blocks.append(pinn.Dirichlet(pinn.Sphere([0, 0], 2), np.log(2), 5, name="sphere"))
        problem = pinn.PINN(Exact(lambda x: jnp.log(radius(x))), blocks)
        found = eqx.filter_jit(problem.residuals)(problem.init(KEY), problem.draw(KEY))
        for name, residual in found.items():
            np.testing.assert_allclose(residual, 0, atol=1e-12, err_msg=name)


def test_laplace_on_an_annulus_with_two_kinds_of_condition(ring):
    exact = lambda x: jnp.exp(x[0]) * jnp.sin(x[1])  # noqa: E731
    flux = lambda x: -pinn.directional(exact, x, x)  # noqa: E731
    problem = pinn.PINN(
        pinn.MLP([2, 16, 1]),
        [
            pinn.Block("interior", lambda u, x: pinn.laplacian(u, x), ring, 150),
            pinn.Neumann(ring, flux, 20, where=lambda x: x @ x < 2),
            pinn.Dirichlet(ring, exact, 30, where=lambda x: x @ x > 2),
        ],
        exact,
    )
    assert pinn.solve(problem, KEY, steps=100).history["relative_l2"][-1] < 1e-3


def test_adaptive_points_carry_their_normals(ring):
    problem = pinn.PINN(Exact(lambda x: jnp.log(x @ x)), [pinn.Neumann(ring, 1.0, 64)])
    sampler = pinn.ResidualAdaptive(problem, refresh_every=1)
    params = problem.init(KEY)

    @eqx.filter_jit
    def second(key):
        state = sampler.init(key)
        linearise = lambda batch: problem.linearise(params, batch)  # noqa: E731
        _, state = sampler.draw(key, state, linearise)
        return sampler.draw(jax.random.key(1), state, linearise)[0]

    sites = second(KEY)["neumann"].points
    outward = np.where(np.linalg.norm(sites.x, axis=1) > 1.5, 0.5, -1.0)
    np.testing.assert_allclose(sites.columns["normal"], sites.x * outward[:, None], atol=1e-10)


def test_errors_say_what_is_wrong():
    half = pinn.HalfSpace([0, 0], [1, 0])
    for give, error, words in (
        (lambda: SQUARE - pinn.Ball([0.5, 0.5], 1), ValueError, "difference of the two shapes covers none"),
        (lambda: SQUARE & pinn.Box([2, 2], [3, 3]), ValueError, "apart"),
        (lambda: SQUARE | pinn.Box(0, 1), ValueError, "2 and 1"),
        (lambda: SQUARE | 3, TypeError, "unsupported operand"),
        (lambda: half.sample(KEY, 3), ValueError, "no bounds"),
        (lambda: (SQUARE | half).sample(KEY, 3), ValueError, "no bounds"),
        (lambda: (half & pinn.HalfSpace([0, 0], [0, 1])).boundary(), ValueError, "no bounds"),
        (lambda: pinn.HalfSpace([0, 0], [0, 0]), ValueError, "`normal` must have a direction"),
        (lambda: pinn.Polygon([[0, 0], [1, 1], [1, 0], [0, 1]]), ValueError, "edges 0 and 2"),
        (lambda: pinn.Polygon([[0, 0], [1, 1], [1, 1]]), ValueError, "differ from one to the next"),
        (lambda: pinn.Polygon([[0, 0], [1, 1], [1, 1.0001]]), ValueError, "covers less than 0.2%"),
        (lambda: pinn.Polygon([[0, 0], [1, 1]]), ValueError, "n ≥ 3"),
        (lambda: SQUARE.boundary(where=lambda x: x[0] > 2), ValueError, "`where` chooses covers none"),
        (lambda: SQUARE.boundary(where=lambda x: x), TypeError, "`where` must return true or false"),
        (lambda: SQUARE.contains(jnp.zeros(3)), ValueError, "points of 2 coordinates"),
        (lambda: pinn.Dirichlet(CLOUD, 0.0, where=lambda x: x[0] > 0), ValueError, "needs a shape"),
        (lambda: pinn.Points(np.zeros((3, 2)), normal=np.zeros((4, 2))), ValueError, "must have 3 entries"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            give()
