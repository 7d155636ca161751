"""Factor once, solve many: every solver gives the same inverse where all of them can."""

from functools import partial

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from snapgrad.linalg import SOLVERS, _factorise, factorise, gram, psd_solve
from snapgrad.linalg._factorise import TriangularFactors

A = jax.random.normal(jax.random.key(0), (9, 5))
B = jax.random.normal(jax.random.key(1), (2, 5))


@pytest.mark.parametrize("solver", SOLVERS)
def test_solves_with_several_right_hand_sides(solver):
    factors = factorise(gram(A.T), 0.1, solver, rows=A)
    exact = np.linalg.inv(np.asarray(A.T @ A) + 0.1 * np.eye(5))
    np.testing.assert_allclose(jax.vmap(factors.solve)(B), B @ exact, rtol=1e-11)
    np.testing.assert_allclose(factors.inverse_diagonal(), np.diag(exact), rtol=1e-11)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("gpu", [False, True])
def test_factors_for_many_solves_are_the_same_factors(solver, gpu, monkeypatch):
    monkeypatch.setattr(_factorise, "on_gpu", lambda: gpu)
    factors = factorise(gram(A.T), 0.1, solver, rows=A)
    many = factors.for_many()
    changed = gpu and isinstance(factors, TriangularFactors)
    assert (many is factors) == (not changed)
    assert many.for_many() is many
    np.testing.assert_allclose(jax.vmap(many.solve)(B), jax.vmap(factors.solve)(B), rtol=1e-12)
    np.testing.assert_allclose(many.inverse_diagonal(), factors.inverse_diagonal(), rtol=1e-12)


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


@pytest.mark.parametrize("solver", ["qr", "cholesky_qr"])
def test_rows_are_needed_for_qr(solver):
    with pytest.raises(ValueError, match=f"`rows` must be given for `solver` = '{solver}'"):
        factorise(jnp.eye(2), 0.1, solver)


def test_cholesky_reads_the_lower_triangle_as_it_is():
    """No k × k copy to make it symmetric, on the way in or between the two solves."""
    K, b = gram(jax.random.normal(jax.random.key(2), (20, 30))), jnp.ones(20)
    program = str(jax.make_jaxpr(lambda K, b: psd_solve(K, b, 0.1, "cholesky"))(K, b))
    assert "cholesky" in program and "transpose[" not in program
    lower = jnp.tril(K) + jnp.triu(jnp.full_like(K, jnp.nan), 1)
    exact = np.linalg.solve(np.asarray(K) + 0.1 * np.eye(20), np.ones(20))
    np.testing.assert_allclose(psd_solve(lower, b, 0.1, "cholesky"), exact, rtol=1e-11)


@pytest.mark.parametrize("condition", [1e12, 1e15])
@pytest.mark.parametrize("lam", [1e-8, 1e-12, 1e-16, 1e-20])
def test_cholesky_qr_is_as_accurate_as_qr(condition, lam):
    """Damped least squares with unit columns, one refinement, against sixty digits, over eight draws."""
    draws = [_errors(np.random.default_rng(seed), condition, lam) for seed in range(8)]
    of_qr, found = np.sqrt(np.mean(np.square(draws), axis=0))
    assert np.all(found < 3 * of_qr)


def _errors(rng, condition, lam):
    """Of both solvers: the error of the solution, and of what it fits, in which [A; √λI] measures it."""
    U, V = (np.linalg.qr(rng.normal(size=(rows, 9)))[0] for rows in (20, 9))
    rows = U * np.logspace(0, -np.log10(condition), 9) @ V.T
    rows /= np.linalg.norm(rows, axis=0)
    b = rows @ rng.normal(size=9) + 1e-6 * rng.normal(size=20)
    with mpmath.workdps(60):
        M = mpmath.matrix(rows.tolist())
        normal = M.T * M + mpmath.mpf(lam) * mpmath.eye(9)
        exact = np.array([float(x) for x in mpmath.lu_solve(normal, M.T * mpmath.matrix(b.tolist()))])

    def errors(solver):
        x = np.asarray(_refined(jnp.asarray(rows), jnp.asarray(b), lam, solver)) - exact
        fit = np.sqrt(np.sum((rows @ x) ** 2) + lam * np.sum(x**2))
        return np.linalg.norm(x) / np.linalg.norm(exact), fit / np.linalg.norm(b)

    return errors("auto"), errors("cholesky_qr")


@partial(jax.jit, static_argnames="solver")
def _refined(rows, b, lam, solver):
    factors = factorise(lambda: gram(rows.T), lam, solver, rows=lambda: rows, unit=1.0)
    x = factors.solve(rows.T @ b)
    return x + factors.solve(rows.T @ (b - rows @ x) - lam * x)


def test_cholesky_qr_of_a_matrix_that_is_not_finite_is_not_finite():
    """And comes to an end: the step is then refused."""
    rows = jnp.eye(4).at[0, 0].set(jnp.nan)
    assert not np.any(np.isfinite(_refined(rows, jnp.ones(4), 1e-20, "cholesky_qr")))
