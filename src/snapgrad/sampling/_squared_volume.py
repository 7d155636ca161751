"""Squared volume sampling SVS(J, k, λ): P(S) ∝ det(J_S J_Sᵀ + λI) over the k-subsets S of the rows of J.

Since det(J_S J_Sᵀ + λI) = Σ_{T⊆S} λ^{k−|T|} det(J_T J_Tᵀ), the law is a mixture: a volume sample T of j ≤ k
rows, filled up with k − j uniform rows. The eigenvectors of JJᵀ + λI outside the range of J are not needed.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.lax import Precision
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt

from .._checks import positive_int, real_array, real_scalar
from .._contracts import AbstractSampler, Batch, Linearisation, State
from ..linalg import esp_ratios, log_esp, log_esp_table, psd_eigh
from ..linalg._solve import rank_cutoff

_LANES = 256  # samples drawn side by side: enough to fill a vector unit, few enough not to wait long


class SquaredVolume(AbstractSampler):
    """Exact squared volume sampling of k rows of a fixed matrix J, λ ≥ 0; build it with `from_matrix`.

    Preparing takes a singular value decomposition; a sample then costs O(k³ log k + k log k log m), with no
    term that grows like m. At λ = 0 this is volume sampling (a k-DPP with kernel JJᵀ), which needs
    k ≤ rank(J).

    ```python
    sampler = sg.sampling.SquaredVolume.from_matrix(J, sample_size=10, damping=1e-3)
    rows = sampler.sample(key)             # int [10]; sampler.sample(key, (N,)) → [N, 10]
    sampler.log_prob(rows)
    jax.vmap(lambda lam: sampler.with_damping(lam).sample(key))(dampings)   # a sweep, prepared once
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
    def from_matrix(cls, J: Any, sample_size: int, damping: Any = 0.0) -> "SquaredVolume":
        """Decomposes J = UΣVᵀ and stores U, Σ², and the tables that sampling looks up.

        **Arguments:**

        - `J`: the m×n matrix whose rows are sampled; singular values at rounding level count as zero.
        - `sample_size`: k, at most m, and at most rank(J) if `damping` is 0.
        - `damping`: λ ≥ 0.
        """
        J = real_array("J", J, ndim=2)
        k = positive_int("sample_size", sample_size, most=J.shape[0], most_name="the number of rows of `J`")
        return cls(J.shape[0], *_prepare(J, k), jnp.zeros((), J.dtype)).with_damping(damping)

    def with_damping(self, damping: Any) -> "SquaredVolume":
        """The same rows with another λ; cheap, and `damping` may be traced."""
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
        """Independent samples, k distinct rows each, in no particular order: `[*shape, k]`."""
        if not shape:
            return _sample(key, self.vectors, self.cdf, self.table, self.damping)
        return _samples(key, self, math.prod(shape)).reshape(*shape, self.sample_size)

    def log_prob(self, rows: Any) -> Float[Array, "..."]:
        """The logarithm of P(S) = det(J_S J_Sᵀ + λI) / p_k(q), for `rows` of shape `[..., k]`.

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
        """No state."""
        del key
        return ()

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Fresh rows of the matrix it was prepared for."""
        del linearise
        return self.sample(key), state


class AdaptiveSquaredVolume(AbstractSampler):
    """Exact squared volume sampling from the Jacobian at the current parameters, prepared anew every step.

    A step linearises all m rows and decomposes them: O(m²n + m³) if n > m, from the gram matrix, and O(mn²)
    otherwise, from J. That is the price of exactness; `SwapChain` and `Pool` look at fewer rows.

    At λ = 0 with fewer than k independent rows it draws from the limit λ → 0⁺: as many rows as the rank
    allows by volume, the others uniformly. A Jacobian that is not finite gives uniform rows.

    ```python
    sampler = sg.sampling.AdaptiveSquaredVolume(problem.num_rows, sample_size=10, damping=1e-3)
    ```
    """

    num_rows: int = eqx.field(static=True)
    sample_size: int = eqx.field(static=True)
    damping: Float[Array, ""]

    def __init__(self, num_rows: int, sample_size: int, damping: Any = 0.0):
        self.num_rows = positive_int("num_rows", num_rows)
        self.sample_size = positive_int("sample_size", sample_size, most=num_rows, most_name="`num_rows`")
        self.damping = real_scalar("damping", damping, low=0)

    def init(self, key: PRNGKeyArray) -> State:
        """No state."""
        del key
        return ()

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Fresh rows of the current Jacobian."""
        jacobian = linearise(jnp.arange(self.num_rows)).jacobian
        rows, n = jacobian.shape
        if rows != self.num_rows:
            raise ValueError(f"the Jacobian must have `num_rows` = {self.num_rows} rows, got {rows}.")
        if n > rows:
            return select_from_gram(key, jacobian.gram(), self.sample_size, self.damping), state
        return _select(key, *_singular(jacobian.dense()), self.sample_size, self.damping), state


def select_from_gram(
    key: PRNGKeyArray, K: Float[Array, "m m"], sample_size: int, damping: Float[Array, ""]
) -> Int[Array, " k"]:
    """One sample of SVS from K = JJᵀ, a k-DPP with kernel K + λI."""
    w, V, keep = psd_eigh(K)
    return _select(key, V, jnp.where(keep, w, 0), sample_size, damping)


def _select(
    key: PRNGKeyArray, U: Float[Array, "m e"], squares: Float[Array, " e"], k: int, damping: Float[Array, ""]
) -> Int[Array, " k"]:
    table = log_esp_table(squares, k)
    return _sample(key, U, None, table, damping.astype(U.dtype))


@eqx.filter_jit
def _prepare(J: Float[Array, "m n"], k: int):
    U, squares = _singular(J)
    return U, squares, _column_cdf(U), log_esp_table(squares, k)


def _singular(J: Float[Array, "m n"]) -> tuple[Float[Array, "m e"], Float[Array, " e"]]:
    """U and σ² of J = UΣVᵀ, with σ at rounding level set to zero."""
    U, s, _ = jnp.linalg.svd(J, full_matrices=False)
    return U, jnp.where(s > rank_cutoff(max(J.shape), J.dtype) * s.max(), s, 0) ** 2


def _column_cdf(U: Float[Array, "m e"]) -> Float[Array, "e m"]:
    return jnp.cumsum(U.T**2, axis=1)


@eqx.filter_jit
def _samples(key: PRNGKeyArray, sampler: SquaredVolume, count: int) -> Int[Array, "N k"]:
    # Blocks of equal size, so that one loop is compiled; the few samples too many are dropped.
    blocks = max(1, -(-count // _LANES))
    keys = jax.random.split(key, (blocks, -(-count // blocks)))
    rows = jax.lax.map(jax.vmap(sampler.sample), keys)
    return rows.reshape(-1, sampler.sample_size)[:count]


@jax.jit
def _sample(
    key: PRNGKeyArray,
    U: Float[Array, "m e"],
    cdf: Float[Array, "e m"] | None,
    table: Float[Array, "k_plus_1 e_plus_1"],
    damping: Float[Array, ""],
) -> Int[Array, " k"]:
    """One sample: how many rows by volume, which eigenvectors, which rows, and uniform rows for the rest."""
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
