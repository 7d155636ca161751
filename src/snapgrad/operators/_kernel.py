"""Kernels from the factors of two blocks of rows, a few points at a time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, DTypeLike, Float

from ..structure import Leaf
from ..structure.contract import contract


class Source(NamedTuple):
    """Factors of rows on demand: `factors(start)` gives those of `block` points from `start`."""

    points: int
    outputs: int
    block: int
    factors: Callable[[Any], list[Leaf]]
    dtype: DTypeLike  # of the kernel
    split: bool = False  # whether float32 products are made of float16 parts

    @property
    def starts(self) -> list[int]:
        """First points of the blocks; the last block may overlap the one before it."""
        return [min(i, self.points - self.block) for i in range(0, self.points, self.block)]


def kernel(rows: Source) -> Float[Array, "k k"]:
    """J Jᵀ. Factors of one block of rows are held while those of each later block meet them."""
    starts, outputs = rows.starts, rows.outputs
    if len(starts) == 1:
        return meet(rows.factors(0), None, rows, rows)
    pairs = [(i, j) for a, i in enumerate(starts) for j in starts[a:]]

    def step(state, pair):
        K, held = state
        i, j = pair
        mine = rows.factors(j)
        # The pairs are ordered by their first block, which starts with the block meeting itself.
        held = lax.cond(i == j, lambda: mine, lambda: held)
        block = meet(held, mine, rows, rows)
        K = lax.dynamic_update_slice(K, block, (i * outputs, j * outputs))
        return (lax.dynamic_update_slice(K, block.T, (j * outputs, i * outputs)), held), None

    total = rows.points * outputs
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(rows.factors, 0))
    start = jnp.zeros((total, total), rows.dtype), nothing
    (K, _), _ = lax.scan(step, start, tuple(jnp.asarray(pairs).T))
    return K


def cross_kernel(a: Source, b: Source) -> Float[Array, "k q"]:
    """J J'ᵀ, block by block."""
    if len(a.starts) == len(b.starts) == 1:
        return meet(a.factors(0), b.factors(0), a, b)

    def outer(K, i):
        mine = a.factors(i)

        def inner(K, j):
            block = meet(mine, b.factors(j), a, b)
            return lax.dynamic_update_slice(K, block, (i * a.outputs, j * b.outputs)), None

        return lax.scan(inner, K, jnp.asarray(b.starts))

    dtype = jnp.result_type(a.dtype, b.dtype)
    K = jnp.zeros((a.points * a.outputs, b.points * b.outputs), dtype)
    return lax.scan(outer, K, jnp.asarray(a.starts))[0]


def meet(mine: list[Leaf], others: list[Leaf] | None, a: Source, b: Source) -> Float[Array, "p q"]:
    """The kernel between a block of rows of each source; without `others`, of the first with itself."""
    shape = a.block * a.outputs, b.block * b.outputs
    return contract(mine, others, shape, jnp.result_type(a.dtype, b.dtype), a.split and b.split)
