"""Factor once, solve many: every solver gives the same inverse where all of them can."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad.linalg import SOLVERS, factorise, gram

A = jax.random.normal(jax.random.key(0), (9, 5))
B = jax.random.normal(jax.random.key(1), (2, 5))


@pytest.mark.parametrize("solver", SOLVERS)
def test_solves_with_several_right_hand_sides(solver):
    factors = factorise(gram(A.T), 0.1, solver, rows=A)
    exact = np.linalg.inv(np.asarray(A.T @ A) + 0.1 * np.eye(5))
    np.testing.assert_allclose(jax.vmap(factors.solve)(B), B @ exact, rtol=1e-11)
    np.testing.assert_allclose(factors.inverse_diagonal(), np.diag(exact), rtol=1e-11)


def test_auto_takes_orthogonal_factors_where_the_gram_matrix_has_lost_the_damping():
    """Singular values down to 1e-9: 1e-18 is lost in K, and an eigenvalue below the rounding is left out."""
    U, s = jnp.linalg.qr(A)[0], jnp.logspace(0, -9, 5)
    rows = U * s[None]  # K = diag(s²)
    K, lam, calls = gram(rows.T) + 1e-17 * (B.T @ B), 1e-19, []

    def lazy(name, value):
        return lambda: calls.append(name) or value

    b = s**2 + lam
    factors = factorise(lazy("K", K), lam, rows=lazy("rows", rows), unit=1.0)
    np.testing.assert_allclose(factors.solve(b), jnp.ones(5), rtol=1e-6)  # eps times 1e9
    assert set(calls) == {"K", "rows"}  # a branch of the program for each
    by_eigh = factorise(K, lam).solve(b)
    np.testing.assert_allclose(by_eigh[:2], jnp.ones(2), rtol=1e-6)
    assert jnp.abs(by_eigh).max() < 1.1


def test_pseudoinverse_without_damping():
    K = gram(A)  # 9 × 9 of rank 5
    x = factorise(K, 0.0).solve(jnp.arange(9.0))
    np.testing.assert_allclose(x, np.linalg.pinv(K, rcond=1e-12) @ np.arange(9.0), rtol=1e-9, atol=1e-12)


def test_rows_are_needed_for_qr():
    with pytest.raises(ValueError, match="`rows` must be given"):
        factorise(jnp.eye(2), 0.1, "qr")
