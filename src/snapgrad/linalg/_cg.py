"""Preconditioned conjugate gradients on K + λI, for kernels too large to factor.

K is a matrix or only a function v ↦ K v; for a Jacobian that is `lambda v: jac.mv(jac.rmv(v))`, one
reverse and one forward pass. The preconditioner is a low-rank approximation of K, either from randomly
pivoted Cholesky (Chen, Epperly, Tropp and Webber, 2025; reads `rank` columns of a matrix) or from a
Gaussian Nyström sketch (Frangella, Tropp and Udell, 2023; `rank` products).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import Precision
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._checks import positive_int
from ._select import pivoted_cholesky

Kernel: TypeAlias = Float[Array, "k k"] | Callable[[Float[Array, " k"]], Float[Array, " k"]]
"""A positive semidefinite matrix, or the function that multiplies by it."""


class LowRank(eqx.Module):
    """A low-rank approximation U diag(s) Uᵀ ≈ K, with orthonormal columns U and the largest value of s first.

    `sg.linalg.nystrom` and `sg.linalg.rp_cholesky` make one. Its use is as the `preconditioner` of
    `sg.linalg.cg_solve`.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    low = sg.linalg.rp_cholesky(J @ J.T, rank=4, key=jax.random.key(1))
    K = (low.vectors * low.values[None, :]) @ low.vectors.T       # J Jᵀ again, which has rank 4
    ```
    """

    vectors: Float[Array, "k r"]
    values: Float[Array, " r"]

    def precondition(self, v: Float[Array, " k"], damping: Float[Array, ""]) -> Float[Array, " k"]:
        """P⁻¹ v for P = (UsUᵀ + λI) / (s_r + λ) on the span of U and the identity on the rest."""
        inside = jnp.matmul(self.vectors.T, v, precision=Precision.HIGHEST)
        scale = jnp.where(self.values + damping > 0, self.values + damping, 1)
        change = ((self.values[-1] + damping) / scale - 1) * inside
        return v + jnp.matmul(self.vectors, change, precision=Precision.HIGHEST)


class CGResult(NamedTuple):
    """What `cg_solve` returns: the solution x, how many steps it took, and ‖b − (K + λI)x‖ / ‖b‖.

    The residual is computed afresh at the end, so it is not the one that the recursion believes in.
    """

    solution: Float[Array, " k"]
    steps: Int[Array, ""]
    residual: Float[Array, ""]


def cg_solve(
    K: Kernel,
    b: Float[Array, " k"],
    damping: Float[Array, ""] | float,
    *,
    preconditioner: LowRank | None = None,
    tolerance: float = 1e-10,
    max_steps: int | None = None,
) -> CGResult:
    """Solves (K + λI) x = b by preconditioned conjugate gradients, without factorising anything.

    **Arguments:**

    - `K`: a positive semidefinite matrix, or the function v ↦ K v.
    - `b`: the right-hand side, of k entries.
    - `damping`: λ ≥ 0; the smaller it is, the more steps are needed.
    - `preconditioner`: a low-rank approximation of K, which saves most of the steps where K has few large
      eigenvalues.
    - `tolerance`: it stops once ‖residual‖ is at most this times ‖b‖.
    - `max_steps`: it stops after this many steps in any case; by default 10 k.

    **Returns:** `solution`, `steps` and `residual`, the relative residual at the end. It does not raise where
    the tolerance was not reached, so look at `residual`.

    ```python
    jac = sg.DenseJacobian(jax.random.normal(jax.random.key(0), (6, 4)))
    product = lambda v: jac.mv(jac.rmv(v))                        # v ↦ J Jᵀ v; no kernel is formed
    low = sg.linalg.nystrom(product, size=6, rank=4, key=jax.random.key(1))
    found = sg.linalg.cg_solve(product, jnp.ones(6), damping=1e-3, preconditioner=low)
    found.solution, int(found.steps), float(found.residual)
    ```
    """
    lam = jnp.asarray(damping).astype(b.dtype)
    product = _product(K)
    A = lambda v: product(v) + lam * v  # noqa: E731
    inverse = lambda v: v if preconditioner is None else preconditioner.precondition(v, lam)  # noqa: E731
    limit = positive_int("max_steps", 10 * b.shape[0] if max_steps is None else max_steps)
    goal = tolerance * jnp.linalg.norm(b)

    def unfinished(state) -> Any:
        x, r, p, rz, steps = state
        del x, p
        return (jnp.linalg.norm(r) > goal) & (steps < limit) & (rz > 0)

    def step(state) -> Any:
        x, r, p, rz, steps = state
        Ap = A(p)
        curvature = jnp.vdot(p, Ap)
        alpha = jnp.where(curvature > 0, rz / jnp.where(curvature > 0, curvature, 1), 0)
        x, r = x + alpha * p, r - alpha * Ap
        z = inverse(r)
        # Without curvature there is no step to take: stop by an rz of zero.
        new = jnp.where(curvature > 0, jnp.vdot(r, z), 0)
        return x, r, z + new / rz * p, new, steps + 1

    z = inverse(b)
    start = jnp.zeros_like(b), b, z, jnp.vdot(b, z), jnp.asarray(0)
    x, _, _, _, steps = lax.while_loop(unfinished, step, start)
    size = jnp.linalg.norm(b)
    residual = jnp.linalg.norm(b - A(x)) / jnp.where(size > 0, size, 1)
    return CGResult(x, steps, residual)


def nystrom(K: Kernel, *, size: int, rank: int, key: PRNGKeyArray, dtype: Any = None) -> LowRank:
    """The Nyström approximation (KΩ)(ΩᵀKΩ)⁺(KΩ)ᵀ for a Gaussian Ω with `rank` columns.

    **Arguments:**

    - `K`: a positive semidefinite matrix, or the function v ↦ K v, which is called `rank` times.
    - `size`: the number k of rows of K.
    - `rank`: the rank of the approximation, at most `size`.
    - `key`: the randomness of Ω.
    - `dtype`: the dtype of K; by default JAX's own for real numbers.

    **Returns:** the approximation as a `LowRank`.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    low = sg.linalg.nystrom(lambda v: J @ (J.T @ v), size=6, rank=4, key=jax.random.key(1))
    ```
    """
    rank = positive_int("rank", rank, most=size, most_name="the number of rows")
    product = _product(K)
    dtype = jnp.result_type(float) if dtype is None else dtype
    omega = jnp.linalg.qr(jax.random.normal(key, (size, rank), dtype))[0]
    Y = lax.map(product, omega.T).T
    shift = jnp.finfo(dtype).eps * jnp.linalg.norm(Y) * size**0.5
    Y = Y + shift * omega
    core = jnp.matmul(omega.T, Y, precision=Precision.HIGHEST)
    L = jnp.linalg.cholesky((core + core.T) / 2)
    B = solve_triangular(L, Y.T, lower=True).T
    U, s, _ = jnp.linalg.svd(B, full_matrices=False)
    return LowRank(U, jnp.maximum(s**2 - shift, 0))


def rp_cholesky(K: Float[Array, "k k"], *, rank: int, key: PRNGKeyArray) -> LowRank:
    """The low-rank approximation of K by randomly pivoted Cholesky, which reads `rank` of its columns.

    **Arguments:**

    - `K`: a positive semidefinite matrix.
    - `rank`: how many columns are read, at most k; also the rank of the approximation.
    - `key`: the randomness of the pivots.

    **Returns:** the approximation as a `LowRank`.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    low = sg.linalg.rp_cholesky(J @ J.T, rank=4, key=jax.random.key(1))
    x = sg.linalg.cg_solve(J @ J.T, jnp.ones(6), damping=1e-3, preconditioner=low).solution
    ```
    """
    rank = positive_int("rank", rank, most=K.shape[0], most_name="the number of rows")
    U, s, _ = jnp.linalg.svd(pivoted_cholesky(key, K, rank).factor, full_matrices=False)
    return LowRank(U, s**2)


def _product(K: Kernel) -> Callable[[Float[Array, " k"]], Float[Array, " k"]]:
    if callable(K):
        return K
    return lambda v: jnp.matmul(K, v, precision=Precision.HIGHEST)
