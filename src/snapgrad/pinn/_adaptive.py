"""Points that follow the residual."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import positive_int, real_scalar
from .._contracts import AbstractSampler, Batch, Linearisation, State
from ._domains import Points
from ._problem import PINN


class ResidualAdaptive(AbstractSampler):
    """Points drawn in proportion to their residual, for solutions with fronts and layers.

    Every `refresh_every` steps a pool of `oversample` times as many points is drawn, and a point of it is
    kept with a probability that grows like |r|^power / mean |r|^power + floor. A large `power` goes where the
    residual is largest, a large `floor` keeps points everywhere.

    ```python
    problem = sg.pinn.zoo("poisson-1d", hidden=(8,), points=(30, 2))
    sampler = sg.pinn.ResidualAdaptive(problem, refresh_every=50)  # for sg.pinn.solve(..., sampler=sampler)
    ```
    """

    problem: PINN
    refresh_every: int = eqx.field(static=True)
    oversample: int = eqx.field(static=True)
    power: Float[Array, ""]
    floor: Float[Array, ""]
    num_rows: int | None = eqx.field(static=True, default=None)

    def __init__(
        self,
        problem: PINN,
        refresh_every: int = 100,
        oversample: int = 4,
        power: Any = 1.0,
        floor: Any = 1.0,
    ):
        self.problem = problem
        self.refresh_every = positive_int("refresh_every", refresh_every)
        self.oversample = positive_int("oversample", oversample)
        self.power = real_scalar("power", power, low=0)
        self.floor = real_scalar("floor", floor, low=0)
        self.num_rows = None

    def init(self, key: PRNGKeyArray) -> State:
        """Evenly spread points and a count of steps."""
        return self.problem.draw(key), jnp.zeros((), int)

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """The points of this step, chosen by their residuals when it is time."""
        batch, count = state
        due = (count > 0) & (count % self.refresh_every == 0)
        batch = jax.lax.cond(due, lambda: self._choose(key, linearise), lambda: batch)
        return batch, (batch, count + 1)

    def _choose(self, key: PRNGKeyArray, linearise: Callable[[Batch], Linearisation]) -> Batch:
        keys = jax.random.split(key, 1 + self.oversample)
        pools = [self.problem.draw(k) for k in keys[1:]]
        sizes = [self._sizes(linearise(pool).residual) for pool in pools]
        chosen = {}
        for i, block in enumerate(self.problem.blocks):
            if isinstance(block.domain, Points):
                chosen[block.name] = pools[0][block.name]
                continue
            pool = jax.tree.map(lambda *parts: jnp.concatenate(parts), *(p[block.name] for p in pools))
            size = jnp.concatenate([s[block.name] for s in sizes]) ** self.power
            weight = size / jnp.maximum(jnp.mean(size), jnp.finfo(size.dtype).tiny) + self.floor
            # The largest log-weights with Gumbel noise are a weighted sample without replacement.
            noise = jax.random.gumbel(jax.random.fold_in(keys[0], i), size.shape)
            _, rows = jax.lax.top_k(jnp.log(weight) + noise, block.points)
            chosen[block.name] = jax.tree.map(lambda leaf: leaf[rows], pool)  # noqa: B023
        return chosen

    def _sizes(self, residual: Float[Array, " k"]) -> dict[str, Float[Array, " p"]]:
        """The size of the residual at each point, block by block."""
        found, start = {}, 0
        counts = self._row_counts(residual.shape[0])
        for block, rows in zip(self.problem.blocks, counts, strict=True):
            part = residual[start : start + rows].reshape(block.points, -1)
            found[block.name] = jnp.linalg.norm(part, axis=1)
            start += rows
        return found

    def _row_counts(self, total: int) -> list[int]:
        problem, key = self.problem, jax.random.key(0)
        shapes = jax.eval_shape(lambda key: problem.residuals(problem.init(key), problem.draw(key)), key)
        counts = [shapes[block.name].size for block in problem.blocks]
        assert sum(counts) == total
        return counts
