"""A problem cut into slabs of time, each of which goes on from where the one before has ended."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import Given, positive_int
from .._contracts import Params
from ._blocks import Block
from ._domains import SpaceTime
from ._evolving import Evolving
from ._network import Network, evaluate
from ._problem import PINN
from ._solve import Solution

Maker = Callable[[float, float, Solution | None], PINN]
"""Makes the problem of a slab from its start, its end and the solution of the slab before."""


def into_slabs(problem: Any, slabs: Any) -> tuple[Maker, list[float]]:
    """The function that makes the problem of a slab, and the times between slabs."""
    if isinstance(problem, PINN):
        times = _times(slabs, _span(problem))
        return partial(_slab, problem, times), times
    if not callable(problem):
        raise TypeError(
            f"`problem` must be a sg.pinn.PINN, or a function of (start, end, before) that returns one; got "
            f"{type(problem).__name__}."
        )
    make: Any = problem
    return make, _times(slabs, None)


def _times(slabs: Any, span: tuple[float, float] | None) -> list[float]:
    if np.ndim(slabs) == 0:
        count = positive_int("slabs", slabs)
        if span is None:
            raise ValueError(
                f"`slabs` must be the times between slabs, such as [0, 0.5, 1], where `problem` is a "
                f"function; got {slabs!r}."
            )
        return [float(time) for time in np.linspace(*span, count + 1)]
    times = [float(time) for time in slabs]
    if len(times) < 2 or any(b <= a for a, b in pairwise(times)):
        raise ValueError(f"`slabs` must be at least two increasing times, got {slabs!r}.")
    if span is not None and (times[0], times[-1]) != span:
        raise ValueError(f"`slabs` must go from {span[0]} to {span[1]} as `problem` does, got {slabs!r}.")
    return times


def _span(problem: PINN) -> tuple[float, float]:
    """From when to when a problem reaches; `ValueError` if it cannot be cut into slabs."""
    if unknown := [*problem.unknowns, *problem.fields]:
        raise ValueError(
            f"`problem` must not have unknowns, which belong to all times at once; got "
            f"{', '.join(unknown)}. Use sg.pinn.solve."
        )
    for block in problem.blocks:
        if not isinstance(block.domain, SpaceTime):
            raise ValueError(
                f"block {block.name!r} must be on a sg.pinn.SpaceTime to be cut into slabs, got "
                f"{type(block.domain).__name__}."
            )
    spans = {_ends(block) for block in problem.blocks if not _held(block)}
    if len(spans) != 1:
        raise ValueError(f"`problem` must have blocks from one start to one end, got {sorted(spans)}.")
    (span,) = spans
    held = [block for block in problem.blocks if _held(block)]
    for block in held:
        if _ends(block)[0] != span[0]:
            raise ValueError(
                f"block {block.name!r} must hold at the start, {span[0]}, or at all times; it holds at "
                f"{_ends(block)[0]}. A march goes forward in time."
            )
    if not held and not isinstance(problem.network, Evolving):
        raise ValueError(
            "`problem` must have a block on domain.initial(), or a sg.pinn.Evolving for a network, which say "
            "how slabs follow each other. For another network that holds its initial condition give a "
            "function of (start, end, before) that returns the problem of one slab."
        )
    return span


def _ends(block: Block) -> tuple[float, float]:
    domain: Any = block.domain
    return float(domain.start), float(domain.end)


def _held(block: Block) -> bool:
    start, end = _ends(block)
    return start == end


def _slab(problem: PINN, times: list[float], start: float, end: float, before: Solution | None) -> PINN:
    """The problem from start to end. Slabs after the first differ in numbers alone: they share programs."""

    def cut(block: Block) -> Block:
        held, whole = _held(block), cast(SpaceTime, block.domain)
        domain = SpaceTime(whole.space, start, start if held else end)
        if not held or before is None:
            return replace(block, domain=domain)
        residual = Continued(block.residual, before.problem.network, before.params["network"])
        return replace(block, domain=domain, residual=residual)

    if isinstance(problem.network, Evolving):
        if before is None:
            network: Any = problem.network.over(times)
        else:
            network = before.problem.network.after(before.params["network"])
    else:
        network = Shifted(problem.network, start - times[0])
    known = problem.exact
    if known is None and problem.test is not None:
        known = _within(problem.test, times, start)
    blocks = tuple(cut(block) for block in problem.blocks)
    if before is not None and _alike((network, blocks), (before.problem.network, before.problem.blocks)):
        return before.problem.renewed(network, blocks, known)
    return PINN(network, blocks, known, measured=problem.measured)


def _alike(a: Any, b: Any) -> bool:
    """Whether two trees differ in numbers alone."""
    return jax.tree.structure(a) == jax.tree.structure(b)


def _within(test: tuple[Array, Array], times: list[float], start: float) -> tuple[Array, Array] | None:
    """The points of a slab, some of them twice, so that every slab has as many."""
    points, values = test
    slab = np.searchsorted(times[1:-1], np.asarray(points[:, 0]), side="right")
    rows = np.flatnonzero(slab == times.index(start))
    if not rows.size:
        return None
    rows = np.resize(rows, np.bincount(slab).max())
    return points[rows], values[rows]


class Shifted(eqx.Module):
    """A network whose first coordinate, time, counts from a moment of its own.

    **Arguments:**

    - `network`: any network.
    - `start`: the time that it sees as zero.

    ```python
    network = sg.pinn.Shifted(sg.pinn.MLP([2, 8, 1]), start=0.5)
    params = network.init(jax.random.key(0))
    network(params, jnp.array([0.5, 0.1]))      # what the perceptron says at (0, 0.1)
    ```
    """

    network: Any
    start: Float[Array, ""]

    def __init__(self, network: Given[Network, ""], start: Given[ArrayLike, ""]):
        self.network, self.start = network, jnp.asarray(start, float)

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns random initial parameters of the network."""
        return self.network.init(key)

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The network at a point of its own time."""
        return self.network(params, jnp.concatenate([x[:1] - self.start, x[1:]]))


class Continued(eqx.Module):
    """The residual of an initial condition less that of the slab before."""

    residual: Callable
    network: Any
    params: Params

    def __call__(self, u: Callable, x: Float[Array, " d"], **columns: Any) -> Float[Array, "*o"]:
        """Zero where both agree."""
        before = partial(evaluate, self.network, self.params)
        return jnp.asarray(self.residual(u, x, **columns)) - self.residual(before, x, **columns)
