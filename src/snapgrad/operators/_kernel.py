"""Kernels from the factors of two blocks of rows, a few points at a time."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, DTypeLike, Float

from ..structure import Leaf, factors

SYMMETRIC_ROWS = 2048
"""Kernels of at least twice as many rows are computed in blocks of about this many rows. The blocks below the
diagonal are then transposes of those above it; smaller blocks would leave a GPU idle."""


class Source(NamedTuple):
    """Factors of rows on demand: `factors(start)` gives those of `block` points from `start`."""

    points: int
    outputs: int
    block: int
    factors: Callable[[Any], list[Leaf]]
    dtype: DTypeLike  # of the kernel

    @property
    def starts(self) -> list[int]:
        """First points of the blocks; the last block may overlap the one before it."""
        return [min(i, self.points - self.block) for i in range(0, self.points, self.block)]


def kernel(rows: Source) -> Float[Array, "k k"]:
    """J Jᵀ. Factors of one block of rows are held while those of each later block meet them."""
    starts, outputs = rows.starts, rows.outputs
    if len(starts) == 1:
        return _held(rows.factors(0), rows)
    pairs = [(i, j) for a, i in enumerate(starts) for j in starts[a:]]

    def step(state, pair):
        K, held = state
        i, j = pair
        mine = rows.factors(j)
        # The pairs are ordered by their first block, which starts with the block meeting itself.
        held = lax.cond(i == j, lambda: mine, lambda: held)
        block = contract_leaves(held, mine, rows, rows)
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
        return contract_leaves(a.factors(0), b.factors(0), a, b)

    def outer(K, i):
        mine = a.factors(i)

        def inner(K, j):
            block = contract_leaves(mine, b.factors(j), a, b)
            return lax.dynamic_update_slice(K, block, (i * a.outputs, j * b.outputs)), None

        return lax.scan(inner, K, jnp.asarray(b.starts))

    dtype = jnp.result_type(a.dtype, b.dtype)
    K = jnp.zeros((a.points * a.outputs, b.points * b.outputs), dtype)
    return lax.scan(outer, K, jnp.asarray(a.starts))[0]


def _held(held: list[Leaf], rows: Source) -> Float[Array, "k k"]:
    """The kernel of factors in hand: blocks on and above the diagonal, and the transposes of the latter."""
    count = max(1, min(8, rows.points * rows.outputs // SYMMETRIC_ROWS))
    edges = [rows.points * i // count for i in range(count + 1)]
    parts = [[factors.points(leaf, a, b) for leaf in held] for a, b in itertools.pairwise(edges)]
    blocks: dict[tuple[int, int], Float[Array, "p q"]] = {}
    for i, mine in enumerate(parts):
        for j in range(i, count):
            blocks[i, j] = contract_leaves(mine, parts[j], rows, rows, same=i == j)
            blocks[j, i] = blocks[i, j].T if j > i else blocks[i, j]
    if count == 1:
        return blocks[0, 0]
    return jnp.block([[blocks[i, j] for j in range(count)] for i in range(count)])


def contract_leaves(
    mine: list[Leaf], others: list[Leaf], a: Source, b: Source, same: bool = False
) -> Float[Array, "p q"]:
    """Σ over leaves, each in the precision of the kernel."""
    dtype = jnp.result_type(a.dtype, b.dtype)
    total = None
    for x, y in zip(mine, others, strict=True):
        x = factors.cast(x, dtype)
        block = factors.contract(x, x if same else factors.cast(y, dtype), same=same)
        if block is not None:
            total = block if total is None else total + block
    if total is None:  # no leaf has any effect
        return jnp.zeros((a.block * a.outputs, b.block * b.outputs), dtype)
    return total
