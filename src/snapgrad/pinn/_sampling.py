"""Which collocation points each step sees."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from .._checks import positive_int
from .._contracts import AbstractSampler, Batch, Linearisation, State
from ._blocks import Block, draw_points


class Collocation(AbstractSampler):
    """Points of all blocks, drawn anew every so many steps.

    **Arguments:**

    - `blocks`: what to draw points for: a `sg.pinn.PINN` or its blocks.
    - `refresh_every`: how many steps use the same points: 1 for fresh points at each step, None for one set
      throughout.
    - `spread`: whether points are evenly spread (a shifted Sobol sequence, or the `grid` of a block that has
      one) or independent and uniform.
    - `warm_up`: whether to keep points for at most a quarter of the steps taken so far. A network far from
      the solution can fit a few points in ways that are wrong everywhere else, and then stays there.

    ```python
    problem = sg.pinn.zoo("poisson-1d", hidden=(8,), points=(30, 2))
    sampler = sg.pinn.Collocation(problem, refresh_every=10)      # for sg.pinn.solve(..., sampler=sampler)
    points, age, step = sampler.init(jax.random.key(0))
    points["interior"].shape                                      # (30, 1)
    ```
    """

    blocks: tuple[Block, ...]
    refresh_every: int | None = eqx.field(static=True)
    spread: bool = eqx.field(static=True)
    warm_up: bool = eqx.field(static=True)
    num_rows: int | None = eqx.field(static=True, default=None)

    def __init__(
        self, blocks: Any, refresh_every: int | None = 1, spread: bool = True, warm_up: bool = False
    ):
        self.blocks = tuple(getattr(blocks, "blocks", blocks))
        self.refresh_every = None if refresh_every is None else positive_int("refresh_every", refresh_every)
        self.spread = spread
        self.warm_up = warm_up
        self.num_rows = None

    def init(self, key: PRNGKeyArray) -> State:
        """Returns the first points, their age and a count of steps; nothing where each step has its own
        points.
        """
        zero = jnp.zeros((), int)
        return () if self.refresh_every == 1 else (self._batch(key), zero, zero)

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Returns the points of a step: those of the last one, or fresh ones when it is time."""
        del linearise
        if self.refresh_every == 1:
            return self._batch(key), state
        batch, age, count = state
        longest = jnp.iinfo(count.dtype).max if self.refresh_every is None else self.refresh_every
        due = age >= (jnp.minimum(longest, 1 + count // 4) if self.warm_up else longest)
        batch = jax.lax.cond(due, lambda: self._batch(key), lambda: batch)
        return batch, (batch, jnp.where(due, 1, age + 1), count + 1)

    def unseen(self, state: State) -> Bool[Array, ""]:
        """Returns whether the points of the last step were drawn for it."""
        return jnp.ones((), bool) if self.refresh_every == 1 else state[1] == 1

    def _batch(self, key: PRNGKeyArray) -> dict[str, Any]:
        return draw_points(self.blocks, key, self.spread, grid=True)
