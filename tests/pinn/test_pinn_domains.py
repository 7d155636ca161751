"""Domains: points lie in them and are uniform or evenly spread."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

from snapgrad import pinn

KEY = jax.random.key(0)

DOMAINS = {
    "box": (
        pinn.Box([0, -1], [2, 3]),
        lambda x: (x >= jnp.array([[0, -1]])).all() & (x <= jnp.array([[2, 3]])).all(),
    ),
    "interval": (pinn.Box(1, 2), lambda x: ((x >= 1) & (x <= 2)).all()),
    "boundary": (
        pinn.Box([0, -1], [2, 3]).boundary(),
        lambda x: ((x[:, 0] == 0) | (x[:, 0] == 2) | (x[:, 1] == -1) | (x[:, 1] == 3)).all(),
    ),
    "walls": (
        pinn.Box([0, -1, 5], [2, 3, 6], periodic=[True, False, True]).boundary(),
        lambda x: ((x[:, 1] == -1) | (x[:, 1] == 3)).all() & (x[:, 0] > 0).all() & (x[:, 2] < 6).all(),
    ),
    "ball": (
        pinn.Ball([1, 0, 0], 2),
        lambda x: (jnp.linalg.norm(x - jnp.eye(1, 3), axis=1) <= 2 + 1e-12).all(),
    ),
    "sphere": (
        pinn.Ball([1, 0, 0], 2).boundary(),
        lambda x: jnp.allclose(jnp.linalg.norm(x - jnp.eye(1, 3), axis=1), 2),
    ),
    "space-time": (
        pinn.SpaceTime(pinn.Box([5], [6]), 0, 2),
        lambda x: ((x[:, 0] <= 2) & (x[:, 1] >= 5)).all(),
    ),
    "initial": (pinn.SpaceTime(pinn.Box([5], [6]), 1, 2).initial(), lambda x: (x[:, 0] == 1).all()),
    "lateral": (
        pinn.SpaceTime(pinn.Box([5], [6]), 0, 2).boundary(),
        lambda x: ((x[:, 1] == 5) | (x[:, 1] == 6)).all(),
    ),
}


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("how", ["sample", "spread"])
def test_points_are_in_their_domain(name, how):
    domain, inside = DOMAINS[name]
    x = getattr(domain, how)(KEY, 37)
    assert x.shape == (37, domain.dim) and bool(inside(x))


def test_points_are_uniform():
    """Means and shares against exact ones, within five standard errors."""
    count = 20_000
    box = pinn.Box([0, 0], [3, 1])
    edge = box.boundary().sample(KEY, count)
    long_sides = float(jnp.mean((edge[:, 1] == 0) | (edge[:, 1] == 1)))
    assert abs(long_sides - 6 / 8) < 5 * np.sqrt(0.75 * 0.25 / count)
    radius = jnp.linalg.norm(pinn.Ball([0, 0, 0], 1).sample(KEY, count), axis=1)
    assert abs(float(jnp.mean(radius**3)) - 0.5) < 5 / np.sqrt(12 * count)
    z = pinn.Sphere([0, 0, 0], 1).sample(KEY, count)[:, 2]  # Archimedes: uniform in [−1, 1]
    assert abs(float(jnp.mean(z**2)) - 1 / 3) < 5 * np.sqrt(4 / 45 / count)
    ends = pinn.Box(0, 1).boundary()
    assert all(sorted(ends.spread(jax.random.key(i), 2)[:, 0].tolist()) == [0, 1] for i in range(20))


def test_spread_points_integrate_better():
    box, count = pinn.Box([0, 0], [1, 1]), 512
    f = lambda x: jnp.exp(x[:, 0] - x[:, 1] ** 2)  # noqa: E731
    exact = (np.e - 1) * quad(lambda y: np.exp(-(y**2)), 0, 1)[0]
    errors = {
        how: np.std(
            [float(jnp.mean(f(getattr(box, how)(jax.random.key(i), count)))) - exact for i in range(20)]
        )
        for how in ("sample", "spread")
    }
    assert errors["spread"] < errors["sample"] / 5


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="`high` must have 2 entries"):
        pinn.Box([0, 0], [1])
    with pytest.raises(ValueError, match="`end` must not be before `start`"):
        pinn.SpaceTime(pinn.Box(0, 1), 1, 0)
    with pytest.raises(TypeError, match="`space` must have a boundary"):
        pinn.SpaceTime(pinn.Sphere([0, 0]), 0, 1).boundary()
    with pytest.raises(ValueError, match="`rows` must hold at least one array"):
        pinn.Points(())
    with pytest.raises(ValueError, match="`rows` must share the length"):
        pinn.Points((np.zeros((3, 2)), np.zeros(4)))
