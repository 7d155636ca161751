"""The zoo: its solutions solve their equations, and no seed stalls."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

from snapgrad import pinn
from snapgrad.pinn._references import allen_cahn_grid, burgers_grid

KEY = jax.random.key(0)

# Hidden layers, points per step of each block, steps, and the error below which every seed must end.
SMALL = {
    "poisson-1d": ((16,), (64, 2), 300, 1e-5),
    "poisson-2d": ((16,), (200, 40), 300, 3e-4),
    "poisson-5d": ((16, 16), (500, 100), 300, 1e-2),
    "poisson-10d": ((16,), (60, 30), 300, 0.1),
    "poisson-100d": ((128,), (100, 100), 400, 0.044),
    "heat-1d": ((16,), (150, 20, 20), 300, 1e-3),
    "heat-4d": ((16,), (300, 40, 40), 300, 0.03),
    "burgers-1d": ((12, 12), (500, 40, 40), 300, 2e-3),
    "allen-cahn-1d": ((12, 12), (500, 40, 40), 300, 2e-3),
    "helmholtz-2d": ((16,), (200, 40), 300, 0.05),
    "nonlinear-2d": ((16,), (200, 40), 300, 1e-3),
    "fokker-planck-9d": ((64,), (300, 200), 200, 0.1),
    "inverse-heat-1d": ((12,), (120, 40), 300, 0.03),
}


@lru_cache
def small(name):
    hidden, points, _, _ = SMALL[name]
    return pinn.zoo(name, hidden=hidden, points=points)


def worst_error(name, seeds, steps):
    found = [pinn.solve(small(name), jax.random.key(s), steps=steps, record_every=100) for s in range(seeds)]
    return max(solution.history["relative_l2"][-1] for solution in found)


def test_no_seed_stalls_with_many_rows(line):
    found = [pinn.solve(line, jax.random.key(s), steps=100, record_every=10) for s in range(3)]
    assert max(solution.history["relative_l2"][-1] for solution in found) < 1e-3


def test_no_seed_stalls_with_few_rows():
    assert worst_error("poisson-10d", 3, steps=100) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_no_seed_of_ten_stalls(name):
    *_, steps, bound = SMALL[name]
    assert worst_error(name, 10, steps) < bound


@pytest.mark.parametrize("name", pinn.NAMES)
def test_no_constant_passes(name):
    """The bounds are well below the error of the best constant function, not only below that of zero."""
    values = np.asarray(small(name).test[1])
    constant = np.linalg.norm(values - values.mean()) / np.linalg.norm(values)
    assert SMALL[name][-1] <= constant / 2


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("poisson-1d", "poisson-5d", "heat-4d") else ())
        for name in pinn.NAMES
    ],
)
def test_zoo_solutions_solve_their_equations(name):
    """The exact solution in place of the network: every residual vanishes."""
    problem = small(name)
    if problem.exact is None:
        return  # `test_reference_solutions` checks these
    truth = {"diffusivity": jnp.array(0.3)} if problem.unknowns else {}

    def residuals(key):
        batch = {block.name: jax.tree.map(lambda leaf: leaf[:5], block.draw(key)) for block in problem.blocks}
        return {
            block.name: jax.vmap(lambda x: block.residual(problem.exact, x, **truth))(batch[block.name])
            for block in problem.blocks
        }

    for block, values in jax.jit(residuals)(KEY).items():
        np.testing.assert_allclose(values, 0, atol=1e-10, err_msg=block)


def test_reference_solutions():
    """Burgers by Cole and Hopf's formula; Allen–Cahn by halving the step."""
    viscosity = 0.1 / np.pi
    points, values = burgers_grid(viscosity)
    chosen = np.flatnonzero((points[:, 0] > 0.2) & (np.abs(points[:, 1]) < 0.9))[::501]
    for t, x in points[chosen]:

        def weight(y):
            exponent = (1 + np.cos(np.pi * (x - y))) / (2 * np.pi * viscosity)
            return np.exp(-exponent - y**2 / (4 * viscosity * t))

        width = 12 * np.sqrt(2 * viscosity * t)
        top = quad(lambda y: np.sin(np.pi * (x - y)) * weight(y), -width, width, epsabs=1e-13, limit=200)[0]
        exact = -top / quad(weight, -width, width, epsabs=1e-13, limit=200)[0]
        found = values[np.flatnonzero((points == [t, x]).all(axis=1))[0]]
        assert abs(found - exact) < 1e-9
    coarse, fine = (allen_cahn_grid(0.01, 2.0, steps)[1] for steps in (2000, 4000))
    finest = allen_cahn_grid(0.01, 2.0)[1]
    assert np.abs(fine - finest).max() < 1e-6
    np.testing.assert_allclose(np.abs(coarse - finest).max() / np.abs(fine - finest).max(), 4, rtol=0.2)
