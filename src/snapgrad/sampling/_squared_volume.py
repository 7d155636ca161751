"""Squared volume sampling SVS(J, k, λ): P(S) ∝ det(J_S J_Sᵀ + λI) over the k-subsets S of the rows of J."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.lax import Precision
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._checks import Given, positive_int, real_array, real_scalar
from .._contracts import AbstractSampler, Batch, Linearisation, State
from ..linalg import (
    esp_ratios,
    log_esp,
    rank_cutoff,
    select_by_volume,
    select_vectors_by_volume,
    volume_sample,
    volume_tables,
)

_LANES = 256  # samples drawn side by side: enough to fill a vector unit, few enough not to wait long


class SquaredVolume(AbstractSampler):
    """Exact squared volume sampling of k rows of a fixed matrix J: P(S) ∝ det(J_S J_Sᵀ + λI).

    Build it with `SquaredVolume.from_matrix(J, sample_size, damping)`; what it holds are tables. Preparing
    takes a singular value decomposition; a sample then costs O(k³ log k + k log k log m), with no term that
    grows like m. At λ = 0 this is volume sampling (a k-DPP with kernel JJᵀ), which needs k ≤ rank(J).

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    sampler = sg.sampling.SquaredVolume.from_matrix(J, sample_size=3, damping=1e-3)
    rows = sampler.sample(jax.random.key(1))                   # [3]; sampler.sample(key, (N,)) is [N, 3]
    sampler.log_prob(rows)
    other = sampler.with_damping(0.1)                          # cheap: another λ, prepared once
    ```

    In training it draws from the same J at every step; where J changes, use `AdaptiveSquaredVolume`.
    """

    num_rows: int = eqx.field(static=True)
    vectors: Float[Array, "m e"]
    squares: Float[Array, " e"]
    cdf: Float[Array, "e m"]
    table: Float[Array, "k_plus_1 e_plus_1"]
    damping: Float[Array, ""]

    @classmethod
    def from_matrix(
        cls, J: Given[ArrayLike, "m n"], sample_size: int, damping: Given[ArrayLike, ""] = 0.0
    ) -> "SquaredVolume":
        """Prepares sampling from the rows of a matrix: decomposes J = UΣVᵀ and stores what each draw looks
        up.

        **Arguments:**

        - `J`: the m×n matrix whose rows are sampled; singular values at rounding level count as zero.
        - `sample_size`: k, the number of rows in a sample, at most m, and at most rank(J) if `damping` is 0.
        - `damping`: the regularisation λ ≥ 0.
        """
        J = real_array("J", J, ndim=2)
        k = positive_int("sample_size", sample_size, most=J.shape[0], most_name="the number of rows of `J`")
        return cls(J.shape[0], *_prepare(J, k), jnp.zeros((), J.dtype)).with_damping(damping)

    def with_damping(self, damping: Given[ArrayLike, ""]) -> "SquaredVolume":
        """Returns a sampler of the same rows with another λ. That is cheap, and `damping` may be traced."""
        lam = real_scalar("damping", damping, low=0).astype(self.squares.dtype)
        k, rank = self.sample_size, jnp.sum(self.squares > 0)
        bad = (lam == 0) & (rank < k)
        wanted = "`sample_size` must be at most the rank of `J` when `damping` is 0"
        if isinstance(bad, Tracer):
            lam = eqx.error_if(lam, bad, f"{wanted}; got {k}.")
        elif bool(bad):
            raise ValueError(f"{wanted}: the rank is {int(rank)}, got {k}. Take fewer rows or `damping` > 0.")
        return eqx.tree_at(lambda sampler: sampler.damping, self, lam)

    @property
    def sample_size(self) -> int:
        """The number k of rows in a sample."""
        return self.table.shape[0] - 1

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Int[Array, "..."]:
        """Draws independent samples, an array of row numbers `[*shape, k]`; in each of them k distinct rows
        in no particular order.
        """
        if not shape:
            return volume_sample(key, self.vectors, self.cdf, self.table, self.damping)
        return _samples(key, self, math.prod(shape)).reshape(*shape, self.sample_size)

    def log_prob(self, rows: Given[ArrayLike, "... k"]) -> Float[Array, "..."]:
        """Returns log P(S) with P(S) = det(J_S J_Sᵀ + λI) / p_k(q), for `rows` of shape `[..., k]`.

        −∞ for what cannot be drawn: a row twice, or a number that is not a row.
        """
        rows = jnp.asarray(rows)
        if not jnp.issubdtype(rows.dtype, jnp.integer):
            raise TypeError(f"`rows` must hold whole numbers, got dtype {rows.dtype}.")
        k = self.sample_size
        if rows.shape[-1:] != (k,):
            raise ValueError(f"`rows` must have {k} entries on its last axis, got shape {rows.shape}.")
        return self._log_prob(rows.reshape(-1, k)).reshape(rows.shape[:-1])

    @eqx.filter_jit
    def _log_prob(self, rows: Int[Array, "N k"]) -> Float[Array, " N"]:
        log_total = log_esp(*self._spectrum())

        def one(rows: Int[Array, " k"]) -> Float[Array, ""]:
            ordered = jnp.sort(rows)
            valid = (ordered[0] >= 0) & (ordered[-1] < self.num_rows) & jnp.all(ordered[1:] != ordered[:-1])
            # By QR of [J_Sᵀ; √λI], which does not square the condition number as a determinant would.
            scaled = self.vectors[rows] * jnp.sqrt(self.squares)[None, :]
            ridge = jnp.sqrt(self.damping) * jnp.eye(rows.size, dtype=scaled.dtype)
            R = jnp.linalg.qr(jnp.concatenate([scaled.T, ridge]), mode="r")
            log_volume = 2 * jnp.sum(jnp.log(jnp.abs(jnp.diagonal(R))))
            return jnp.where(valid, log_volume - log_total, -jnp.inf)

        return jax.vmap(one)(rows)

    @eqx.filter_jit
    def inclusion_probabilities(self) -> Float[Array, " m"]:
        """P(i ∈ S) for every row i: the diagonal of U diag(q_l D_l) Uᵀ over all m eigenvectors."""
        q, k, multiplicity = self._spectrum()
        marginals = q * esp_ratios(q, k, multiplicity)
        leverage = self.vectors**2
        inside = jnp.matmul(leverage, marginals[: self.squares.size], precision=Precision.HIGHEST)
        if multiplicity is None:
            return inside
        # The eigenvectors outside the range of J share one eigenvalue λ; only their sum of squares counts.
        return inside + jnp.maximum(1 - jnp.sum(leverage, axis=1), 0) * marginals[-1]

    def _spectrum(self) -> tuple[Float[Array, " _"], int, Float[Array, " _"] | None]:
        """Eigenvalues q of JJᵀ + λI, k, and multiplicities where λ itself is an eigenvalue."""
        q = self.squares + self.damping
        repeated = self.num_rows - q.size
        if not repeated:
            return q, self.sample_size, None
        multiplicity = jnp.ones_like(q, shape=q.size + 1).at[-1].set(repeated)
        return jnp.append(q, self.damping), self.sample_size, multiplicity

    def init(self, key: PRNGKeyArray) -> State:
        """Returns the empty state `()`: draws do not depend on each other."""
        del key
        return ()

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Returns fresh rows of the matrix that the sampler was prepared for."""
        del linearise
        return self.sample(key), state


class AdaptiveSquaredVolume(AbstractSampler):
    """Exact squared volume sampling from the Jacobian at the current parameters, prepared anew every step.

    A step linearises all m rows and decomposes them: O(m²n + m³) if n > m, from the gram matrix, and O(mn²)
    otherwise, from J. That is the price of exactness; `SwapChain` and `Pool` look at fewer rows.

    **Arguments:**

    - `num_rows`: m, the number of rows to draw from.
    - `sample_size`: k, the number of rows in a sample, at most m.
    - `damping`: the regularisation λ ≥ 0. At λ = 0 with fewer than k independent rows it draws from the
      limit λ → 0⁺: as many rows as the rank allows by volume, the others uniformly.

    A Jacobian that is not finite gives uniform rows.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    sampler = sg.sampling.AdaptiveSquaredVolume(6, sample_size=3, damping=1e-3)
    result = sg.run(problem, jax.random.key(1), method=sg.SNG(1e-3), sampler=sampler, steps=20)
    ```
    """

    num_rows: int = eqx.field(static=True)
    sample_size: int = eqx.field(static=True)
    damping: Float[Array, ""]

    def __init__(self, num_rows: int, sample_size: int, damping: Given[ArrayLike, ""] = 0.0):
        self.num_rows = positive_int("num_rows", num_rows)
        self.sample_size = positive_int("sample_size", sample_size, most=num_rows, most_name="`num_rows`")
        self.damping = real_scalar("damping", damping, low=0)

    def init(self, key: PRNGKeyArray) -> State:
        """Returns the empty state `()`: draws do not depend on each other."""
        del key
        return ()

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Returns fresh rows, drawn by the current Jacobian of all rows."""
        jacobian = linearise(jnp.arange(self.num_rows)).jacobian
        rows, n = jacobian.shape
        if rows != self.num_rows:
            raise ValueError(f"the Jacobian must have `num_rows` = {self.num_rows} rows, got {rows}.")
        if n > rows:
            return select_by_volume(key, jacobian.gram(), self.sample_size, self.damping), state
        return select_vectors_by_volume(
            key, *_singular(jacobian.dense()), self.sample_size, self.damping
        ), state


@eqx.filter_jit
def _prepare(J: Float[Array, "m n"], k: int):
    U, squares = _singular(J)
    return U, squares, *volume_tables(U, squares, k)


def _singular(J: Float[Array, "m n"]) -> tuple[Float[Array, "m e"], Float[Array, " e"]]:
    """U and σ² of J = UΣVᵀ, with σ at rounding level set to zero."""
    U, s, _ = jnp.linalg.svd(J, full_matrices=False)
    return U, jnp.where(s > rank_cutoff(max(J.shape), J.dtype) * s.max(), s, 0) ** 2


@eqx.filter_jit
def _samples(key: PRNGKeyArray, sampler: SquaredVolume, count: int) -> Int[Array, "N k"]:
    # Blocks of equal size, so that one loop is compiled; the few samples too many are dropped.
    blocks = max(1, -(-count // _LANES))
    keys = jax.random.split(key, (blocks, -(-count // blocks)))
    rows = jax.lax.map(jax.vmap(sampler.sample), keys)
    return rows.reshape(-1, sampler.sample_size)[:count]
