"""Identities of the paper that tie the methods to each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad.methods import Iterate, SpringState, accelerated_step, nesterov_step


def instance(seed, k, n, rank=None):
    rng = np.random.default_rng(seed)
    J = rng.normal(size=(k, n)) if rank is None else rng.normal(size=(k, rank)) @ rng.normal(size=(rank, n))
    return J, rng.normal(size=k), rng.normal(size=n)


def linear(J, r):
    return sg.Linearisation(residual=r, jacobian=sg.DenseJacobian(J))


def pinv(J, lam):
    """J^{+(λ)} by the SVD of J."""
    U, s, Vt = np.linalg.svd(np.asarray(J), full_matrices=False)
    keep = s > 1e-11 * s.max()
    weights = np.where(keep, s / np.where(keep, s**2 + lam, 1), 0)
    return (Vt.T * weights) @ U.T


# The smaller system is 6 × 6 in each of them, so that its solution is compiled once.
SHAPES = [(6, 20, None), (20, 6, None), (6, 6, None), (6, 20, 4), (20, 6, 4)]


@pytest.mark.parametrize("solver", ["auto", "eigh", "qr"])
@pytest.mark.parametrize("lam", [0.0, 1e-6, 1e-2, 10.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_push_through(shape, lam, solver):
    """Sample space = parameter space, for SNG and SPRING, also rank-deficient."""
    if shape[2] is not None and lam == 1e-6:
        # r has a part outside range(J); rounding J by eps turns that part into eps·‖r‖/λ of direction,
        # whatever the algorithm, so the comparison needs a λ at which this is below 1e-10.
        lam = 1e-3
    J, r, phi = instance(0, *shape)
    lin = linear(J, r)
    P = pinv(J, lam)
    sng, _ = sg.SNG(lam, solver=solver).direction(lin, ())
    np.testing.assert_allclose(sng, P @ r, rtol=1e-10, atol=1e-10)
    spring, _ = sg.Spring(lam, 0.7, solver=solver).direction(lin, SpringState(jnp.asarray(phi)))
    np.testing.assert_allclose(spring, 0.7 * phi + P @ (r - 0.7 * J @ phi), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lam", [1e-3, 1.0])
def test_spring_parameter_space_form(lam):
    """φ = (JᵀJ + λI)⁻¹(Jᵀr + λμφ), the form that other codes use."""
    J, r, phi = instance(1, 6, 20)
    direction, _ = sg.Spring(lam, 0.6).direction(linear(J, r), SpringState(jnp.asarray(phi)))
    reference = np.linalg.solve(J.T @ J + lam * np.eye(20), J.T @ r + lam * 0.6 * phi)
    np.testing.assert_allclose(direction, reference, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lam", [0.0, 1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_two_batch_with_equal_batches_is_sng(shape, lam):
    J, r, _ = instance(2, *shape)
    lin = linear(J, r)
    two, _ = sg.TwoBatch(lam).direction((lin, lin), ())
    one, _ = sg.SNG(lam).direction(lin, ())
    np.testing.assert_allclose(two, one, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lam", [0.0, 1e-5, 1e-1])
@pytest.mark.parametrize("shape", [(6, 20, None), (20, 6, None), (6, 20, 4)])
def test_two_batch_against_parameter_space(shape, lam):
    J, r, _ = instance(3, *shape)
    other, r_other, _ = instance(4, *shape)
    two, _ = sg.TwoBatch(lam).direction((linear(J, r), linear(other, r_other)), ())
    # By the SVD of the other Jacobian: 1/(s² + λ) on its row space, 1/λ on the rest.
    _, s, Vt = np.linalg.svd(other, full_matrices=False)
    s, Vt, g = s[s > 1e-11 * s[0]], Vt[s > 1e-11 * s[0]], J.T @ r
    inside = Vt @ g
    reference = Vt.T @ (inside / (s**2 + lam)) + ((g - Vt.T @ inside) / lam if lam else 0)
    np.testing.assert_allclose(two, reference, rtol=1e-9, atol=1e-9 * np.abs(reference).max())


SETTINGS = [
    (0.5, 1.3, 0.0, 3),
    (0.9, 0.7, 1e-3, 3),
    (0.0, 1.0, 0.1, 5),
    (0.99, 0.05, 0.0, 5),
    (0.7, 2.0, 1.0, 1),
]


@pytest.mark.parametrize(("mu", "eta_tilde", "lam", "k"), SETTINGS)
def test_theorem_6_1_both_accelerated_forms(mu, eta_tilde, lam, k):
    """φ̃ = μφ and θ̃ = θ + μφ over 100 steps, with η = 1 + μ(η̃ − 1)."""
    tilde, new = jax.tree.map(np.asarray, both_forms(mu, eta_tilde, lam, k))
    atol = 1e-12 * np.abs(tilde.theta).max()
    np.testing.assert_allclose(tilde.increment, mu * new.increment, rtol=1e-12, atol=atol)
    np.testing.assert_allclose(tilde.theta, new.theta + mu * new.increment, rtol=1e-12, atol=atol)


@functools.partial(jax.jit, static_argnums=3)
def both_forms(mu, eta_tilde, lam, k):
    J, b, theta = map(jnp.asarray, instance(5, 12, 6))
    eta = 1 + mu * (eta_tilde - 1)

    def step(carry, key):
        tilde, new = carry
        rows = jax.random.permutation(key, 12)[:k]
        tilde = nesterov_step(tilde, J[rows], b[rows], damping=lam, momentum=mu, step_size=eta_tilde)
        new = accelerated_step(new, J[rows], b[rows], damping=lam, momentum=mu, step_size=eta)
        return (tilde, new), (tilde, new)

    start = Iterate(theta, jnp.zeros(6))
    return jax.lax.scan(step, (start, start), jax.random.split(jax.random.key(0), 100))[1]


@pytest.mark.parametrize(("mu", "eta_tilde", "lam", "k"), SETTINGS)
def test_theorem_6_1_spring_is_accelerated_sketch_and_project(mu, eta_tilde, lam, k):
    """SPRING's step = the accelerated step on J θ' = J θ − η₁ r with φ rescaled by −η₁, η = η₁η₂."""
    spring, accelerated = jax.tree.map(np.asarray, spring_and_accelerated(mu, eta_tilde, lam, k))
    np.testing.assert_allclose(spring, accelerated, rtol=1e-12, atol=1e-12 * np.abs(spring).max())


@functools.partial(jax.jit, static_argnums=3)
def spring_and_accelerated(mu, eta_tilde, lam, k):
    eta_1, eta_2 = 0.3, 1 + mu * (eta_tilde - 1)
    J, b, theta = map(jnp.asarray, instance(6, 12, 6))
    A = np.random.default_rng(9).normal(size=(12, 12))
    H = jnp.asarray(A @ A.T / 40 + np.eye(12) / 2)
    method = sg.Spring(lam, mu)

    def step(carry, key):
        spring, state, accelerated = carry
        rows = jax.random.permutation(key, 12)[:k]
        residual = (H @ (J @ spring) - b)[rows]
        lin = sg.Linearisation(residual=residual, jacobian=sg.DenseJacobian(J[rows]))
        direction, state = method.direction(lin, state)
        spring = spring - eta_1 * eta_2 * direction
        r = (H @ (J @ accelerated.theta) - b)[rows]
        target = J[rows] @ accelerated.theta - eta_1 * r
        accelerated = accelerated_step(
            accelerated, J[rows], target, damping=lam, momentum=mu, step_size=eta_2
        )
        return (spring, state, accelerated), (spring, accelerated.theta)

    start = (theta, method.init(theta), Iterate(theta, jnp.zeros(6)))
    return jax.lax.scan(step, start, jax.random.split(jax.random.key(0), 100))[1]


def test_range_containment():
    """Lemma E.1: θ₀ in range(Jᵀ) stays there."""
    J, b, _ = instance(7, 6, 20)
    problem = sg.problems.LeastQuadratics(J, rhs=b)
    method, sampler = sg.Spring(1e-3, 0.5), sg.sampling.Uniform(6, sample_size=3)
    theta = sg.run(problem, jax.random.key(0), method=method, sampler=sampler, optimizer=0.5, steps=20).params
    assert np.linalg.norm(theta) > 0.1
    outside = theta - np.linalg.pinv(J) @ (J @ theta)
    assert np.linalg.norm(outside) < 1e-12 * np.linalg.norm(theta)
