"""Rates and floors by enumeration, against moments followed step by step and against the theorems."""

import numpy as np
import pytest

from snapgrad import theory

rng = np.random.default_rng(0)
J = rng.normal(size=(6, 3))
turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
H = (turn * np.geomspace(1, 0.1, 6)) @ turn.T
b = rng.normal(size=6)


def test_the_rate_is_that_of_the_second_moments():
    """Against the mean of ‖θ_t − θ*‖² over many consistent runs."""
    problem = theory.enumerate_problem(J, H, np.zeros(6), sample_size=2, damping=0.1)
    eta, mu = 0.8, 0.3
    n = 3
    maps, kept = problem.maps, mu * (np.eye(n) - problem.projectors)
    A = np.block([[np.eye(n) - eta * maps, -eta * kept], [maps, kept]])
    moments = np.einsum("s,sij,skl->ikjl", problem.probabilities, A, A).reshape(36, 36)
    start = np.outer([1.0, -1, 0.5, 0, 0, 0], [1.0, -1, 0.5, 0, 0, 0]).ravel()
    sizes = []
    for _ in range(400):
        start = moments @ start
        sizes.append(np.trace(start.reshape(6, 6)[:3, :3]))
    np.testing.assert_allclose(1 - sizes[-1] / sizes[-2], problem.rate(eta, mu), rtol=1e-6)


def test_without_momentum_theorem_5_1_holds():
    problem = theory.enumerate_problem(J, H, np.zeros(6), sample_size=2, damping=0.1)
    low, high = problem.curvature
    eta = 1 / (problem.gamma * high)
    assert problem.rate(eta, 0.0) >= eta * low * problem.alpha


def test_the_floor_is_where_the_moments_settle_and_below_theorem_g_1():
    problem = theory.enumerate_problem(J, H, b, sample_size=2, damping=0.0)
    low, high = problem.curvature
    eta = 1 / (2 * problem.gamma * high)
    np.testing.assert_allclose(problem.probabilities @ problem.noise, 0, atol=1e-12)
    M, A = np.zeros((3, 3)), np.eye(3) - eta * problem.maps
    noise = eta**2 * np.einsum("s,si,sj->ij", problem.probabilities, problem.noise, problem.noise)
    for _ in range(3000):
        M = np.einsum("s,sij,jk,slk->il", problem.probabilities, A, M, A) + noise
    floor = problem.floor(eta)
    np.testing.assert_allclose(np.sum(problem.weight * M), floor, rtol=1e-8)
    assert floor <= 2 * problem.gamma * eta / (low * problem.alpha) * problem.residual**2


def test_as_written_the_conjecture_can_promise_more_than_one():
    """JJᵀ = I, H = I, k = m: α = γ = 1/(1+λ), β = 1."""
    problem = theory.enumerate_problem(np.eye(3), np.eye(3), np.zeros(3), sample_size=3, damping=0.5)
    np.testing.assert_allclose([problem.conjectured, problem.scaled], [np.sqrt(1.5), 1.0])
    np.testing.assert_allclose(problem.rate(1.5, 0.0), 1.0, atol=1e-12)


def test_constants_are_those_of_the_theory():
    problem = theory.enumerate_problem(J, H, b, sample_size=2, damping=0.1)
    constants = theory.exact.constants(J, sample_size=2, damping=0.1)
    assert (problem.alpha, problem.beta, problem.gamma) == (
        constants.alpha,
        constants.beta,
        constants.gamma,
    )


def test_theta_must_be_unique():
    with pytest.raises(ValueError, match="`J` must have full column rank, which is 3; its rank is 2"):
        theory.enumerate_problem(J * np.array([1.0, 1.0, 0.0]), H, b, sample_size=2)


def test_tuned_rate_is_at_least_that_of_the_advice():
    """On one instance of the conjecture, up to where the simplex stops."""
    problem = theory.enumerate_problem(J, H, np.zeros(6), sample_size=2, damping=0.1)
    rate, eta, mu = problem.tuned_rate()
    assert rate == pytest.approx(problem.rate(eta, mu), rel=1e-12)
    assert rate >= (1 - 1e-3) * problem.rate(*problem.advice)
