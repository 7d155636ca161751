"""Oversample, then keep a well-spread subset of the configurations, with the weights that make up for it."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._checks import positive_int
from ..linalg import esp_ratios, log_esp_table
from ..linalg._solve import rank_cutoff


class Selection(NamedTuple):
    """Which configurations were kept, and weights that sum to one."""

    chosen: Int[Array, " k"]
    weights: Float[Array, " k"]


@partial(jax.jit, static_argnames="sample_size")
@jax.default_matmul_precision("highest")
def select(
    key: PRNGKeyArray, K: Float[Array, "c c"], sample_size: int, damping: Float[Array, ""] | float
) -> Selection:
    """Of the c configurations of a pool, k with P(S) ∝ det(K_SS + λI): squared volume sampling of the pool.

    Configurations with unusual derivatives are kept more often than others; dividing by the probability
    π_i with which each is kept (Horvitz and Thompson) takes that out of every mean again, so that energy
    and gradient are those of the pool on average. π_i = Σ_j V_ij² q_j p_{k−1}(q_{−j})/p_k(q) for
    K + λI = V diag(q) Vᵀ. Costs O(c³).

    **Arguments:**

    - `K`: the kernel of the pool, one row a configuration.
    - `sample_size`: k.
    - `damping`: λ.
    """
    size = positive_int("sample_size", sample_size, most=K.shape[0], most_name="the size of the pool")
    q, V = jnp.linalg.eigh(K)
    q = jnp.maximum(q, rank_cutoff(K.shape[0], K.dtype) * q[-1]) + jnp.asarray(damping).astype(K.dtype)
    inclusion = jnp.sum(V**2 * (q * esp_ratios(q, size))[None, :], axis=1)
    key_vectors, key_rows = jax.random.split(key)
    kept = _choose_vectors(key_vectors, q, size)
    columns = jnp.nonzero(kept, size=size, fill_value=0)[0]
    chosen = _choose_rows(key_rows, V[:, columns])
    weights = 1 / inclusion[chosen]
    return Selection(chosen, weights / jnp.sum(weights))


def points_kernel(K: Float[Array, "k k"], outputs: int) -> Float[Array, "p p"]:
    """Σ over outputs of the kernel between the same outputs of two points: Re(O O†) for complex ones."""
    points = K.shape[0] // outputs
    return jnp.trace(K.reshape(points, outputs, points, outputs), axis1=1, axis2=3)


def _choose_vectors(key: PRNGKeyArray, q: Float[Array, " c"], size: int) -> Bool[Array, " c"]:
    """A subset of `size` indices with P(E) ∝ ∏_{j∈E} q_j, one index after another."""
    table = log_esp_table(q, size)
    log_u = jnp.log(jax.random.uniform(key, q.shape, q.dtype))

    def step(left: Int[Array, ""], item: Any) -> tuple[Int[Array, ""], Bool[Array, ""]]:
        j, log_q, log_u = item
        taken = log_q + table[jnp.maximum(left - 1, 0), j + 1] - table[left, j]
        keep = (left > 0) & (log_u < taken)
        return left - keep, keep

    return jax.lax.scan(step, jnp.asarray(size), (jnp.arange(q.size), jnp.log(q), log_u))[1]


def _choose_rows(key: PRNGKeyArray, U: Float[Array, "c k"]) -> Int[Array, " k"]:
    """The projection DPP of U Uᵀ: each row with P ∝ its squared distance to the span of those before."""
    c, size = U.shape

    def step(carry: Any, item: Any) -> tuple[Any, Int[Array, ""]]:
        rest, F = carry
        t, key = item
        row = jax.random.categorical(key, jnp.log(rest))
        column = U @ U[row] - F @ F[row]
        column = column / jnp.sqrt(column[row])
        return (jnp.maximum(rest - column**2, 0).at[row].set(0), F.at[:, t].set(column)), row

    start = jnp.sum(U**2, axis=1), jnp.zeros((c, size), U.dtype)
    return jax.lax.scan(step, start, (jnp.arange(size), jax.random.split(key, size)))[1]
