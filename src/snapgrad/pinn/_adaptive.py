"""Points that follow the residual."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import Given, positive_int, real_scalar
from .._contracts import AbstractSampler, Batch, Linearisation, State, tree_where
from ._blocks import Block, Weighted, draw_points, weighted
from ._domains import Points
from ._drawing import Sites

FEWEST = 32
"""A block with fewer points keeps them evenly spread: two on the ends of an interval must be its two ends."""

SHARP = 1 / 4
"""A residual is concentrated if its mean size, squared, is less than this part of its mean square; for a
normal one it is 2/π."""
CURVE_BITS = 30
"""How finely the curve divides space: so many halvings."""


class ResidualAdaptive(AbstractSampler):
    """Points that are dense where the residual is large, for solutions with fronts and layers.

    A pool of `oversample` times as many evenly spread points is drawn, and points are chosen from it with
    density |r|^power / mean |r|^power + floor. Each is weighted with the inverse of its density, so that the
    loss stays an estimate of the same integral, a better one, whatever the points. They are replaced a part
    at a time, oldest first, so that nothing jumps. Blocks of fewer than 32 points stay evenly spread.

    **Arguments:**

    - `problem`: what to draw points for, a `sg.pinn.PINN`.
    - `refresh_every`: in how many steps all points are replaced once; early in training in a quarter of the
      steps taken so far, where that is less.
    - `parts`: how many parts are replaced one after the other.
    - `oversample`: how many points there are to choose from for each one.
    - `power`: how strongly the density follows the residual, 0 for not at all.
    - `floor`: how many points stay everywhere; no weight is above 1 + 1/floor of the usual one.
    - `threshold`: points follow the residual where its mean size, squared, is less than this part of its mean
      square: where it is concentrated. Elsewhere evenly spread ones are better, and all are replaced at once.

    ```python
    problem = sg.pinn.zoo("poisson-1d", hidden=(8,), points=(40, 2))
    sampler = sg.pinn.ResidualAdaptive(problem, refresh_every=50)  # for sg.pinn.solve(..., sampler=sampler)
    batch, position, step = sampler.init(jax.random.key(0))
    batch["interior"].points.shape, batch["interior"].weight.sum()  # (40, 1), 1.0
    ```
    """

    problem: Any
    refresh_every: int = eqx.field(static=True)
    parts: int = eqx.field(static=True)
    oversample: int = eqx.field(static=True)
    power: Float[Array, ""]
    floor: Float[Array, ""]
    threshold: Float[Array, ""]
    num_rows: int | None = eqx.field(static=True, default=None)

    def __init__(
        self,
        problem: Any,
        refresh_every: int = 100,
        parts: int = 8,
        oversample: int = 4,
        power: Given[ArrayLike, ""] = 1.0,
        floor: Given[ArrayLike, ""] = 1.0,
        threshold: Given[ArrayLike, ""] = SHARP,
    ):
        if not hasattr(problem, "blocks"):
            raise TypeError(f"`problem` must be a sg.pinn.PINN, got {type(problem).__name__}.")
        self.problem = problem
        self.refresh_every = positive_int("refresh_every", refresh_every)
        self.parts = positive_int("parts", parts)
        self.oversample = positive_int("oversample", oversample)
        self.power = real_scalar("power", power, low=0)
        self.floor = real_scalar("floor", floor, low=0)
        self.threshold = real_scalar("threshold", threshold, low=0)
        self.num_rows = None

    def init(self, key: PRNGKeyArray) -> State:
        """Returns evenly spread points, which part of them is the oldest, and a count of steps."""
        drawn = draw_points(self.problem.blocks, key, True)
        batch = {block.name: weighted(drawn[block.name]) for block in self.problem.blocks}
        return batch, jnp.zeros(()), jnp.zeros((), int)

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Returns the points of a step, some of them chosen anew by their residuals when it is time."""
        batch, oldest, count = state
        period = jnp.minimum(self.refresh_every, 1 + count // 4)
        next_oldest = oldest + self.parts / period
        first, width = jnp.floor(oldest), jnp.floor(next_oldest) - jnp.floor(oldest)
        due = (count > 0) & (width > 0)
        batch = jax.lax.cond(due, lambda: self._renew(key, batch, linearise, first, width), lambda: batch)
        return batch, (batch, next_oldest % self.parts, count + 1)

    def _renew(
        self,
        key: PRNGKeyArray,
        batch: Batch,
        linearise: Callable[[Batch], Linearisation],
        first: Float[Array, ""],
        width: Float[Array, ""],
    ) -> Batch:
        """The batch with `width` parts of it, from the `first` on, chosen anew."""
        blocks = self.problem.blocks
        wide = tuple(
            replace(b, points=self.oversample * b.points, grid=None) if _adapts(b) else b for b in blocks
        )
        pool, even = draw_points(wide, key, True), draw_points(blocks, key, True)
        sizes = self._sizes(linearise(pool).residual, wide)
        whole = (-first) % self.parts < width
        found = {}
        for i, block in enumerate(blocks):
            old, new = batch[block.name], weighted(even[block.name])
            due = jnp.full(block.points, whole)
            if _adapts(block):
                size = sizes[block.name]
                sharp = jnp.mean(size) ** 2 < self.threshold * jnp.mean(size**2)
                chosen = self._choose(jax.random.fold_in(key, i), block, pool[block.name], size)
                new = tree_where(sharp, chosen, new)
                due = jnp.where(sharp, (jnp.arange(block.points) - first) % self.parts < width, due)
            found[block.name] = jax.vmap(tree_where)(due, new, old)
        return found

    def _choose(self, key: PRNGKeyArray, block: Block, pool: Any, sizes: Float[Array, " M"]) -> Weighted:
        """Systematic sampling along a curve that fills space: evenly spread, with E[N_i] = N q_i."""
        order = jnp.argsort(_along_a_curve(pool.x if isinstance(pool, Sites) else pool))
        grown = sizes[order] ** self.power
        density = grown / jnp.maximum(jnp.mean(grown), jnp.finfo(grown.dtype).tiny) + self.floor
        density = jnp.where(jnp.isfinite(density), density, 1.0)  # a NaN is left to the guard of the step
        edges = jnp.cumsum(density)
        levels = (jnp.arange(block.points) + jax.random.uniform(key)) / block.points * edges[-1]
        rows = jnp.clip(jnp.searchsorted(edges, levels, side="right"), 0, len(edges) - 1)
        chosen = jax.tree.map(lambda leaf: leaf[order[rows]], pool)
        return Weighted(chosen, jnp.mean(density) / density[rows] / block.points)

    def _sizes(self, residual: Float[Array, " k"], blocks: tuple[Block, ...]) -> dict[str, Array]:
        """The size of the residual at each point, block by block."""
        shapes = self.problem.shapes(jax.eval_shape(self.problem.init, jax.random.key(0)))
        found, start = {}, 0
        for block, own in zip(blocks, self.problem.blocks, strict=True):
            rows = shapes[block.name].size * block.points // own.points
            if _adapts(own):
                part = residual[start : start + rows].reshape(block.points, -1)
                found[block.name] = jnp.linalg.norm(part, axis=1)
            start += rows
        assert start == residual.shape[0]
        return found


def _adapts(block: Block) -> bool:
    return block.points >= FEWEST and block.weak is None and not isinstance(block.domain, Points)


def _along_a_curve(points: Float[Array, "M d"]) -> Array:
    """The place of each point on a curve that fills their box: the bits of its coordinates, interleaved."""
    low, high = jnp.min(points, axis=0, keepdims=True), jnp.max(points, axis=0, keepdims=True)
    bits = max(1, min(CURVE_BITS // points.shape[1], 15))
    span = jnp.where(high > low, high - low, 1)
    cells = jnp.clip((points - low) / span * 2**bits, 0, 2**bits - 1).astype(jnp.uint32)
    place = jnp.zeros(points.shape[0], jnp.uint32)
    for bit in reversed(range(bits)):
        for axis in range(min(points.shape[1], CURVE_BITS)):
            place = (place << 1) | ((cells[:, axis] >> bit) & 1)
    return place
