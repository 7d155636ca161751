"""The pseudoinverse solves, over rank-deficient and badly scaled matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from snapgrad import DenseJacobian, Linearisation, Spring
from snapgrad.linalg import gram, pinv_solve, psd_solve, random_subset
from snapgrad.methods import pinv_apply

SMALL = st.integers(-3, 3).map(float)


@st.composite
def factored(draw):
    """J = B C with small whole entries, exactly rank-deficient, and a right-hand side; of few shapes."""
    k, n = draw(st.sampled_from([(1, 1), (1, 8), (6, 4), (4, 4), (4, 8)]))
    rank = draw(st.integers(1, min(k, n)))
    B = draw(arrays(float, (k, rank), elements=SMALL))
    C = draw(arrays(float, (rank, n), elements=SMALL))
    return B @ C, draw(arrays(float, k, elements=SMALL))


def reference(J, b, lam):
    """J^{+(λ)} b by NumPy's SVD of J."""
    U, s, Vt = np.linalg.svd(J, full_matrices=False)
    keep = s > 1e-10 * max(s.max(), 1e-300)
    return Vt.T @ (np.where(keep, s / np.where(keep, s**2 + lam, 1), 0) * (U.T @ b))


@settings(max_examples=150, deadline=None)
@given(factored(), st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 1e6]), st.sampled_from(["auto", "eigh", "qr"]))
def test_rank_deficient(system, lam, solver):
    J, b = system
    if solver == "qr":
        x = pinv_solve(jnp.asarray(J), jnp.asarray(b), lam)
    else:
        x = J.T @ psd_solve(gram(jnp.asarray(J)), jnp.asarray(b), lam, solver)
    expected = reference(J, b, lam)
    # Working from K = JJᵀ squares the condition number, which is what the solve may lose.
    s = np.linalg.svd(J, compute_uv=False)
    condition = s.max() / s[s > 1e-10 * max(s.max(), 1e-300)].min() if s.max() > 0 else 1.0
    atol = 1e-13 * condition ** (1 if solver == "qr" else 2) * (1 + np.abs(expected).max() + np.abs(b).max())
    if lam > 0:
        # The part of b outside range(J), times 1/λ, meets what rounding leaves of J on null vectors:
        # eps‖J‖ on its own; eps‖K‖/σ on those of K, which are known to eps‖K‖/σ².
        rounded = s.max() * (1 if solver == "qr" else condition)
        atol += 1e-15 * np.linalg.norm(b) * max(rounded, 1.0) / lam
    np.testing.assert_allclose(x, expected, rtol=0, atol=atol)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**16),
    st.sampled_from([1, 4]).flatmap(lambda k: st.lists(st.integers(-9, 9), min_size=k, max_size=k)),
    st.sampled_from(["auto", "qr"]),
)
def test_badly_scaled_rows_of_full_rank(seed, exponents, solver):
    """At λ = 0 and full row rank, J⁺b solves every equation, however small its row."""
    rng = np.random.default_rng(seed)
    k = len(exponents)
    rows = rng.normal(size=(k, 8))
    assume(np.linalg.cond(rows) < 1e2)
    scale = 10.0 ** np.array(exponents)
    J, b = jnp.asarray(scale[:, None] * rows), rng.normal(size=k)
    rhs = jnp.asarray(scale * b)
    x = pinv_solve(J, rhs, 0.0) if solver == "qr" else J.T @ psd_solve(gram(J), rhs, 0.0)
    if solver == "qr":  # orthogonal factorisations are stable row by row only for moderate scaling
        assume(scale.max() / scale.min() < 1e8)
    np.testing.assert_allclose(x, reference(rows, b, 0.0), rtol=1e-6, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(factored(), st.integers(-12, 12))
def test_scale_equivariance(system, exponent):
    """(cJ)^{+(c²λ)} b = J^{+(λ)} b / c."""
    J, b = system
    c = 2.0**exponent
    for lam in (0.0, 0.25):
        plain = J.T @ psd_solve(jnp.asarray(J @ J.T), jnp.asarray(b), lam)
        scaled = c * J.T @ psd_solve(jnp.asarray(c * c * J @ J.T), jnp.asarray(b), c * c * lam)
        np.testing.assert_allclose(c * scaled, plain, rtol=1e-9, atol=1e-9)


def test_tiny_damping_is_safe():
    """λ near k·eps·‖K‖, where a plain Cholesky is not finite or is noise."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(40, 40)))[0]
    K = (Q * np.logspace(0, -20, 40)) @ Q.T
    b = jnp.asarray(rng.normal(size=40))
    for lam in (1e-18, 1e-16, 1e-14):
        x = psd_solve(jnp.asarray((K + K.T) / 2), b, lam)
        assert bool(jnp.all(jnp.isfinite(x)))
        assert float(jnp.linalg.norm(x)) <= float(jnp.linalg.norm(b)) / lam * 1.01


def test_qr_does_not_square_the_condition_number():
    """Singular values down to 1e-10: lost in K, kept in J."""
    rng = np.random.default_rng(1)
    U = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    V = np.linalg.qr(rng.normal(size=(30, 8)))[0]
    s = np.logspace(0, -10, 8)
    J = jnp.asarray((U * s) @ V.T)
    b = U @ (s * rng.normal(size=8))
    lam = 1e-22
    exact = V @ (s / (s**2 + lam) * (U.T @ b))
    np.testing.assert_allclose(pinv_solve(J, jnp.asarray(b), lam), exact, rtol=1e-5, atol=1e-5)


def test_branches_stay_branches_under_vmap():
    """A batch with one singular member is right for all members."""
    good, bad = jnp.eye(3), jnp.diag(jnp.array([1.0, 2.0, 0.0]))
    b = jnp.ones(3)
    x = jax.jit(jax.vmap(lambda K: psd_solve(K, b, 0.0)))(jnp.stack([good, bad, 4 * good]))
    np.testing.assert_allclose(x, [[1, 1, 1], [1, 0.5, 0], [0.25, 0.25, 0.25]], rtol=1e-14)


def test_gradient_through_the_solve():
    """The solve is differentiable in λ on the path taken."""
    K, b = jnp.diag(jnp.array([1.0, 2.0])), jnp.ones(2)
    slope = jax.grad(lambda lam: psd_solve(K, b, lam).sum())(0.5)
    np.testing.assert_allclose(slope, -(1 / 1.5**2 + 1 / 2.5**2), rtol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_zero_matrix(dtype):
    K, b = jnp.zeros((3, 3), dtype), jnp.ones(3, dtype)
    assert bool(jnp.all(psd_solve(K, b, 0.0) == 0))
    np.testing.assert_allclose(psd_solve(K, b, 0.5), 2 * b)
    assert bool(jnp.all(pinv_solve(jnp.zeros((3, 5), dtype), b, 0.0) == 0))


def clustered(rng, count, clusters, n, spread):
    """Rows in a few tight clusters: a gram matrix with about `clusters` eigenvalues far above the others."""
    return rng.normal(size=(clusters, n))[rng.integers(0, clusters, count)] + spread * rng.normal(
        size=(count, n)
    )


@pytest.mark.parametrize("solver", ["auto", "eigh"])
@pytest.mark.parametrize("shape", [(20, 40), (40, 12)])
def test_float32_step_is_within_its_conditioning(shape, solver):
    """‖x₃₂ − x₆₄‖ ≤ C eps κ‖x₆₄‖ with κ of JJᵀ + λI, and never a longer step, however small λ is."""
    rng = np.random.default_rng(0)
    step = jax.jit(lambda J, b, lam: pinv_apply(DenseJacobian(J), b, lam, solver))
    for spread in (1e-6, 1e-4, 1e-2):
        J = jnp.asarray(clustered(rng, shape[0], 5, shape[1], spread), jnp.float32)
        exact = np.asarray(J, float)
        U, s, Vt = np.linalg.svd(exact, full_matrices=False)
        for b in (rng.normal(size=shape[0]), exact @ rng.normal(size=shape[1])):
            b = jnp.asarray(b, jnp.float32)
            for lam in 10.0 ** np.arange(-4, -13, -2):
                expected = Vt.T @ (s / (s**2 + lam) * (U.T @ np.asarray(b, float)))
                x = step(J, b, jnp.asarray(lam))
                condition = (s[0] ** 2 + lam) / (s[-1] ** 2 + lam)
                size = np.linalg.norm(expected)
                bound = 20 * float(jnp.finfo(jnp.float32).eps) * condition * size
                assert np.linalg.norm(x - expected) <= bound
                assert np.linalg.norm(x) <= 1.1 * size


def test_float32_spring_with_tiny_damping_converges():
    """A consistent system of nearly repeated rows, which used to run to infinity in float32."""
    rng = np.random.default_rng(0)
    A = jnp.asarray(clustered(rng, 60, 6, 20, 1e-4), jnp.float32)
    b, method = A @ jnp.ones(20, jnp.float32), Spring(1e-10, 0.8)

    def advance(carry, key):
        x, state = carry
        rows = random_subset(key, 60, 8)
        lin = Linearisation(A[rows] @ x - b[rows], DenseJacobian(A[rows]))
        direction, state = method.direction(lin, state)
        return (x - 0.3 * direction, state), None

    x = jnp.zeros(20, jnp.float32)
    keys = jax.random.split(jax.random.key(1), 100)
    (x, _), _ = jax.jit(lambda: jax.lax.scan(advance, (x, method.init(x)), keys))()
    assert jnp.linalg.norm(A @ x - b) < 1e-3 * jnp.linalg.norm(b)


def test_float32_kernels_are_factored_wherever_damping_is_above_their_rounding():
    """There Cholesky's very numbers come back, as good as those of eigenvalues; below, the latter's do."""
    rng = np.random.default_rng(2)
    J = jnp.asarray(rng.normal(size=(200, 100)) / np.arange(1, 101), jnp.float32)  # of rank 100
    K, b = gram(J), jnp.asarray(rng.normal(size=200), jnp.float32)
    exact, rounding = np.asarray(J, float), float(jnp.finfo(jnp.float32).eps * jnp.linalg.norm(K))
    error = lambda x, y: np.linalg.norm(x - y) / np.linalg.norm(y)  # noqa: E731
    for times in (0.0, 1e-3, 0.5, 11.0, 100.0):
        lam = jnp.float32(times * rounding)
        found, by_eigh = psd_solve(K, b, lam), psd_solve(K, b, lam, "eigh")
        np.testing.assert_array_equal(found, psd_solve(K, b, lam, "cholesky") if times > 10 else by_eigh)
        if times > 10:
            expected = reference(exact, np.asarray(b, float), float(lam))
            assert error(J.T @ found, expected) < 1.5 * error(J.T @ by_eigh, expected) < 0.3
