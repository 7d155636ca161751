"""Regularised pseudoinverses: (K + λI)⁺ from a gram matrix, J^{+(λ)} from J itself."""

from functools import partial
from typing import Literal, TypeAlias, get_args

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.lax import Precision
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

Solver: TypeAlias = Literal["auto", "cholesky", "eigh", "qr"]
SOLVERS: tuple[Solver, ...] = get_args(Solver)
"""How a step solves its system; see `psd_solve` for the first three and `pinv_solve` for `"qr"`."""


UNROLLED = 16
"""Systems up to this size are solved by plain arithmetic, which costs less than calls into LAPACK."""


def gram(J: Float[Array, "k n"]) -> Float[Array, "k k"]:
    """J Jᵀ at full precision: on GPUs JAX's default would be TF32, good to three digits."""
    return jnp.matmul(J, J.T, precision=Precision.HIGHEST)


def rank_cutoff(size: int, dtype: jnp.dtype) -> float:
    """Eigenvalues of a gram matrix below this fraction of the largest count as zero."""
    return 10 * size * float(jnp.finfo(dtype).eps)


@partial(jax.jit, static_argnames="solver")  # eager callers would else compile its branches each time
@jax.default_matmul_precision("highest")
def psd_solve(
    K: Float[Array, "k k"],
    b: Float[Array, " k"],
    damping: Float[Array, ""] | float,
    solver: Solver = "auto",
) -> Float[Array, " k"]:
    """(K + λI)⁺ b for positive semidefinite K and λ ≥ 0; at λ = 0 the pseudoinverse of K.

    - `"auto"`: Cholesky wherever it is certain to be accurate, eigenvalues elsewhere. Certain means
      that λ alone bounds the condition number or, failing that, that the inverse of the matrix scaled
      to unit diagonal does; so rows of very different size do not count as dependent.
    - `"cholesky"`: never checks; not finite for a singular system.
    - `"eigh"`: always eigenvalues. At λ = 0 those below `rank_cutoff` count as zero. At λ > 0 they are kept
      as long as w + λ is above the rounding of K; what lies below is noise, and is left out.

    Under `vmap` the costly branches run only if some member of the batch needs them.
    """
    lam = jnp.asarray(damping).astype(K.dtype)
    if solver == "eigh":
        return _eigh_solve(K, b, lam)
    size = K.shape[0]
    A = K + lam * jnp.eye(size, dtype=K.dtype)

    def plain() -> Float[Array, " k"]:
        return _eliminate(A, b) if size <= UNROLLED else _substitute(jnp.linalg.cholesky(A), b)

    if solver == "cholesky":
        return plain()
    limit = 1 / rank_cutoff(size, K.dtype)
    diagonal = jnp.diagonal(A)
    certain = lam * limit > diagonal.max()

    def checked() -> Float[Array, " k"]:
        # tr(B⁻¹) for B = A scaled to unit diagonal bounds its condition number from both sides.
        L = jnp.linalg.cholesky(A)
        x = _substitute(L, b)
        inverse = solve_triangular(L, jnp.diag(jnp.sqrt(diagonal)), lower=True)
        well_posed = certain | (jnp.sum(inverse**2) < limit)
        return _cond_any(~well_posed, lambda: jnp.where(well_posed, x, _eigh_solve(K, b, lam)), lambda: x)

    return _cond_any(~certain, checked, plain)


@jax.jit
@jax.default_matmul_precision("highest")
def pinv_solve(
    J: Float[Array, "k n"], b: Float[Array, " k"], damping: Float[Array, ""] | float
) -> Float[Array, " n"]:
    """J^{+(λ)} b without squaring the condition number of J.

    It is the first block of the minimum-norm solution of [J √λI] z = b, by QR of [Jᵀ; √λI]; where R
    is singular to rounding (which takes λ ≈ 0), by the SVD of J with a relative cut-off.
    """
    lam = jnp.asarray(damping).astype(J.dtype)
    k, n = J.shape
    tiny = rank_cutoff(max(k, n), J.dtype)
    if k > n:  # then R is singular at λ = 0 and [J; √λI] is the smaller system
        A = jnp.concatenate([J, jnp.sqrt(lam) * jnp.eye(n, dtype=J.dtype)])
        Q, R = jnp.linalg.qr(A)
        x = solve_triangular(R, Q[:k].T @ b)
    else:
        A = jnp.concatenate([J.T, jnp.sqrt(lam) * jnp.eye(k, dtype=J.dtype)])
        Q, R = jnp.linalg.qr(A)
        x = Q[:n] @ solve_triangular(R, b, trans=1)
    diagonal = jnp.abs(jnp.diagonal(R))
    singular = ~jnp.all(jnp.isfinite(x)) | (diagonal.min() <= tiny * diagonal.max())

    def by_svd() -> Float[Array, " n"]:
        U, s, Vt = jnp.linalg.svd(J, full_matrices=False)
        keep = s > tiny * s.max()
        weights = jnp.where(keep, s / jnp.where(keep, s**2 + lam, 1), 0)
        return jnp.where(singular, Vt.T @ (weights * (U.T @ b)), x)

    return _cond_any(singular, by_svd, lambda: x)


def psd_eigh(K: Float[Array, "k k"]) -> tuple[Float[Array, " k"], Float[Array, "k k"], Bool[Array, " k"]]:
    """Eigenvalues (clipped at zero), eigenvectors, and which eigenvalues are above the rank cut-off."""
    w, V = jnp.linalg.eigh(K)
    w = jnp.maximum(w, 0)
    return w, V, w > rank_cutoff(K.shape[0], K.dtype) * w.max()


def _substitute(L: Float[Array, "k k"], b: Float[Array, " k"]) -> Float[Array, " k"]:
    """(LLᵀ)⁻¹b."""
    return solve_triangular(L, solve_triangular(L, b, lower=True), lower=True, trans=1)


def _eliminate(A: Float[Array, "k k"], b: Float[Array, " k"]) -> Float[Array, " k"]:
    """A⁻¹b for positive definite A by Cholesky's elimination, unrolled; not finite for a singular A."""
    rest, rows = jnp.concatenate([A, b[:, None]], axis=1), []
    for _ in range(A.shape[0]):  # each row is one of [Lᵀ | L⁻¹b], from its diagonal on
        row = rest[0] / jnp.sqrt(rest[0, 0])
        rest = rest[1:, 1:] - row[1:-1, None] * row[None, 1:]
        rows.append(row)
    x = jnp.zeros(0, A.dtype)
    for row in reversed(rows):
        first = (row[-1] - jnp.sum(row[1:-1] * x)) / row[0]
        x = jnp.concatenate([first[None], x])
    return x


def _eigh_solve(K: Float[Array, "k k"], b: Float[Array, " k"], lam: Float[Array, ""]) -> Float[Array, " k"]:
    w, V, keep = psd_eigh(K)
    # K is known to a few eps‖K‖ only: where w + λ is less than that, 1/(w + λ) would magnify rounding errors.
    keep = keep | ((lam > 0) & (w + lam > rank_cutoff(1, K.dtype) * w.max()))
    inverse = jnp.where(keep, 1 / jnp.where(keep, w + lam, 1), 0)
    return V @ (inverse * (V.T @ b))


def _cond_any(condition, yes, no):
    """`lax.cond` on a condition that stays a branch under `vmap`: taken if any member needs it."""
    return jax.lax.cond(eqxi.unvmap_any(condition), yes, no)
