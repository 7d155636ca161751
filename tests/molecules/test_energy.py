"""Local energies: exact eigenfunctions, the Hessian, and the gradient of the energy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import snapgrad as sg
from snapgrad import molecules


def energies(log_psi, potential, x, params=()):
    """Local energies in one compiled program: op by op this would be many."""
    return jax.jit(jax.vmap(lambda place: molecules.local_energy(log_psi, params, place, potential)))(x)


def r(x):
    return jnp.linalg.norm(x[0])


HYDROGENIC = {
    "1s": (1, lambda x: -r(x), -0.5),
    "2s": (1, lambda x: jnp.log(jnp.abs(1 - r(x) / 2)) - r(x) / 2, -0.125),
    "2p": (1, lambda x: jnp.log(jnp.abs(x[0, 2])) - r(x) / 2, -0.125),
    "3d": (1, lambda x: jnp.log(jnp.abs(x[0, 0] * x[0, 1])) - r(x) / 3, -1 / 18),
    "Li2+": (3, lambda x: -3 * r(x), -4.5),
}


@pytest.mark.parametrize("state", HYDROGENIC)
def test_hydrogenic_orbitals_have_a_constant_energy(state):
    charge, log_psi, exact = HYDROGENIC[state]
    ion = molecules.molecule({1: "H", 3: "Li"}[charge], charge=charge - 1)
    x = 2 * jax.random.normal(jax.random.key(0), (50, 1, 3))
    found = energies(lambda p, x: log_psi(x), molecules.coulomb(ion), x)
    np.testing.assert_allclose(found, exact, atol=1e-10)


def test_the_harmonic_oscillator_of_three_fermions():
    """Three of them in the lowest levels of one axis: ½·9 + (0 + 1 + 2) quanta."""

    def log_psi(p, x):
        matrix = jnp.stack([jnp.ones(3), x[:, 0], x[:, 0] ** 2])
        return sg.linalg.slogdet(matrix)[1] - jnp.sum(x**2) / 2

    x = jax.random.normal(jax.random.key(1), (50, 3, 3))
    found = energies(log_psi, lambda x: jnp.sum(x**2) / 2, x)
    np.testing.assert_allclose(found, 4.5 + 3, atol=1e-10)


def test_the_local_energy_is_that_of_the_hessian():
    net = molecules.FermiNet("Li", width=3, pair_width=2, layers=2, determinants=2, dtype=jnp.float64)
    params, potential = jax.jit(net.init)(jax.random.key(0)), molecules.coulomb(net.molecule)

    @jax.jit
    def by_hand(x):
        flat = lambda y: net(params, y.reshape(3, 3))  # noqa: E731
        slopes, hessian = jax.grad(flat)(x.reshape(-1)), jax.hessian(flat)(x.reshape(-1))
        return -(jnp.trace(hessian) + slopes @ slopes) / 2 + potential(x)

    x = jax.random.normal(jax.random.key(1), (5, 3, 3))
    np.testing.assert_allclose(energies(net, potential, x, params), jax.lax.map(by_hand, x), rtol=1e-10)


@pytest.mark.parametrize("slogdet", [sg.linalg.slogdet, jnp.linalg.slogdet])
@pytest.mark.parametrize("size", [1, 3, 13])
def test_the_laplacian_of_determinants(slogdet, size):
    weights = jax.random.normal(jax.random.key(0), (4, 2, size, size))
    start = jax.random.normal(jax.random.key(2), (2, size, size))

    def u(x):
        sign, log = slogdet(start + jnp.tanh(jnp.einsum("i,imab->mab", x, weights)))
        return jnp.sum(sign * jnp.exp(log - 3 * size / 2)) + jnp.sum(log)

    x = jax.random.normal(jax.random.key(1), (4,))
    found, exact = jax.jit(lambda x: (sg.pinn.laplacian(u, x), jnp.trace(jax.hessian(u)(x))))(x)
    np.testing.assert_allclose(found, exact, rtol=1e-8)


@pytest.mark.parametrize("size", [1, 2, 5, 12, 13])
def test_determinants_and_inverses(size):
    A = jax.random.normal(jax.random.key(size), (6, size, size))
    A = A.at[0, :, 0].set(0.0).at[1].set(A[1][::-1])
    sign, log = sg.linalg.slogdet(A)
    inverse, *_ = jax.jit(sg.linalg.inverse_slogdet)(A)
    numpy = np.linalg.slogdet(np.asarray(A))
    np.testing.assert_array_equal(sign, numpy[0])
    np.testing.assert_allclose(log[1:], numpy[1][1:], rtol=1e-10, atol=1e-12)
    assert sign[0] == 0 and log[0] == -jnp.inf
    np.testing.assert_array_equal(inverse[0], 0)
    np.testing.assert_allclose(inverse[1:] @ A[1:], np.broadcast_to(np.eye(size), (5, size, size)), atol=1e-8)
    slopes = jax.jit(jax.grad(lambda A: jnp.sum(jnp.where(jnp.isfinite(log), sg.linalg.slogdet(A)[1], 0))))(A)
    assert bool(jnp.isfinite(slopes).all())
    np.testing.assert_allclose(slopes[1:], jnp.swapaxes(inverse[1:], 1, 2), atol=1e-8)


def test_the_direction_of_steepest_descent_is_the_gradient_on_a_weighted_sample():
    """Jᵀr against finite differences of Σ w(θ) E with w ∝ |ψ(θ)|²/|ψ|² on fixed walkers and energies."""
    net = molecules.FermiNet("He", width=3, pair_width=2, layers=1, determinants=2, dtype=jnp.float64)
    problem = molecules.VMC(net, walkers=40)
    params = jax.jit(net.init)(jax.random.key(0))
    x = molecules.starting_positions(jax.random.key(1), net.molecule, 40, jnp.float64)
    local = jax.random.normal(jax.random.key(2), (40,)).at[3].set(jnp.nan)  # within the clip; one is dropped
    lin = problem.linearise(params, molecules.Walkers(x, local))
    flat, unravel = ravel_pytree(params)
    counted = jnp.isfinite(local)

    @jax.jit
    def energy(theta):
        move = jax.vmap(lambda x: net(unravel(theta), x) - net(params, x))(x)
        weights = jnp.where(counted, jnp.exp(2 * move), 0)
        return jnp.sum(weights * jnp.where(counted, local, 0)) / jnp.sum(weights)

    direction = jax.random.normal(jax.random.key(3), flat.shape)
    step = 1e-5
    numeric = (energy(flat + step * direction) - energy(flat - step * direction)) / (2 * step)
    exact = ravel_pytree(lin.jacobian.rmv(lin.residual))[0] @ direction
    np.testing.assert_allclose(exact, numeric, rtol=1e-7)


def test_the_gradient_of_hydrogen():
    """ψ = exp(−ζr) has E = ζ²/2 − ζ; the radii are quantiles of |ψ|², evenly weighted."""
    zeta, k = 0.8, 20_000
    radii = jnp.linspace(1e-4, 20, 40_001)
    below = 1 - jnp.exp(-2 * zeta * radii) * (1 + 2 * zeta * radii + 2 * (zeta * radii) ** 2)
    places = jnp.interp((jnp.arange(k) + 0.5) / k, below, radii)
    x = jnp.stack([places, jnp.zeros(k), jnp.zeros(k)], axis=-1)[:, None]
    problem = molecules.VMC(lambda p, x: -p * r(x), "H", params=jnp.array(zeta), walkers=k)
    local = energies(problem.log_psi, problem.potential, x, problem.params)
    np.testing.assert_allclose(jnp.mean(local), zeta**2 / 2 - zeta, rtol=1e-3)
    root = jnp.full(k, k**-0.5)
    plain = 2 * root * (local - jnp.mean(local))
    lin = problem.linearise(problem.params, molecules.Walkers(x, local))
    np.testing.assert_allclose(lin.jacobian.rmv(plain), zeta - 1, rtol=2e-3)
    inner = jnp.abs(local - jnp.median(local)) < 3 * jnp.mean(jnp.abs(local - jnp.median(local)))
    np.testing.assert_allclose((lin.residual - plain)[inner], (lin.residual - plain)[inner][0], atol=1e-12)


def test_the_residual_at_other_parameters():
    problem = molecules.VMC(lambda p, x: -p * r(x), "H", params=jnp.array(0.8), walkers=20)
    x = jax.random.normal(jax.random.key(0), (20, 1, 3))
    at = lambda p: energies(problem.log_psi, problem.potential, x, p)  # noqa: E731
    lin = problem.linearise(jnp.array(0.8), molecules.Walkers(x, at(0.8)))
    other = problem.linearise(jnp.array(0.9), molecules.Walkers(x, at(0.9)))
    np.testing.assert_allclose(lin.residual_at(jnp.array(-0.1)), other.residual, atol=1e-12)
    assert not lin.has_loss
