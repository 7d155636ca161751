"""Rows chosen for the volume that they span: k-DPPs and randomly pivoted Cholesky.

Squared volume sampling takes k rows S of J with P(S) ∝ det(J_S J_Sᵀ + λI), a k-DPP with kernel JJᵀ + λI.
Since det(J_S J_Sᵀ + λI) = Σ_{T⊆S} λ^{k−|T|} det(J_T J_Tᵀ), the law is a mixture: a volume sample T of j ≤ k
rows, filled up with k − j uniform rows. The eigenvectors of JJᵀ + λI outside the range of J are not needed.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import Precision
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt

from .._checks import positive_int
from ._esp import log_esp_table
from ._gram import psd_eigh, rank_cutoff


class PivotedCholesky(NamedTuple):
    """What `pivoted_cholesky` returns.

    `factor` is F with FFᵀ ≈ K + λI, whose columns past the rank are zero; `pivots` are the rows in the order
    in which they were chosen.
    """

    factor: Float[Array, "m k"]
    pivots: Int[Array, " k"]


def pivoted_cholesky(
    key: PRNGKeyArray, K: Float[Array, "m m"], sample_size: int, damping: Float[Array, ""] | float = 0.0
) -> PivotedCholesky:
    """Randomly pivoted Cholesky on L = K + λI (Chen, Epperly, Tropp and Webber, 2025), in O(m k²).

    Row j comes next with probability ∝ L_jj − L_jS L_S⁻¹ L_Sj, the squared distance to the span of those
    before. Once all that is left is rounding, any other row may follow, and adds a column of zeros.

    **Arguments:**

    - `key`: the randomness of the pivots.
    - `K`: a positive semidefinite matrix.
    - `sample_size`: the number k of rows to choose.
    - `damping`: the regularisation λ ≥ 0.

    **Returns:** the pair `factor` (F with FFᵀ ≈ L) and `pivots` (the k rows chosen, in their order).

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    F, pivots = sg.linalg.pivoted_cholesky(jax.random.key(1), J @ J.T, sample_size=3)     # [6, 3], [3]
    ```
    """
    m = K.shape[0]
    k = positive_int("sample_size", sample_size, most=m, most_name="the number of rows")
    L = K + jnp.asarray(damping).astype(K.dtype) * jnp.eye(m, dtype=K.dtype)
    diagonal = jnp.diagonal(L)
    tiny = rank_cutoff(m, K.dtype) * diagonal.max()

    def step(carry: Any, key: PRNGKeyArray) -> tuple[Any, Int[Array, ""]]:
        t, rest, free, F = carry
        weights = jnp.where(free & (rest > tiny), rest, 0)
        weights = jnp.where(jnp.any(weights > 0), weights, jnp.where(free, 1.0, 0.0).astype(K.dtype))
        pivot = jax.random.categorical(key, jnp.log(weights))
        column = L[:, pivot] - jnp.matmul(F, F[pivot], precision=Precision.HIGHEST)
        column = jnp.where(rest[pivot] > tiny, column / jnp.sqrt(jnp.maximum(column[pivot], tiny)), 0)
        return (t + 1, rest - column**2, free.at[pivot].set(False), F.at[:, t].set(column)), pivot

    start = (jnp.zeros((), int), diagonal, jnp.ones(m, bool), jnp.zeros((m, k), K.dtype))
    (_, _, _, F), pivots = jax.lax.scan(step, start, jax.random.split(key, k))
    return PivotedCholesky(F, pivots)


def select_by_volume(
    key: PRNGKeyArray, K: Float[Array, "m m"], sample_size: int, damping: Float[Array, ""] | float
) -> Int[Array, " k"]:
    """Draws one squared volume sample from K = JJᵀ, in O(m³).

    Returns the numbers of k rows S, where P(S) ∝ det(K_SS + λI).

    **Arguments:**

    - `key`: a JAX random key; the same key gives the same result.
    - `K`: the kernel, `[m, m]`. One that is not finite gives uniform rows.
    - `sample_size`: k, the number of rows in a sample.
    - `damping`: the regularisation λ ≥ 0. At λ = 0 with rank(K) < k it is the limit λ → 0⁺: as many rows as
      the rank allows by volume, the others uniformly.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    rows = sg.linalg.select_by_volume(jax.random.key(1), J @ J.T, sample_size=3, damping=1e-3)     # [3]
    ```
    """
    w, V, keep = psd_eigh(K)
    return select_vectors_by_volume(key, V, jnp.where(keep, w, 0), sample_size, damping)


def select_vectors_by_volume(
    key: PRNGKeyArray,
    U: Float[Array, "m e"],
    squares: Float[Array, " e"],
    sample_size: int,
    damping: Float[Array, ""] | float,
) -> Int[Array, " k"]:
    """As `select_by_volume`, from a decomposition K = U diag(σ²) Uᵀ with orthonormal columns U.

    **Arguments:**

    - `key`: a JAX random key; the same key gives the same result.
    - `U`, `squares`: orthonormal columns, and the eigenvalue σ² that belongs to each.
    - `sample_size`: k, the number of rows in a sample.
    - `damping`: the regularisation λ ≥ 0.

    **Returns:** k distinct rows, in no particular order.

    ```python
    U, s, _ = jnp.linalg.svd(jax.random.normal(jax.random.key(0), (6, 4)), full_matrices=False)
    rows = sg.linalg.select_vectors_by_volume(jax.random.key(1), U, s**2, sample_size=3, damping=1e-3)
    ```
    """
    table = log_esp_table(squares, sample_size)
    return volume_sample(key, U, None, table, jnp.asarray(damping).astype(U.dtype))


def volume_tables(
    U: Float[Array, "m e"], squares: Float[Array, " e"], sample_size: int
) -> tuple[Float[Array, "e m"], Float[Array, "k_plus_1 e_plus_1"]]:
    """The tables that `volume_sample` looks up, made once for many samples from one matrix J = U diag(σ) Vᵀ.

    **Arguments:**

    - `U`, `squares`: the left singular vectors of J and its squared singular values σ².
    - `sample_size`: the number k of rows in a sample.

    **Returns:** the cumulative sums of each squared column of U, and the logarithms of the elementary
    symmetric polynomials of all suffixes of σ².

    ```python
    U, s, _ = jnp.linalg.svd(jax.random.normal(jax.random.key(0), (6, 4)), full_matrices=False)
    cdf, table = sg.linalg.volume_tables(U, s**2, sample_size=3)
    ```
    """
    return _column_cdf(U), log_esp_table(squares, sample_size)


def _column_cdf(U: Float[Array, "m e"]) -> Float[Array, "e m"]:
    return jnp.cumsum(U.T**2, axis=1)


@jax.jit
def volume_sample(
    key: PRNGKeyArray,
    U: Float[Array, "m e"],
    cdf: Float[Array, "e m"] | None,
    table: Float[Array, "k_plus_1 e_plus_1"],
    damping: Float[Array, ""],
) -> Int[Array, " k"]:
    """Draws one squared volume sample from tables that were made before; returns the numbers of k rows.

    It chooses how many rows come by volume, which eigenvectors they come from, which rows these are, and
    uniform rows for the rest.

    **Arguments:**

    - `key`: a JAX random key; the same key gives the same result.
    - `U`: orthonormal columns, as for `volume_tables`.
    - `cdf`, `table`: what `volume_tables` returned. With `cdf=None` only the columns chosen are tabulated,
      which is cheaper for a single sample.
    - `damping`: the regularisation λ ≥ 0.

    ```python
    U, s, _ = jnp.linalg.svd(jax.random.normal(jax.random.key(0), (6, 4)), full_matrices=False)
    cdf, table = sg.linalg.volume_tables(U, s**2, sample_size=3)
    rows = sg.linalg.volume_sample(jax.random.key(1), U, cdf, table, jnp.asarray(1e-3))           # [3]
    ```
    """
    m, k = U.shape[0], table.shape[0] - 1
    key_ahead, key_rows = jax.random.split(key)
    bits = _bits(key_ahead, 2 * k + 1, U.dtype)
    size = _choose_size(bits[0], table[:, 0], damping, m)
    chosen = _choose_vectors(bits[1 : k + 1], table, size)
    if cdf is None:  # for a single sample, tabulate the chosen columns alone
        U = U[:, chosen]
        cdf, chosen = _column_cdf(U), jnp.arange(k)
    rows, size = _choose_rows(key_rows, U, cdf, chosen, size)
    return _fill(bits[k + 1 :], rows, size, m)


def _bits(key: PRNGKeyArray, count: int, dtype: Any) -> UInt[Array, " count"]:
    """As many random bits as a number of `dtype` has: for fractions, and for integers without bias."""
    return jax.random.bits(key, (count,), jnp.dtype(f"uint{jnp.finfo(dtype).bits}"))


def _fraction(bits: UInt[Array, "*shape"], dtype: Any) -> Float[Array, "*shape"]:
    """Uniform on [0, 1), by the leading bits."""
    info = jnp.finfo(dtype)
    return (bits >> (info.bits - info.nmant - 1)).astype(dtype) * jnp.asarray(2.0, dtype) ** (-info.nmant - 1)


def _choose_size(
    bits: UInt[Array, ""], log_e: Float[Array, " k_plus_1"], damping: Float[Array, ""], m: int
) -> Int[Array, ""]:
    """The number j with P(j) ∝ e_j(σ²) λ^{k−j} C(m−j, k−j); at λ = 0 its limit, the largest j possible."""
    k = log_e.size - 1
    j = jnp.arange(k + 1)
    log_choose = gammaln((m - j + 1).astype(log_e.dtype)) - gammaln((k - j + 1).astype(log_e.dtype))
    log_weight = log_e + (k - j) * jnp.log(jnp.where(damping > 0, damping, 1)) + log_choose
    cdf = jnp.cumsum(jnp.exp(log_weight - jnp.max(log_weight)))
    mixed = jnp.sum(cdf <= _fraction(bits, cdf.dtype) * cdf[-1])
    largest = jnp.sum(log_e > -jnp.inf) - 1
    finite = ~jnp.any(jnp.isnan(log_weight))
    return jnp.where(finite, jnp.where(damping > 0, jnp.minimum(mixed, largest), largest), 0)


def _choose_vectors(
    bits: UInt[Array, " k"], table: Float[Array, "k_plus_1 e_plus_1"], size: Int[Array, ""]
) -> Int[Array, " k"]:
    """`size` indices E with P(E) ∝ ∏_{l∈E} σ_l², in increasing order; entries past `size` mean nothing."""
    k, e = table.shape[0] - 1, table.shape[1] - 1
    # With r left to choose from l on, the next index is l' or later with probability p_r(q[l':])/p_r(q[l:]).
    log_u = jnp.log1p(-_fraction(bits, table.dtype))

    def step(start: Int[Array, ""], t: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        suffixes = table[jnp.maximum(size - t, 0)]
        index = jnp.clip(jnp.sum(suffixes >= suffixes[start] + log_u[t]) - 1, 0, e - 1)
        return index + 1, index

    return jax.lax.scan(step, jnp.zeros((), int), jnp.arange(k))[1]


def _choose_rows(
    key: PRNGKeyArray,
    U: Float[Array, "m e"],
    cdf: Float[Array, "e m"],
    chosen: Int[Array, " k"],
    size: Int[Array, ""],
) -> tuple[Int[Array, " k"], Int[Array, ""]]:
    """A projection DPP on the first `size` chosen columns of U, by rejection from their leverage scores.

    Proposals i ~ U[:, c]², c uniform over the columns, are accepted with the share of ‖U_i‖² that is
    orthogonal to the rows so far (`complement` projects onto it): size · H_size proposals on average
    (Barthelmé, Tremblay, Amblard 2023).
    """
    k = chosen.size
    active = jnp.arange(k) < size
    most = 64 * k  # never reached but by numbers that are not finite: e⁻⁶⁰

    def unfinished(carry: Any) -> Bool[Array, ""]:
        trial, count, _, _ = carry
        return (count < size) & (trial < most)

    def propose(carry: Any) -> Any:
        trial, count, rows, complement = carry
        u = _fraction(_bits(jax.random.fold_in(key, trial), 3, U.dtype), U.dtype)
        row = _invert(cdf, chosen[jnp.floor(u[0] * size).astype(int)], u[1])
        y = jnp.where(active, U[row, chosen], 0)
        rest = jnp.matmul(complement, y, precision=Precision.HIGHEST)
        square = jnp.sum(rest**2)
        accept = (u[2] * jnp.sum(y**2) < square) & jnp.all(rows != row)
        # A row at a relative distance δ adds an error of eps/δ but is accepted with probability δ² only.
        unit = rest * jnp.sqrt(jnp.where(accept, 1 / square, 0))
        slot = (jnp.arange(k) == count) & accept
        return trial + 1, count + accept, jnp.where(slot, row, rows), complement - jnp.outer(unit, unit)

    start = (jnp.zeros((), int), jnp.zeros((), int), jnp.full(k, -1), jnp.eye(k, dtype=U.dtype))
    _, count, rows, _ = jax.lax.while_loop(unfinished, propose, start)
    return rows, count


def _invert(cdf: Float[Array, "e m"], column: Int[Array, ""], u: Float[Array, ""]) -> Int[Array, ""]:
    """The first row at which an unnormalised cdf exceeds the fraction u of its total, by four-way search."""
    m = cdf.shape[1]
    target = u * cdf[column, m - 1]
    row = jnp.zeros((), int)
    width = 4 ** ((m - 1).bit_length() // 2)
    while width:  # unrolled: a loop for its own sake costs more than the few comparisons
        ends = jnp.minimum(row + width * jnp.arange(1, 4), m) - 1
        row = row + width * jnp.sum(cdf[column, ends] <= target)
        width //= 4
    return jnp.minimum(row, m - 1)


def _fill(bits: UInt[Array, " k"], rows: Int[Array, " k"], count: Int[Array, ""], m: int) -> Int[Array, " k"]:
    """Keeps the first `count` rows and replaces the others by a uniform subset of the remaining rows."""
    k = rows.size
    kept = jnp.arange(k) < count
    # Floyd's algorithm for k − count of the m − count ranks among the rows not kept; more are never used.
    last = jnp.arange(m - k, m)
    draws = (bits % (last + 1).astype(bits.dtype)).astype(int)

    def step(t: Int[Array, ""], ranks: Int[Array, " k"]) -> Int[Array, " k"]:
        return ranks.at[t].set(jnp.where(jnp.any(ranks == draws[t]), last[t], draws[t]))

    ranks = jax.lax.fori_loop(0, k, step, jnp.full_like(draws, -1), unroll=k <= 32)
    # Rank r is row r + (number of kept rows at or before it): those with sorted[t] − t ≤ r.
    gaps = jnp.sort(jnp.where(kept, rows, m + k)) - jnp.arange(k)
    free = ranks + jnp.sum(gaps[None, :] <= ranks[:, None], axis=1)
    return jnp.where(kept, rows, free[jnp.arange(k) - count])
