"""Factor K + λI once, solve with it many times."""

import abc
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax.linalg import triangular_solve
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from .. import _memory
from .._checks import one_of
from ._gram import gram, psd_eigh, rank_cutoff
from ._symmetric import on_gpu

Solver: TypeAlias = Literal["auto", "cholesky", "eigh", "qr"]
"""The ways to solve one system, explained at `sg.linalg.psd_solve` and `sg.linalg.pinv_solve`."""
SOLVERS: tuple[Solver, ...] = get_args(Solver)
"""How a step solves its system: see `psd_solve` and `pinv_solve`."""
Factorisation: TypeAlias = Solver | Literal["cholesky_qr"]
"""The ways to factor a system that is solved many times, explained at `sg.linalg.factorise`."""
FACTORISATIONS: tuple[Factorisation, ...] = (*SOLVERS, "cholesky_qr")
"""How `factorise` does, for many solves with one system."""

MOST_PASSES = 3
"""Of Cholesky-QR; a third one only mends what is near the edge of what it can do."""
WELL_POSED_POWER = 0.2
"""A pass is the last if no pivot of it is below eps to this power: it then loses less than the solves do."""

Matrix: TypeAlias = Float[Array, "_ _"] | Callable[[], Float[Array, "_ _"]]
"""A matrix, or a function without arguments that returns it and is called only where it is needed."""


class AbstractFactors(eqx.Module):
    """A factorisation of K + λI for a positive semidefinite K; `sg.linalg.factorise` makes one.

    ```python
    factors = sg.linalg.factorise(jnp.diag(jnp.array([1.0, 2.0])), jnp.asarray(0.1))
    factors.solve(jnp.ones(2)), factors.inverse_diagonal()     # both [1/1.1, 1/2.1]
    ```
    """

    @abc.abstractmethod
    def solve(self, b: Float[Array, " k"]) -> Float[Array, " k"]:
        """Solves for one right-hand side `[k]` or for several `[k, p]`; returns (K + λI)⁺ b, of the same
        shape.
        """

    @abc.abstractmethod
    def inverse_diagonal(self) -> Float[Array, " k"]:
        """Returns the diagonal of (K + λI)⁺, one number per row."""

    @abc.abstractmethod
    def for_many(self) -> "AbstractFactors":
        """Returns the factors in the form that solves many systems, one after the other, soonest on this
        machine.

        It may be less accurate than the factors, and then wants refinement, as `sg.linalg.cgls` gives.
        """


class TriangularFactors(AbstractFactors):
    """K + λI = LLᵀ. Nothing is checked: a singular matrix gives numbers that are not finite."""

    L: Float[Array, "k k"]

    def solve(self, b: Float[Array, " k"]) -> Float[Array, " k"]:
        """L⁻ᵀL⁻¹b."""
        return solve_triangular(self.L, solve_triangular(self.L, b, lower=True), lower=True, trans=1)

    def inverse_diagonal(self) -> Float[Array, " k"]:
        """The squared norms of the columns of L⁻¹."""
        return self.inverted().inverse_diagonal()

    def inverted(self) -> "InverseFactors":
        """L⁻¹, with which a solve is two products."""
        eye = jnp.eye(self.L.shape[0], dtype=self.L.dtype)
        return InverseFactors(solve_triangular(self.L, eye, lower=True))

    def for_many(self) -> AbstractFactors:
        """On a GPU L⁻¹: a triangular system with one right-hand side is solved row after row there."""
        return self.inverted() if on_gpu() else self


class InverseFactors(AbstractFactors):
    """K + λI = LLᵀ with L⁻¹ at hand. A solve errs by the condition of L, so that it wants refinement."""

    inverse: Float[Array, "k k"]  # L⁻¹

    def solve(self, b: Float[Array, " k"]) -> Float[Array, " k"]:
        """L⁻ᵀL⁻¹b."""
        return (self.inverse @ b) @ self.inverse

    def inverse_diagonal(self) -> Float[Array, " k"]:
        """The squared norms of the columns of L⁻¹."""
        return jnp.sum(self.inverse**2, axis=0)

    def for_many(self) -> AbstractFactors:
        """As it is."""
        return self


class EigenFactors(AbstractFactors):
    """K + λI = V diag(w + λ)Vᵀ; `inverses` are 1/(w + λ), and 0 where w + λ counts as zero."""

    V: Float[Array, "k k"]
    inverses: Float[Array, " k"]

    def solve(self, b: Float[Array, " k"]) -> Float[Array, " k"]:
        """V diag(w + λ)⁺Vᵀb."""
        return self.V @ (self.inverses * (self.V.T @ b))

    def inverse_diagonal(self) -> Float[Array, " k"]:
        """Σ_j V_ij²/(w_j + λ) for each i."""
        return self.V**2 @ self.inverses

    def for_many(self) -> AbstractFactors:
        """As it is."""
        return self


@jax.default_matmul_precision("highest")
def factorise(
    K: Matrix,
    damping: Float[Array, ""] | float,
    solver: Factorisation = "auto",
    *,
    rows: Matrix | None = None,
    unit: Float[Array, ""] | float | None = None,
) -> AbstractFactors:
    """Factors of K + λI for a positive semidefinite K, to `solve` with as often as needed.

    **Arguments:**

    - `K`: the matrix, or a function without arguments that returns it.
    - `damping`: the regularisation λ ≥ 0.
    - `solver`:
        - `"eigh"`: eigenvalues of K, right for every λ. At λ = 0 those below `rank_cutoff` count as zero,
          which gives the pseudoinverse; at λ > 0 those for which w + λ is lost in the rounding of K.
        - `"cholesky"`: several times cheaper, but not finite where K + λI is singular to rounding.
        - `"qr"`: the QR factors of A stacked on √λI; it keeps what is lost by squaring A. It needs `rows`.
        - `"cholesky_qr"`: Cholesky where λ is above the rounding of K; below, Cholesky factors of A times the
          inverse of the last ones until these are as good as QR. It is several matrix products, which a GPU
          does far faster than QR. It needs `rows`.
        - `"auto"`: eigenvalues; with `rows`, Cholesky where λ is above the rounding of K and QR below.
    - `rows`: a matrix A with AᵀA = K, or a function without arguments that returns it.
    - `unit`: the size of the diagonal of K, with which λ is compared; by default the mean of the diagonal.

    **Returns:** factors with three methods: `solve(b)` for (K + λI)⁺b, `inverse_diagonal()` for the diagonal
    of (K + λI)⁺, and `for_many()` for factors that are quicker and less accurate, where many solves follow.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    factors = sg.linalg.factorise(J @ J.T, damping=1e-6)
    x, y = factors.solve(jnp.ones(6)), factors.solve(jnp.arange(6.0))
    ```
    """
    one_of("solver", solver, FACTORISATIONS)
    form = jax.eval_shape(lambda: _value(K))
    copies = 3 if solver == "cholesky" else 4  # with K; measured to be 3.2, and 4 to 7
    needed = copies * form.size * form.dtype.itemsize
    _memory.require(needed, f"factorising {form.shape[0]} equations", _memory.FEWER_ROWS)
    if solver == "cholesky":
        return _by_cholesky(K, damping)
    if solver == "eigh" or (solver == "auto" and rows is None):
        return _by_eigh(K, damping)
    if rows is None:
        raise ValueError(f"`rows` must be given for `solver` = {solver!r}: a matrix A with AᵀA = K.")
    if solver == "qr":
        return _by_qr(rows, damping)
    size = jnp.trace(_value(K)) / form.shape[0] if unit is None else jnp.asarray(unit)
    certain = (rank_cutoff(form.shape[0], form.dtype) * size).astype(form.dtype)
    lam = jnp.asarray(damping).astype(form.dtype)
    if solver == "cholesky_qr":
        return _by_cholesky_qr(K, rows, lam, certain)
    return jax.lax.cond(lam > certain, lambda: _by_cholesky(K, lam), lambda: _by_qr(rows, lam))


def _value(matrix: Matrix) -> Float[Array, "_ _"]:
    return matrix() if callable(matrix) else matrix


def _by_cholesky(K: Matrix, damping: Float[Array, ""] | float) -> TriangularFactors:
    matrix = _value(K)
    return TriangularFactors(_cholesky(matrix + _ridge(damping, matrix.shape[0], matrix.dtype)))


def _by_qr(rows: Matrix, damping: Float[Array, ""] | float) -> TriangularFactors:
    A = _value(rows)
    stacked = jnp.concatenate([A, _ridge(jnp.sqrt(damping), A.shape[1], A.dtype)])
    return TriangularFactors(jnp.linalg.qr(stacked, mode="r").T)


def _by_cholesky_qr(
    K: Matrix, rows: Matrix, lam: Float[Array, ""], certain: Float[Array, ""]
) -> TriangularFactors:
    """Shifted Cholesky-QR of A stacked on √λI (Fukaya et al. 2020); the shift makes λ up to `certain`."""
    first = _by_cholesky(K, jnp.maximum(lam, certain)).L

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        _, pivot, passes = state
        return (pivot < jnp.finfo(pivot.dtype).eps ** WELL_POSED_POWER) & (passes < MOST_PASSES)

    def mend() -> Float[Array, "k k"]:
        A = _value(rows)
        root = _ridge(jnp.sqrt(lam), A.shape[1], A.dtype)

        def once(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            L, _, passes = state
            blocks = [triangular_solve(L, B, lower=True, transpose_a=True) for B in (A, root)]
            C = _cholesky(gram(blocks[0].T) + gram(blocks[1].T))  # AᵀA + λI = L(CCᵀ)Lᵀ
            return L @ C, jnp.min(jnp.diagonal(C)), passes + 1

        start = first, jnp.zeros((), first.dtype), jnp.zeros((), int)
        return jax.lax.while_loop(unfinished, once, start)[0]

    return TriangularFactors(jax.lax.cond(lam > certain, lambda: first, mend))


def _by_eigh(K: Matrix, damping: Float[Array, ""] | float) -> EigenFactors:
    matrix = _value(K)
    lam = jnp.asarray(damping).astype(matrix.dtype)
    w, V, keep = psd_eigh(matrix)
    # K is known to a few eps‖K‖ only: where w + λ is less than that, 1/(w + λ) would magnify rounding errors.
    keep = keep | ((lam > 0) & (w + lam > rank_cutoff(1, w.dtype) * w.max()))
    return EigenFactors(V, jnp.where(keep, 1 / jnp.where(keep, w + lam, 1), 0))


def _cholesky(matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """L with LLᵀ = matrix, of which only the lower triangle is read: no copy to make it symmetric."""
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


def _ridge(value: Float[Array, ""] | float, size: int, dtype: jnp.dtype) -> Float[Array, "_ _"]:
    return jnp.asarray(value).astype(dtype) * jnp.eye(size, dtype=dtype)
