"""`sg.pinn.balanced`: weights for blocks whose residuals are in units that do not go together."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from .._contracts import Params
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
    together stays as it is. Weights do not change while training: losses of different steps, and checkpoints,
    are of one problem. Blocks on `sg.pinn.Points` are left alone, since weights of data say how much they are
    to be trusted.

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


@eqx.filter_jit
def _rates(problem: PINN, key: PRNGKeyArray) -> dict[str, jax.Array]:
    """The weighted mean square of the rows of each block: the trace of its kernel, by random directions."""
    start, points, *probes = jax.random.split(key, PROBES + 2)
    trained, rest = eqx.partition(problem.init(start), eqx.is_inexact_array)
    batch = problem.draw(points)

    def residuals(trained: Params) -> dict[str, jax.Array]:
        return problem.residuals(eqx.combine(trained, rest), batch)

    def squares(probe: PRNGKeyArray) -> dict[str, jax.Array]:
        leaves, tree = jax.tree.flatten(trained)
        keys = jax.random.split(probe, len(leaves))
        signs = [
            jax.random.rademacher(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)
        ]
        _, moved = jax.jvp(residuals, (trained,), (jax.tree.unflatten(tree, signs),))
        return {block.name: block.weight * jnp.mean(moved[block.name] ** 2) for block in problem.blocks}

    return jax.tree.map(jnp.mean, jax.vmap(squares)(jnp.stack(probes)))
