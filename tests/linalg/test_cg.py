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
        "nystrom": nystrom(lambda v: K @ v, size=K.shape[0], rank=rank, key=KEY),
        "rp_cholesky": rp_cholesky(K, rank=rank, key=KEY),
    }


@jax.jit
def solve(K, b, damping, low=None):
    return cg_solve(K, b, damping, preconditioner=low, tolerance=1e-12)


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
