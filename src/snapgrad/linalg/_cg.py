"""Preconditioned conjugate gradients on K + λI, for kernels too large to factor.

K is a matrix or only a function v ↦ K v; for a Jacobian that is `lambda v: jac.mv(jac.rmv(v))`, one
reverse and one forward pass. The preconditioner is a low-rank approximation of K, either from randomly
pivoted Cholesky (Chen, Epperly, Tropp and Webber, 2025; reads `rank` columns of a matrix) or from a
Gaussian Nyström sketch (Frangella, Tropp and Udell, 2023; `rank` products).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import Precision
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._checks import Given, positive_int, real_scalar
from ._gram import psd_eigh, rank_cutoff
from ._select import pivoted_cholesky

Kernel: TypeAlias = Float[Array, "k k"] | Callable[[Float[Array, " k"]], Float[Array, " k"]]
"""A positive semidefinite matrix, or the function that multiplies by it."""

TOGETHER = 8
"""So many products with K are taken at once: more fill a core no better, and each holds a Jᵀv."""


class LowRank(eqx.Module):
    """A low-rank approximation U diag(s) Uᵀ ≈ K.

    - `vectors`: U, `[k, r]`, with orthonormal columns.
    - `values`: s, `[r]`, the largest first.

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
        """Applies the inverse of a preconditioner, P = (UsUᵀ + λI) / (s_r + λ) on the span of U and the
        identity on the rest; returns P⁻¹ v.

        s_r is the smallest value for which s + λ is not lost beside the largest: less is rounding error.
        """
        if self.values.shape[0] == 0:
            return v
        sizes = self.values + damping
        known = sizes > rank_cutoff(sizes.shape[0], sizes.dtype) * sizes[0]
        least = jnp.min(jnp.where(known, sizes, sizes[0]))
        ratio = jnp.where(known, least / jnp.where(known, sizes, 1), 1)
        inside = jnp.matmul(self.vectors.T, v, precision=Precision.HIGHEST)
        return v + jnp.matmul(self.vectors, (ratio - 1) * inside, precision=Precision.HIGHEST)


@dataclass(frozen=True)
class CG:
    """Conjugate gradients as the `solver` of a method: products with J and Jᵀ, and neither kernel nor rows.

    `solver="cg"` is `solver=sg.CG()`. The system is (JJᵀ + λI)z = u or, where there are more rows than
    parameters, (JᵀJ + λI)x = Jᵀu. A method with this solver reports `cg_steps`, the iterations of its last
    step; `cg_residual`, the largest relative residual of its solves; and `cg_unconverged`, in how many steps
    so far that was above the tolerance.

    **Arguments:**

    - `tolerance`: a solve stops once its residual is at most this times its right-hand side; by default 1e-6
      in float64 and the square root of the rounding error, 3.5e-4, in float32.
    - `max_steps`: a solve stops after this many iterations in any case, with the least residual that it met.
    - `rank`: the rank of the Nyström preconditioner, which takes this many more products for each batch; 0
      for none. Kernels of networks have few large eigenvalues, and the smaller λ, the more it saves.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 8))
    lin = sg.Linearisation(jnp.ones(6), sg.DenseJacobian(J))
    method = sg.Spring(damping=1e-3, momentum=0.9, solver=sg.CG(tolerance=1e-6, rank=4))
    direction, state = method.direction(lin, method.init(jnp.zeros(8)))
    method.report(state)["cg_residual"]                           # at most 1e-6, or it did not converge
    ```
    """

    tolerance: float | None = None
    max_steps: int = 200
    rank: int = 64

    def __post_init__(self) -> None:
        if self.tolerance is not None:
            real_scalar("tolerance", self.tolerance, low=0, below=1)
        positive_int("max_steps", self.max_steps)
        if self.rank != 0:
            positive_int("rank", self.rank)

    def goal(self, dtype: DTypeLike) -> float:
        """Returns the relative residual at which iterations end, for numbers of this type."""
        least = max(1e-6, float(jnp.finfo(dtype).eps) ** 0.5)
        return least if self.tolerance is None else float(self.tolerance)


class CGResult(NamedTuple):
    """What `sg.linalg.cg_solve` returns.

    - `solution`: x.
    - `steps`: how many steps it took.
    - `residual`: ‖b − (K + λI)x‖ / ‖b‖, computed afresh at the end, so that it is not the one that the
      recursion believes in.

    ```python
    found = sg.linalg.cg_solve(jnp.diag(jnp.array([1.0, 2.0])), jnp.ones(2), damping=0.5)
    found.solution, found.steps, found.residual
    ```
    """

    solution: Float[Array, " k"]
    steps: Int[Array, ""]
    residual: Float[Array, ""]


@jax.default_matmul_precision("highest")
def cg_solve(
    K: Kernel,
    b: Float[Array, " k"],
    damping: Float[Array, ""] | float,
    *,
    preconditioner: LowRank | None = None,
    initial: Float[Array, " k"] | None = None,
    tolerance: Float[Array, ""] | float = 1e-10,
    max_steps: int | None = None,
) -> CGResult:
    """Solves (K + λI) x = b by preconditioned conjugate gradients, without factorising anything.

    **Arguments:**

    - `K`: a positive semidefinite matrix, or the function v ↦ K v.
    - `b`: the right-hand side, of k entries.
    - `damping`: the regularisation λ ≥ 0; the smaller it is, the more steps are needed.
    - `preconditioner`: a low-rank approximation of K, which saves most of the steps where K has few large
      eigenvalues.
    - `initial`: a guess of x, such as the solution of a similar system. The iteration starts from its best
      multiple, so that a bad guess costs one product and nothing else.
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
    A = lambda v: product(v).astype(b.dtype) + lam * v  # noqa: E731
    low = preconditioner
    inverse = lambda v: v if low is None else low.precondition(v, lam).astype(b.dtype)  # noqa: E731
    limit = positive_int("max_steps", 10 * b.shape[0] if max_steps is None else max_steps)
    size = jnp.linalg.norm(b)

    def unfinished(state: _Iterate) -> Bool[Array, ""]:
        return (state.size > tolerance * size) & (state.steps < limit) & (state.rz > 0)

    def step(state: _Iterate) -> _Iterate:
        x, r, p, rz = state.x, state.r, state.p, state.rz
        Ap = A(p)
        curvature = jnp.vdot(p, Ap)
        alpha = jnp.where(curvature > 0, rz / jnp.where(curvature > 0, curvature, 1), 0)
        x, r = x + alpha * p, r - alpha * Ap
        z = inverse(r)
        # Without curvature there is no step to take: stop by an rz of zero.
        new = jnp.where(curvature > 0, jnp.vdot(r, z), 0)
        return state.then(x, r, z + new / rz * p, new)

    x, r = jnp.zeros_like(b), b
    if initial is not None:
        image = A(initial)
        length = jnp.vdot(initial, image)
        scale = jnp.vdot(initial, b) / jnp.where(length > 0, length, 1)
        x, r = scale * initial, b - scale * image
    z = inverse(r)
    start = _Iterate(x, r, z, jnp.vdot(r, z), jnp.linalg.norm(r), x, jnp.linalg.norm(r), jnp.asarray(0))
    end = lax.while_loop(unfinished, step, start)
    # The recursion for r drifts where x is large: what counts is the residual that x really has.
    least = jnp.linalg.norm(b - A(end.best))
    worse = least > start.size
    residual = jnp.where(worse, start.size, least) / jnp.where(size > 0, size, 1)
    return CGResult(jnp.where(worse, start.x, end.best), end.steps, residual)


class _Iterate(NamedTuple):
    """The iterate x, its residual r, the next direction p, rᵀP⁻¹r and ‖r‖; and the x of the least ‖r‖."""

    x: Float[Array, " k"]
    r: Float[Array, " k"]
    p: Float[Array, " k"]
    rz: Float[Array, ""]
    size: Float[Array, ""]
    best: Float[Array, " k"]
    least: Float[Array, ""]
    steps: Int[Array, ""]

    def then(self, x: Array, r: Array, p: Array, rz: Array) -> "_Iterate":
        """The next one. ‖r‖ may grow on the way: what is kept is never worse than the start."""
        size = jnp.linalg.norm(r)
        better = size < self.least
        best = jnp.where(better, x, self.best)
        return _Iterate(x, r, p, rz, size, best, jnp.minimum(size, self.least), self.steps + 1)


def nystrom(
    K: Kernel, *, size: int, rank: int, key: PRNGKeyArray, dtype: Given[DTypeLike | None, ""] = None
) -> LowRank:
    """The Nyström approximation (KΩ)(ΩᵀKΩ)⁺(KΩ)ᵀ for a Gaussian Ω with `rank` columns.

    **Arguments:**

    - `K`: a positive semidefinite matrix, or the function v ↦ K v, which is called `rank` times.
    - `size`: the number k of rows of K.
    - `rank`: the rank of the approximation, at most `size`.
    - `key`: the randomness of Ω.
    - `dtype`: the dtype of K; for a function by default JAX's own for real numbers.

    **Returns:** the approximation as a `LowRank`.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    low = sg.linalg.nystrom(lambda v: J @ (J.T @ v), size=6, rank=4, key=jax.random.key(1))
    ```
    """
    rank = positive_int("rank", rank, most=size, most_name="the number of rows")
    if dtype is None:
        dtype = jnp.result_type(float) if callable(K) else K.dtype
    omega = jnp.linalg.qr(jax.random.normal(key, (size, rank), dtype))[0]
    Y = lax.map(_product(K), omega.T, batch_size=TOGETHER).T.astype(dtype)
    core = jnp.matmul(omega.T, Y, precision=Precision.HIGHEST)
    w, V, keep = psd_eigh((core + core.T) / 2)
    root = jnp.where(keep, 1 / jnp.sqrt(jnp.where(keep, w, 1)), 0)
    B = jnp.matmul(Y, V * root[None, :], precision=Precision.HIGHEST)
    U, s, _ = jnp.linalg.svd(B, full_matrices=False)
    return LowRank(U, s**2)


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
