"""Damped least squares from factors at another damping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad.linalg import cgls, factorise


def spread(condition, seed=0):
    """Rows with singular values from 1 to 1/condition, a right-hand side, and the solution at a damping."""
    rng = np.random.default_rng(seed)
    U, V = np.linalg.qr(rng.normal(size=(60, 20)))[0], np.linalg.qr(rng.normal(size=(20, 20)))[0]
    s, b = np.geomspace(1, 1 / condition, 20), rng.normal(size=60)
    return jnp.asarray(U * s @ V.T), jnp.asarray(b), lambda lam: V @ (s / (s**2 + lam) * (U.T @ b))


def energy(A, lam, error):
    """The size of an error as the loss sees it."""
    return np.sqrt(np.sum((np.asarray(A) @ error) ** 2) + lam * np.sum(error**2))


@pytest.mark.parametrize("lam", [1e-2, 1e-6])
def test_exact_factors_need_one_step(lam):
    A, b, solution = spread(1e3)
    found = cgls(A, b, lam, factorise(A.T @ A, lam, "cholesky"), max_steps=1)
    np.testing.assert_allclose(found, solution(lam), rtol=1e-9)


@pytest.mark.parametrize("condition", [1e6, 1e7])
def test_factors_at_a_larger_damping(condition):
    """Factors at 1e-12 lead to the solution at λ = 1e-14 in ten steps."""
    A, b, solution = spread(condition)
    factors, exact = factorise(A.T @ A, 1e-12, "cholesky"), solution(1e-14)
    found = np.asarray(cgls(A, b, 1e-14, factors))
    start = energy(A, 1e-14, solution(1e-12) - exact)
    assert energy(A, 1e-14, found - exact) < 1e-2 * start
    stopped = np.asarray(cgls(A, b, 1e-14, factors, max_steps=2))
    assert energy(A, 1e-14, stopped - exact) > 10 * energy(A, 1e-14, found - exact)


def test_nothing_to_solve():
    A, _, _ = spread(10)
    assert not np.any(cgls(A, jnp.zeros(60), 1e-3, factorise(A.T @ A, 1e-3)))


def test_what_is_not_finite_shows():
    A, b, _ = spread(10)
    factors = factorise(A.T @ A, 1e-3)
    assert not np.any(np.isfinite(cgls(A, b.at[0].set(jnp.nan), 1e-3, factors)))
    broken = factorise(-A.T @ A, 0.0, "cholesky")
    assert not np.any(np.isfinite(cgls(A, b, 1e-3, broken)))


def test_many_at_once():
    """A sweep over dampings is a vmap."""
    A, b, solution = spread(1e3)
    lams = jnp.array([1e-2, 1e-4, 1e-6])
    found = jax.vmap(lambda lam: cgls(A, b, lam, factorise(A.T @ A, lam, "cholesky")))(lams)
    np.testing.assert_allclose(found, np.stack([solution(float(lam)) for lam in lams]), rtol=1e-9)
