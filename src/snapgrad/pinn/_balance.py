"""Weights for blocks whose residuals are in units that do not go together, given once or while training."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Scalar

from .._checks import Given, positive_int
from .._contracts import AbstractSampler, Batch, Linearisation, State
from ._blocks import Weighted, weighted
from ._domains import Points
from ._problem import PINN

WELL = 30.0
"""Blocks this close to each other are left alone: their weights are as good as any."""
PROBES = 16
"""Random directions along which the size of a block's rows is measured."""


def balanced(problem: PINN, key: PRNGKeyArray | None = None) -> PINN:
    """The same problem with weights by which no block drowns another, whatever the units of its residual.

    A block learns at the rate of its kernel: the mean square of its rows, times its weight. Where that is
    more than 30 times that of the first block while the network is untrained, or less than a thirtieth, the
    block gets the weight that makes both equal; all others keep theirs, so that a problem whose units go
    together stays as it is. Weights do not change while training (`sg.pinn.Balanced` is for that): losses of
    different steps, and checkpoints, are of one problem. Blocks on `sg.pinn.Points` are left alone, since
    weights of data say how much they are to be trusted.

    **Arguments:**

    - `problem`: a `sg.pinn.PINN`.
    - `key`: the randomness of initial weights, points and directions; the same problem and key have the same
      weights.

    **Returns:** a `sg.pinn.PINN`; `problem.blocks` tell the weights. Like other problems that are not of the
    zoo it must be given to `sg.pinn.load`.

    ```python
    problem = sg.pinn.zoo("poisson-1d", hidden=(8,), points=(30, 2))
    interior, boundary = sg.pinn.balanced(problem).blocks
    boundary.weight
    ```
    """
    if not isinstance(problem, PINN):
        raise TypeError(f"`problem` must be a sg.pinn.PINN, got {type(problem).__name__}.")
    rates = jax.device_get(_rates(problem, jax.random.key(0) if key is None else key))
    names = [block.name for block in problem.blocks if not isinstance(block.domain, Points)]
    weights = [block.weight for block in problem.blocks]
    for i, block in enumerate(problem.blocks):
        if block.name in names[1:] and 0 < rates[block.name] * rates[names[0]] < np.inf:
            ratio = rates[names[0]] / rates[block.name]
            if not 1 / WELL <= ratio <= WELL:
                weights[i] = weights[i] * ratio
    found = eqx.tree_at(lambda problem: [block.weight for block in problem.blocks], problem, weights)
    object.__setattr__(found, "recipe", None)  # nobody else has this one yet
    return found


class Balanced(AbstractSampler):
    """Weights of blocks that follow training, so that no block drowns another.

    Before the first step, and every so many steps after it, each block's rate of learning is measured: the
    mean square of its weighted rows, from the Jacobian of the batch. Where it is more than 30 times that of
    the first block, or less than a thirtieth, the weight is changed until it is that far and no further; so
    weights never jump, and problems whose units go together train as they would without. Blocks on
    `sg.pinn.Points` keep theirs. The `loss` that is recorded is always that of the problem's own weights.

    **Arguments:**

    - `problem`: what is solved, a `sg.pinn.PINN`.
    - `sampler`: what draws the points, by default that of the problem; `sg.pinn.ResidualAdaptive(problem)`
      for fronts.
    - `refresh_every`: in how many steps weights are measured once.

    In slabs of time it is `sg.pinn.march(problem, key, sampler=sg.pinn.Balanced)`.

    ```python
    problem = sg.pinn.zoo("poisson-1d", hidden=(8,), points=(30, 2))
    solution = sg.pinn.solve(problem, jax.random.key(0), steps=2, sampler=sg.pinn.Balanced(problem))
    solution.history["weight of boundary"]                     # of the second block, relative to its own
    ```
    """

    problem: PINN
    sampler: AbstractSampler
    refresh_every: int = eqx.field(static=True)
    num_rows: int | None = eqx.field(static=True, default=None)

    def __init__(
        self,
        problem: Given[PINN, ""],
        sampler: Given[AbstractSampler | None, ""] = None,
        refresh_every: int = 100,
    ):
        if not isinstance(problem, PINN):
            raise TypeError(f"`problem` must be a sg.pinn.PINN, got {type(problem).__name__}.")
        if sampler is None:
            sampler = problem.default_sampler(jax.eval_shape(problem.init, jax.random.key(0)))
        elif not isinstance(sampler, AbstractSampler):
            raise TypeError(
                f"`sampler` must be a sampler such as sg.pinn.ResidualAdaptive(problem), got {sampler!r}."
            )
        self.problem, self.sampler = problem, sampler
        self.refresh_every, self.num_rows = positive_int("refresh_every", refresh_every), None

    def init(self, key: PRNGKeyArray) -> State:
        """Returns the state of the sampler inside, the factors of the weights, and a count of steps."""
        return self.sampler.init(key), {name: jnp.ones(()) for name in self._others}, jnp.zeros((), int)

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Returns the points of a step with their weights."""
        inner, factors, count = state
        batch, inner = self.sampler.draw(key, inner, linearise)
        factors = jax.lax.cond(
            count % self.refresh_every == 0,
            lambda: self._measured(jax.random.fold_in(key, 1), linearise(batch), batch),
            lambda: factors,
        )
        weighted = {name: _times(entry, factors.get(name)) for name, entry in batch.items()}
        return weighted, (inner, factors, count + 1)

    def unseen(self, state: State) -> Bool[Array, ""]:
        """Returns whether the points of the last step were new, as the sampler inside says."""
        return self.sampler.unseen(state[0])

    def report(self, state: State) -> dict[str, Scalar]:
        """Returns the factor of each block's weight."""
        inner = self.sampler.report(state[0])
        return inner | {f"weight of {name}": factor for name, factor in state[1].items()}

    @property
    def _others(self) -> list[str]:
        """The blocks whose weights may change."""
        return [block.name for block in self.problem.blocks[1:] if not isinstance(block.domain, Points)]

    def _measured(self, key: PRNGKeyArray, lin: Linearisation, batch: Batch) -> dict[str, Float[Array, ""]]:
        rates = _traces(self.problem, lin, batch, key)
        first = rates[self.problem.blocks[0].name]
        found = {}
        for name in self._others:
            ratio = first / rates[name]
            factor = ratio / jnp.clip(ratio, 1 / WELL, WELL)
            found[name] = jnp.where(jnp.isfinite(factor) & (factor > 0), factor, 1)
        return found


def _times(entry: Any, factor: Float[Array, ""] | None) -> Any:
    """The points of a block with that factor of their weights."""
    if factor is None:
        return entry
    points, weight = weighted(entry)
    return Weighted(points, factor * weight)


@eqx.filter_jit
def _rates(problem: PINN, key: PRNGKeyArray) -> dict[str, Float[Array, ""]]:
    """The rates of learning of an untrained network."""
    start, points, probes = jax.random.split(key, 3)
    batch = problem.draw(points)
    return _traces(problem, problem.linearise(problem.init(start), batch), batch, probes)


def _traces(problem: PINN, lin: Linearisation, batch: Batch, key: PRNGKeyArray) -> dict[str, Any]:
    """The weighted mean square of the rows of each block: the trace of its kernel, by random directions."""
    leaves, tree = jax.tree.flatten(lin.params)
    shapes = jax.eval_shape(problem.rows, lin.params, batch)
    ends = np.cumsum([shapes[block.name].size for block in problem.blocks])[:-1]

    def squares(key: PRNGKeyArray) -> list[Array]:
        keys = jax.random.split(key, len(leaves))
        signs = [
            jax.random.rademacher(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)
        ]
        moved = lin.jacobian.mv(jax.tree.unflatten(tree, signs))
        return [jnp.sum(part**2) for part in jnp.split(moved, ends)]

    sums = jax.lax.map(squares, jax.random.split(key, PROBES))
    return {block.name: jnp.mean(found) for block, found in zip(problem.blocks, sums, strict=True)}
