"""Uniformly random subsets, at a cost that does not grow with the ground set."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from .._checks import positive_int


@partial(jax.jit, static_argnames=("size", "count"))
def random_subset(key: PRNGKeyArray, size: int, count: int) -> Int[Array, " count"]:
    """Returns a uniformly random subset of `count` of the numbers 0 … size−1, in no particular order.

    Small subsets by Floyd's algorithm in O(count²), which never touches the other numbers; large ones
    by sorting `size` random keys. `ValueError` if `count` is larger than `size`.

    ```python
    rows = sg.linalg.random_subset(jax.random.key(0), 6, 3)        # [3], distinct numbers below 6
    ```
    """
    positive_int("count", count, most=size, most_name="`size`")
    if count**2 > 64 * size:
        return jax.random.permutation(key, size)[:count]
    # Step j draws t from 0 … last[j] and takes last[j] itself where t is taken already.
    last = jnp.arange(size - count, size)
    draws = jax.random.randint(key, (count,), 0, last + 1)

    def step(j: Int[Array, ""], chosen: Int[Array, " count"]) -> Int[Array, " count"]:
        return chosen.at[j].set(jnp.where(jnp.any(chosen == draws[j]), last[j], draws[j]))

    # A loop for its own sake costs more than a few comparisons: unroll it while that is cheap.
    return jax.lax.fori_loop(0, count, step, jnp.full_like(draws, -1), unroll=count <= 32)
