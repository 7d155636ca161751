"""Markov chains on k-subsets whose stationary law is squared volume sampling.

Their state is the current batch, kept from one step of training to the next, so that a slowly changing
Jacobian is followed by a few moves per step. A move needs kernel entries only of the rows that it looks at.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._checks import Given, positive_int, real_scalar
from .._contracts import AbstractSampler, Batch, Linearisation, State
from ..linalg import random_subset


class SwapChain(AbstractSampler):
    """The swap chain: offer a random row in exchange for a random member, accept with min(1, det/det).

    A move replaces p ∈ S by a uniform j ∉ S with probability min(1, det(L_{S−p+j}) / det(L_S)), L = JJᵀ + λI;
    O(km) moves, up to a logarithm, forget the start (Anari, Oveis Gharan, Rezaei 2016).

    A step linearises k + `moves` rows and factorises one k×k matrix per move; nothing grows with m. It pays
    where m is too large for `AdaptiveSquaredVolume` and a batch may resemble the one before: with `moves`
    below k some rows always stay, and where a few rows dominate most offers are refused. The first batch is
    uniform. At λ = 0 the chain wanders freely until its batch has full rank.

    **Arguments:**

    - `num_rows`: m, the number of rows to draw from.
    - `sample_size`: k, the number of rows in a batch.
    - `damping`: the regularisation λ ≥ 0 in P(S) ∝ det(J_S J_Sᵀ + λI).
    - `moves`: swaps offered per step; default k.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    sampler = sg.sampling.SwapChain(6, sample_size=3, damping=1e-3, moves=2)
    result = sg.run(problem, jax.random.key(1), method=sg.SNG(1e-3), sampler=sampler, steps=20)
    ```
    """

    num_rows: int = eqx.field(static=True)
    sample_size: int = eqx.field(static=True)
    damping: Float[Array, ""]
    moves: int = eqx.field(static=True)

    def __init__(
        self, num_rows: int, sample_size: int, damping: Given[ArrayLike, ""] = 0.0, moves: int | None = None
    ):
        self.num_rows = positive_int("num_rows", num_rows)
        self.sample_size = positive_int("sample_size", sample_size, most=num_rows, most_name="`num_rows`")
        self.damping = real_scalar("damping", damping, low=0)
        self.moves = sample_size if moves is None else positive_int("moves", moves)

    def init(self, key: PRNGKeyArray) -> State:
        """Returns the state before the first draw: a uniformly random batch."""
        return random_subset(key, self.num_rows, self.sample_size)

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Returns the batch after `moves` swaps, which lead towards the law of the current Jacobian."""
        k = self.sample_size
        key_offers, key_members, key_accept = jax.random.split(key, 3)
        offers = jax.random.randint(key_offers, (self.moves,), 0, self.num_rows)
        members = jax.random.randint(key_members, (self.moves,), 0, k)
        uniforms = jax.random.uniform(key_accept, (self.moves,))
        pool = jnp.concatenate([state, offers.astype(state.dtype)])
        L = _kernel(linearise, pool, self.damping)

        def move(slots: Int[Array, " k"], t: Int[Array, ""]) -> tuple[Int[Array, " k"], None]:
            member, offer = members[t], k + t
            taken = jnp.any(pool[slots] == pool[offer])
            old, new = _conditional(L, slots, member, jnp.stack([slots[member], offer]))
            # Written so that 0/0 and NaN, a batch without full rank, accept.
            refused = taken | (uniforms[t] * old >= new)
            return slots.at[member].set(jnp.where(refused, slots[member], offer)), None

        slots, _ = jax.lax.scan(move, jnp.arange(k), jnp.arange(self.moves))
        rows = pool[slots]
        return rows, rows


class DownUpChain(AbstractSampler):
    """The down-up walk: drop a random member, then add a row j with probability ∝ det(L_{S+j}).

    It mixes in O(k log k) moves whatever m is (Anari, Liu, Oveis Gharan, Vinzant 2021). The walk looks at all
    m rows: a step costs their gram matrix and O(mk²) per move, but no decomposition, so it pays where the m³
    of `AdaptiveSquaredVolume` would dominate. With `candidates=c`, each move chooses from the row dropped and
    c uniform rows instead: a step then linearises k + c · `moves` rows, nothing grows with m, and the
    stationary law is the same. A dominant row is found as soon as it is a candidate.

    **Arguments:**

    - `num_rows`: m, the number of rows to draw from.
    - `sample_size`: k, the number of rows in a batch.
    - `damping`: the regularisation λ ≥ 0 in P(S) ∝ det(J_S J_Sᵀ + λI).
    - `moves`: rows exchanged per step; default k.
    - `candidates`: uniform rows that a move may choose from; default all.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    sampler = sg.sampling.DownUpChain(6, sample_size=3, damping=1e-3, moves=2, candidates=4)
    result = sg.run(problem, jax.random.key(1), method=sg.SNG(1e-3), sampler=sampler, steps=20)
    ```
    """

    num_rows: int = eqx.field(static=True)
    sample_size: int = eqx.field(static=True)
    damping: Float[Array, ""]
    moves: int = eqx.field(static=True)
    candidates: int | None = eqx.field(static=True)

    def __init__(
        self,
        num_rows: int,
        sample_size: int,
        damping: Given[ArrayLike, ""] = 0.0,
        moves: int | None = None,
        candidates: int | None = None,
    ):
        self.num_rows = positive_int("num_rows", num_rows)
        self.sample_size = positive_int("sample_size", sample_size, most=num_rows, most_name="`num_rows`")
        self.damping = real_scalar("damping", damping, low=0)
        self.moves = sample_size if moves is None else positive_int("moves", moves)
        self.candidates = None if candidates is None else positive_int("candidates", candidates)

    def init(self, key: PRNGKeyArray) -> State:
        """Returns the state before the first draw: a uniformly random batch."""
        return random_subset(key, self.num_rows, self.sample_size)

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Returns the batch after `moves` moves, which lead towards the law of the current Jacobian."""
        k = self.sample_size
        key_offers, key_members, key_choice = jax.random.split(key, 3)
        members = jax.random.randint(key_members, (self.moves,), 0, k)
        keys = jax.random.split(key_choice, self.moves)
        if self.candidates is None:
            pool, slots = jnp.arange(self.num_rows, dtype=state.dtype), state
        else:
            shape = (self.moves * self.candidates,)
            offers = jax.random.randint(key_offers, shape, 0, self.num_rows, state.dtype)
            pool, slots = jnp.concatenate([state, offers]), jnp.arange(k, dtype=state.dtype)
        L = _kernel(linearise, pool, self.damping)

        def move(slots: Int[Array, " k"], t: Int[Array, ""]) -> tuple[Int[Array, " k"], None]:
            member = members[t]
            if self.candidates is None:
                options = jnp.arange(self.num_rows, dtype=slots.dtype)
            else:
                offers = k + t * self.candidates + jnp.arange(self.candidates)
                options = jnp.append(slots[member], offers.astype(slots.dtype))
            kept = jnp.where(jnp.arange(k) == member, -1, pool[slots])
            free = jnp.all(pool[options][:, None] != kept[None, :], axis=1)
            weights = _conditional(L, slots, member, options)
            # Where no row restores full rank, any row will do.
            weights = jnp.where(free & (weights > 0), weights, 0)
            weights = jnp.where(jnp.any(weights > 0), weights, jnp.where(free, 1.0, 0.0))
            chosen = options[jax.random.categorical(keys[t], jnp.log(weights))]
            return slots.at[member].set(chosen), None

        slots, _ = jax.lax.scan(move, slots, jnp.arange(self.moves))
        rows = pool[slots]
        return rows, rows


def _kernel(
    linearise: Callable[[Batch], Linearisation], pool: Int[Array, " c"], damping: Float[Array, ""]
) -> Float[Array, "c c"]:
    """L = JJᵀ + λI on the rows of the pool; entries between two copies of one row are never used."""
    K = linearise(pool).jacobian.gram()
    if K.shape[0] != pool.size:
        raise ValueError(f"the Jacobian must have one row for each of {pool.size} indices, got {K.shape[0]}.")
    return K + damping.astype(K.dtype) * jnp.eye(pool.size, dtype=K.dtype)


def _conditional(
    L: Float[Array, "c c"], slots: Int[Array, " k"], member: Int[Array, ""], options: Int[Array, " o"]
) -> Float[Array, " o"]:
    """det(L_{R+j}) / det(L_R) = L_jj − L_jR L_R⁻¹ L_Rj for each option j; R is the batch less one member."""
    gone = jnp.arange(slots.size) == member
    # The member's own equation becomes 1·x = 0, so that shapes stay fixed.
    crossed = gone[:, None] | gone[None, :]
    L_R = jnp.where(crossed, jnp.eye(slots.size, dtype=L.dtype), L[slots[:, None], slots[None, :]])
    cross = jnp.where(gone[:, None], 0, L[slots[:, None], options[None, :]])
    half = solve_triangular(jnp.linalg.cholesky(L_R), cross, lower=True)
    return L[options, options] - jnp.sum(half**2, axis=0)
