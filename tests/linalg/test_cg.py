"""Conjugate gradients against direct solves, and preconditioners against the spectra they should flatten."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad.linalg import cg_solve, nystrom, psd_solve, rp_cholesky
from snapgrad.operators import jacobian

KEY = jax.random.key(3)


def kernel(size=60, decay=0.7):
    Q = np.linalg.qr(np.random.default_rng(3).normal(size=(size, size)))[0]
    return jnp.asarray((Q * decay ** np.arange(size)) @ Q.T)


def vector(size=60):
    return jnp.asarray(np.random.default_rng(4).normal(size=size))


@functools.partial(jax.jit, static_argnums=1)
def approximations(K, rank):
    return {
        "nystrom": nystrom(lambda v: K @ v, size=K.shape[0], rank=rank, key=KEY, dtype=K.dtype),
        "rp_cholesky": rp_cholesky(K, rank=rank, key=KEY),
    }


@functools.partial(jax.jit, static_argnames="max_steps")
def solve(K, b, damping, low=None, initial=None, tolerance=1e-12, max_steps=None):
    return cg_solve(
        K, b, damping, preconditioner=low, initial=initial, tolerance=tolerance, max_steps=max_steps
    )


def true_residual(K, b, damping, x):
    K, b, x = (np.asarray(a, float) for a in (K, b, x))
    return np.linalg.norm(b - K @ x - float(damping) * x) / np.linalg.norm(b)


@pytest.mark.parametrize("damping", [1e-2, 1e-6])
def test_agrees_with_a_direct_solve(damping):
    K, b = kernel(), vector()
    exact = psd_solve(K, b, damping)
    result = solve(K, b, damping)
    np.testing.assert_allclose(result.solution, exact, rtol=0, atol=1e-9 * float(jnp.abs(exact).max()))
    # What rounding leaves of the residual: ε‖A‖‖x‖, and ‖x‖ ≤ ‖b‖ / λ.
    assert result.residual < 1e-12 + 2 * jnp.finfo(b.dtype).eps * (1 + damping) / damping
    assert 0 < result.steps < 600


@pytest.mark.parametrize("build", ["nystrom", "rp_cholesky"])
def test_preconditioner_saves_steps(build):
    K, b = kernel(), vector()
    plain, helped = solve(K, b, 1e-6), solve(K, b, 1e-6, approximations(K, 40)[build])
    exact = psd_solve(K, b, 1e-6)
    np.testing.assert_allclose(helped.solution, exact, rtol=0, atol=1e-7 * float(jnp.abs(exact).max()))
    assert helped.steps * 3 < plain.steps


@pytest.mark.parametrize("rank", [5, 20])
def test_approximations_are_close_to_the_best_of_their_rank(rank):
    K = kernel()
    best = np.sum(0.7 ** np.arange(60)[rank:])  # trace of what the best approximation misses
    for low in approximations(K, rank).values():
        U, s = np.asarray(low.vectors), np.asarray(low.values)
        rest = np.asarray(K) - (U * s) @ U.T
        np.testing.assert_allclose(U.T @ U, np.eye(rank), atol=1e-12)
        assert best <= np.trace(rest) * (1 + 1e-9) < 12 * best
        assert np.linalg.eigvalsh(rest).min() > -1e-12  # both approximate from below


def test_full_rank_solves_in_a_step_or_two():
    K, b = kernel(20), vector(20)
    for low in approximations(K, 20).values():
        assert solve(K, b, 1e-4, low).steps <= 3


def test_rank_deficient_kernel_and_zero_right_hand_side():
    K = jnp.asarray(np.diag([3.0, 2.0, *np.zeros(18)]))
    low = approximations(K, 20)["rp_cholesky"]
    U, s = np.asarray(low.vectors), np.asarray(low.values)
    np.testing.assert_allclose((U * s) @ U.T, K, atol=1e-12)
    result = solve(K, jnp.ones(20), 0.5, low)
    np.testing.assert_allclose(result.solution, [1 / 3.5, 1 / 2.5, *np.full(18, 2.0)], rtol=1e-9)
    nothing = solve(K, jnp.zeros(20), 0.5, low)
    assert nothing.steps == 0 and nothing.residual == 0 and not np.any(nothing.solution)


SPECTRA = {"power": np.arange(1.0, 61.0) ** -2, "exponential": 0.7 ** np.arange(60)}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_ill_conditioned_kernels_to_the_tolerance(spectrum, dtype):
    """What is reported is true, and within the tolerance plus rounding: ε‖A‖‖x‖, where ‖x‖ ≤ ‖b‖/λ."""
    Q = np.linalg.qr(np.random.default_rng(6).normal(size=(60, 60)))[0]
    K, b = jnp.asarray((Q * SPECTRA[spectrum]) @ Q.T, dtype), vector().astype(dtype)
    eps = float(jnp.finfo(dtype).eps)
    low = approximations(K, 40)["nystrom"]
    for damping in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10) if dtype == jnp.float64 else (1e-2, 1e-3, 1e-4):
        result = solve(K, b, damping, low, tolerance=eps**0.5)
        allowed = eps**0.5 + 4 * eps * (1 + damping) / damping
        exact = np.linalg.solve(np.asarray(K, float) + damping * np.eye(60), np.asarray(b, float))
        reached = true_residual(K, b, damping, result.solution)
        assert abs(result.residual - reached) < 0.1 * reached + 4 * eps / damping
        assert reached < allowed
        error = np.linalg.norm(result.solution - exact) / np.linalg.norm(exact)
        assert error < allowed / damping
        assert result.steps < 100


def test_says_when_it_did_not_converge_and_keeps_the_best():
    """An exponential spectrum and λ far below it: the last residual is far larger than that of the start."""
    K, b = kernel(), vector()
    result = solve(K, b, 1e-10, tolerance=1e-8, max_steps=40)
    assert result.steps == 40
    np.testing.assert_allclose(result.residual, true_residual(K, b, 1e-10, result.solution), rtol=1e-6)
    assert 1e-8 < result.residual <= 1


def test_starts_from_the_best_multiple_of_a_guess():
    K, b = kernel(), vector()
    exact = psd_solve(K, b, 1e-2)
    assert solve(K, b, 1e-2, initial=5 * exact, tolerance=1e-8).steps == 0
    cold = solve(K, b, 1e-2, tolerance=1e-8)
    for guess in (exact + 1e-6 * vector()[::-1], 1e6 * vector()[::-1], jnp.zeros(60)):
        warm = solve(K, b, 1e-2, initial=guess, tolerance=1e-8)
        assert warm.residual < 1e-8 and warm.steps <= cold.steps + 2
    assert solve(K, b, 1e-2, initial=exact + 1e-6 * vector()[::-1], tolerance=1e-8).steps < cold.steps / 2


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("rank", [0, 3])
def test_sketch_of_more_columns_than_the_rank(rank, dtype):
    """Without damping, a consistent system: the solution of least norm, in one step or two."""
    J = jnp.asarray(np.random.default_rng(7).normal(size=(20, rank)), dtype)
    K = J @ J.T
    low = approximations(K, 20)["nystrom"]
    U, s = np.asarray(low.vectors), np.asarray(low.values)
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(U.T @ U, np.eye(20), atol=100 * eps)
    np.testing.assert_allclose((U * s) @ U.T, K, atol=100 * eps * (1 + float(jnp.trace(K))))
    b = K @ jnp.ones(20, dtype)
    result = solve(K, b, 0.0, low, tolerance=eps**0.5)
    expected = np.linalg.pinv(np.asarray(K, float), rcond=1e-5) @ np.asarray(b, float)
    np.testing.assert_allclose(result.solution, expected, atol=eps**0.5)
    assert result.steps <= 2


def test_with_a_jacobian_and_no_kernel():
    rng = np.random.default_rng(5)
    params = {"W": jnp.asarray(rng.normal(size=(4, 30))), "v": jnp.asarray(rng.normal(size=30))}
    x, b = jnp.asarray(rng.normal(size=(20, 4))), vector(20)

    @jax.jit
    def without_kernel(params, x, b):
        jac = jacobian(lambda p, x: jnp.tanh(x @ p["W"]) @ p["v"], params, x)
        product = lambda v: jac.mv(jac.rmv(v))  # noqa: E731
        low = nystrom(product, size=20, rank=15, key=KEY)
        return cg_solve(product, b, 1e-3, preconditioner=low, tolerance=1e-13), jac.gram()

    result, K = without_kernel(params, x, b)
    exact = psd_solve(K, b, 1e-3)
    np.testing.assert_allclose(result.solution, exact, rtol=0, atol=1e-9 * float(jnp.abs(exact).max()))


def test_rank_is_checked():
    with pytest.raises(ValueError, match=r"`rank` must be at most the number of rows, which is 4; got 5"):
        rp_cholesky(jnp.eye(4), rank=5, key=KEY)


def test_no_solution_is_worse_than_none():
    """In float32, λ far below the rounding of K: the recursion believes in residuals that x does not have."""
    K, b = kernel().astype(jnp.float32), vector().astype(jnp.float32)
    for low in (None, approximations(K, 40)["nystrom"]):
        result = solve(K, b, 1e-9, low, tolerance=1e-4, max_steps=200)
        assert true_residual(K, b, 1e-9, result.solution) < 1.01 and 1e-4 < result.residual <= 1
