"""Regularised pseudoinverses, one solve at a time: (K + λI)⁺ from a gram matrix, J^{+(λ)} from J itself."""

from functools import partial

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from ._factorise import Solver, factorise
from ._gram import least_damping, rank_cutoff

UNROLLED = 16
"""Systems up to this size are solved by plain arithmetic, which costs less than calls into LAPACK."""


@partial(jax.jit, static_argnames="solver")  # eager callers would else compile its branches each time
@jax.default_matmul_precision("highest")
def psd_solve(
    K: Float[Array, "k k"],
    b: Float[Array, " k"],
    damping: Float[Array, ""] | float,
    solver: Solver = "auto",
) -> Float[Array, " k"]:
    """Returns (K + λI)⁺ b for positive semidefinite K and λ ≥ 0; at λ = 0 that is the pseudoinverse of K.

    **Arguments:**

    - `K`: the matrix, `[k, k]`, symmetric and positive semidefinite, which is not checked.
    - `b`: the right-hand side, `[k]`.
    - `damping`: the regularisation λ ≥ 0.
    - `solver`: `"auto"`, Cholesky wherever it is certain to be accurate, eigenvalues elsewhere. Certain means
      that λ is above `sg.linalg.least_damping` or, failing that, that the inverse of the matrix scaled to
      unit diagonal bounds the condition number likewise; so rows of very different size do not count as
      dependent. `"cholesky"` never checks, and is not finite for a singular system; `"eigh"` always takes
      eigenvalues, as `sg.linalg.factorise` does.

    Under `vmap` the costly branches run only if some member of the batch needs them.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    x = sg.linalg.psd_solve(J @ J.T, jnp.ones(6), damping=1e-3)
    ```
    """
    lam = jnp.asarray(damping).astype(K.dtype)
    by_eigh = lambda: factorise(K, lam, "eigh").solve(b)  # noqa: E731
    if solver == "eigh":
        return by_eigh()
    size = K.shape[0]

    def plain() -> Float[Array, " k"]:
        if size <= UNROLLED:
            return _eliminate(K + lam * jnp.eye(size, dtype=K.dtype), b)
        return factorise(K, lam, "cholesky").solve(b)

    if solver == "cholesky":
        return plain()
    if size <= UNROLLED:  # k times the diagonal bounds ‖K‖ too, and costs nothing where a solve costs little
        certain = lam > rank_cutoff(size, K.dtype) * jnp.diagonal(K).max()
    else:
        certain = lam > least_damping(K)

    def checked() -> Float[Array, " k"]:
        # ‖B‖ tr(B⁻¹) for B = K + λI scaled to unit diagonal bounds its condition number.
        factors, diagonal = factorise(K, lam, "cholesky"), jnp.diagonal(K) + lam
        x, root = factors.solve(b), jnp.sqrt(diagonal)
        norm = 1 + jnp.linalg.norm(K / (root[:, None] * root[None]))
        condition = norm * jnp.sum(factors.inverse_diagonal() * diagonal)
        well_posed = certain | (condition * rank_cutoff(1, K.dtype) < 1)
        return _cond_any(~well_posed, lambda: jnp.where(well_posed, x, by_eigh()), lambda: x)

    return _cond_any(~certain, checked, plain)


@jax.jit
@jax.default_matmul_precision("highest")
def pinv_solve(
    J: Float[Array, "k n"], b: Float[Array, " k"], damping: Float[Array, ""] | float
) -> Float[Array, " n"]:
    """Returns J^{+(λ)} b = Jᵀ(JJᵀ + λI)⁺b without squaring the condition number of J.

    **Arguments:**

    - `J`: the matrix, `[k, n]`, of any rank.
    - `b`: the right-hand side, `[k]`.
    - `damping`: the regularisation λ ≥ 0.

    It is the first block of the minimum-norm solution of [J √λI] z = b, by QR of [Jᵀ; √λI]; where R
    is singular to rounding (which takes λ ≈ 0), by the SVD of J with a relative cut-off.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    x = sg.linalg.pinv_solve(J, jnp.ones(6), damping=0.0)          # the least-squares solution of least norm
    ```
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


def _cond_any(condition, yes, no):
    """`lax.cond` on a condition that stays a branch under `vmap`: taken if any member needs it."""
    return jax.lax.cond(eqxi.unvmap_any(condition), yes, no)
