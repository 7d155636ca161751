"""Oversample, then keep a well-spread subset of the configurations, with the weights that make up for it."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._checks import positive_int
from ..linalg import esp_ratios, rank_cutoff, select_vectors_by_volume


class Selection(NamedTuple):
    """Which configurations of a pool `snapgrad.netket.select` has kept, and what they count.

    - `chosen`: their numbers in the pool.
    - `weights`: the weight of each of them in a mean; they sum to one.

    ```python
    import snapgrad.netket as sgn

    J = jax.random.normal(jax.random.key(0), (8, 20))
    energies = jax.random.normal(jax.random.key(1), (8,))
    chosen, weights = sgn.select(jax.random.key(2), J @ J.T, 4, 1e-3)
    weights @ energies[chosen]                          # an estimate of their mean over the pool
    ```
    """

    chosen: Int[Array, " k"]
    weights: Float[Array, " k"]


@partial(jax.jit, static_argnames="sample_size")
@jax.default_matmul_precision("highest")
def select(
    key: PRNGKeyArray, K: Float[Array, "c c"], sample_size: int, damping: Float[Array, ""] | float
) -> Selection:
    """Keeps k of the c configurations of a pool, by squared volume sampling: P(S) ∝ det(K_SS + λI).

    Configurations with unusual derivatives are kept more often than others; dividing by the probability
    π_i with which each is kept (Horvitz and Thompson) takes that out of every mean again, so that energy
    and gradient are those of the pool on average. π_i = Σ_j V_ij² q_j p_{k−1}(q_{−j})/p_k(q) for
    K + λI = V diag(q) Vᵀ. Costs O(c³).

    **Arguments:**

    - `K`: the kernel of the pool, one row per configuration.
    - `sample_size`: k, the number of rows in a sample.
    - `damping`: the regularisation λ ≥ 0.

    **Returns:** a `Selection`. `ValueError` if `sample_size` is larger than the pool.

    ```python
    import snapgrad.netket as sgn

    J = jax.random.normal(jax.random.key(0), (8, 20))   # one row for each configuration of the pool
    kept = sgn.select(jax.random.key(1), J @ J.T, 4, 1e-3)
    kept.chosen, kept.weights                           # four of the eight, and weights that sum to one
    ```
    """
    size = positive_int("sample_size", sample_size, most=K.shape[0], most_name="the size of the pool")
    w, V = jnp.linalg.eigh(K)
    # Above zero, so that at λ = 0 every configuration is kept with a probability that one can divide by.
    squares = jnp.maximum(w, rank_cutoff(K.shape[0], K.dtype) * w[-1])
    q = squares + jnp.asarray(damping).astype(K.dtype)
    inclusion = jnp.sum(V**2 * (q * esp_ratios(q, size))[None, :], axis=1)
    chosen = select_vectors_by_volume(key, V, squares, size, damping)
    weights = 1 / inclusion[chosen]
    return Selection(chosen, weights / jnp.sum(weights))


def points_kernel(K: Float[Array, "k k"], outputs: int) -> Float[Array, "p p"]:
    """Σ over outputs of the kernel between the same outputs of two points: Re(O O†) for complex ones."""
    points = K.shape[0] // outputs
    return jnp.trace(K.reshape(points, outputs, points, outputs), axis1=1, axis2=3)
