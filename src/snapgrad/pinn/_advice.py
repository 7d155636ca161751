"""`sg.pinn.advice`: what would make a problem easier to solve, in words."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._contracts import Params
from ._balance import balanced
from ._domains import Box, Points, SpaceTime
from ._evolving import Evolving
from ._march import Marched
from ._problem import PINN
from ._solve import Solution
from ._zoo import slabs_of

FAR = 4.0
"""Coordinates beyond this saturate a network that does not scale them."""
PEAKED = 10.0
"""A residual whose largest value is this many times its root mean square sits in a few places."""
RECORDS = 8
"""So many records of a run say whether it still gets better."""
BETTER, SOLVED = 0.5, 1e-6
"""It does if the least loss of the later half is below this part of that of the earlier one; and where the
loss has fallen to this part of the first one, it need not."""


def advice(problem: PINN | Solution | Marched) -> str:
    """Says in words what would make a problem easier to solve: points, network, features, slabs of time.

    **Arguments:**

    - `problem`: a `sg.pinn.PINN`, or the `sg.pinn.Solution` or `sg.pinn.Marched` of one. For a solution the
      text also says in which block, and where in it, the residual is still large; for a march, in which slab,
      and from when on it is not to be trusted.

    **Returns:** a few sentences. `TypeError` if it is none of the three.

    ```python
    print(sg.pinn.advice(sg.pinn.zoo("poisson-2d")))
    ```
    """
    if isinstance(problem, Marched):
        return " ".join(_marched(problem))
    if isinstance(problem, Solution):
        return " ".join([*_about(problem.problem), *_stalled(problem), *_left(problem)])
    if not isinstance(problem, PINN):
        raise TypeError(f"`problem` must be a sg.pinn.PINN or a solution, got {type(problem).__name__}.")
    return " ".join(_about(problem))


def _about(problem: PINN) -> list[str]:
    return [_points(problem), *_features(problem), *_slabs(problem), *_data(problem)]


def _marched(marched: Marched) -> list[str]:
    """Of a march: what is said of a slab, and which of them is the worst."""
    first = marched.slabs[0].problem
    losses = [float(slab.history["loss"][-1]) for slab in marched.slabs]
    worst = int(np.argmax(np.nan_to_num(losses, nan=np.inf)))
    start, end = marched.times[worst : worst + 2]
    said = ["In each slab:", _points(first), *_features(first)]
    if marched.suspect is not None:
        said.append(
            f"The march has diverged: from t = {marched.suspect:.6g} on the solution is not to be trusted. "
            f"More slabs, more points or a larger network keep it."
        )
    said.append(
        f"The largest loss, {losses[worst]:.1e}, is that of slab {worst + 1} of {len(losses)}, from t = "
        f"{start:.6g} to {end:.6g}; the median of all is {np.median(losses):.1e}. Shorter slabs there "
        f"(slabs=[times]) help."
    )
    return [*said, *_left(marched.slabs[worst])]


def _points(problem: PINN) -> str:
    params: Params = jax.eval_shape(lambda key: problem.init(key), jax.random.key(0))
    rows, size = problem.counts(params)
    wanted = 2 * size
    factor = max(1.0, wanted / rows)
    points = ", ".join(f"{block.name} {round(block.points * factor)}" for block in problem.blocks)
    memory = max(wanted, rows) * size * jnp.dtype(float).itemsize / 2**30
    if rows > size:
        return (
            f"{rows} rows for {size} parameters: enough. A step solves in parameter space and holds "
            f"{memory:.3g} GiB of rows."
        )
    return (
        f"{rows} rows for {size} parameters: a step solves in sample space and keeps momentum. If "
        f"{memory:.3g} GiB of rows fit, twice as many rows as parameters ({points}) converge faster."
    )


def _features(problem: PINN) -> list[str]:
    """Whether the network fits the domain; it is asked, not looked at, so any network will do."""
    domain = problem.blocks[0].domain
    if isinstance(domain, Points):
        return []
    found = []
    low, high = (np.asarray(end) for end in domain.bounds())
    params = eqx.filter_jit(problem.init)(jax.random.key(0))
    for axis, length in domain.periods.items():
        ends = np.tile((low + high) / 2, (2, 1))
        ends[:, axis] = low[axis], low[axis] + length  # a start need not be known beyond the domain
        first, second = np.asarray(problem.u(params, ends))
        if not np.allclose(first, second, atol=1e-3 * (np.abs(first).max() + 1e-3)):
            found.append(
                f"Coordinate {axis} is periodic and the network is not: sg.pinn.network(domain) is, or wrap "
                f"yours in sg.pinn.Periodic."
            )
    far = float(max(np.abs(low).max(), np.abs(high).max()))
    if far > FAR and type(problem.network).__name__ in ("MLP", "Equinox", "Flax"):
        found.append(
            f"Coordinates reach {far:.3g}, where activations saturate: sg.pinn.network(domain) scales them "
            f"to [−1, 1], or wrap yours in sg.pinn.Scaled."
        )
    return found


def _slabs(problem: PINN) -> list[str]:
    timed = [block.domain for block in problem.blocks if isinstance(block.domain, SpaceTime)]
    spans = [float(domain.end - domain.start) for domain in timed]
    held = isinstance(problem.network, Evolving)
    if not spans or (min(spans) > 0 and not held) or max(spans) == 0 or problem.unknowns or problem.fields:
        return []
    if slabs := slabs_of(problem):
        return [
            f"Its network is made for slabs of time: sg.pinn.march(problem, key, slabs={slabs}) goes "
            f"from slab to slab."
        ]
    return [
        f"It is an initial-value problem over a time of {max(spans):.3g}: if one network for all times "
        f"stalls, sg.pinn.march(problem, key, slabs=8) goes from slab to slab."
    ]


def _data(problem: PINN) -> list[str]:
    if not problem.unknowns and not problem.fields:
        return []
    names = ", ".join([*problem.unknowns, *problem.fields])
    return [
        f"For {names}, solution.error_bars() says how far noise in the data may have moved what is found."
    ]


def _stalled(solution: Solution) -> list[str]:
    """Whether training has stopped to get better long before the end, and what is known to help."""
    losses = np.asarray(solution.history.get("loss", []))
    half = len(losses) // 2
    if len(losses) < RECORDS:
        return []
    first, last = np.nanmin(losses[:half]), np.nanmin(losses[half:])
    if last < BETTER * first or last < SOLVED * losses[0]:
        return []
    said = f"Training has stalled: the least loss was {first:.1e} in its first half and {last:.1e} since."
    pairs = zip(solution.problem.blocks, balanced(solution.problem).blocks, strict=True)
    if drowned := [block.name for block, other in pairs if block.weight != other.weight]:
        said += (
            f" Residuals of {', '.join(drowned)} are in units far from those of the first block: "
            f"sg.pinn.balanced(problem) weights them."
        )
    if not _slabs(solution.problem):
        return [f"{said} A larger network, or more points, may be needed."]
    return [
        f"{said} Use slabs of time: sg.pinn.march(problem, key, slabs=10, sampler=sg.pinn.ResidualAdaptive), "
        f"with tanh in the network where there are fronts and a large weight of the start."
    ]


def _left(solution: Solution) -> list[str]:
    """Blocks whose residual is large in a few places; in a weak form that says nothing."""
    problem = solution.problem
    boxes = {b.name for b in problem.blocks if isinstance(b.domain, Box) and not any(b.domain.periodic)}
    pointwise = [block.name for block in problem.blocks if block.weak is None]
    residuals = eqx.filter_jit(PINN.residuals)(problem, solution.params, problem.draw(jax.random.key(6)))
    found = []
    for name in pointwise:
        sizes = np.abs(np.asarray(residuals[name]))
        ratio = sizes.max() / max(np.sqrt(np.mean(sizes**2)), np.finfo(float).tiny)
        if ratio > PEAKED:
            found.append(
                f"The residual of block {name!r} is largest in a few places, {ratio:.0f} times its root mean "
                f"square: more points, or sampler=sg.pinn.ResidualAdaptive(problem), go there."
                + (" If these are corners, ask it in its weak form (sg.pinn.Weak)." if name in boxes else "")
            )
    return found
