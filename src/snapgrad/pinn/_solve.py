"""`sg.pinn.solve`: train until the steps, the time or the tolerance are reached."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from .. import training
from .._checks import positive_int
from .._contracts import AbstractMethod, AbstractSampler, Params
from ..methods import Auto
from ..training import TrainState, run
from ._problem import PINN
from ._sampling import Collocation

REFRESH_EVERY = 100
"""The most steps between two sets of points where they outnumber the parameters."""
WATCHED = ("damping", "step_size", "momentum", "gain", "refused")
"""Fields of a method's state that are recorded if it has them."""


@dataclass(frozen=True)
class Solution:
    """What `sg.pinn.solve` returns: a function, `solution(x)` at a point or at rows of points.

    - `params`: `{"network": ..., "unknowns": ...}`.
    - `history`: arrays of `step`, `seconds` (without compilation), the problem's metrics, and what the
      method reports of itself.
    - `reason`: `"steps"`, `"seconds"` or `"tol"`, whichever ended it.
    - `state`: the whole final state; pass it to `sg.pinn.solve` to go on.
    """

    problem: PINN
    params: Params
    history: dict[str, np.ndarray]
    reason: str
    state: TrainState

    def __call__(self, x: Any) -> Array:
        """The network at x."""
        return self.problem.u(self.params, x)

    @property
    def unknowns(self) -> dict[str, Array]:
        """The coefficients found."""
        return self.params["unknowns"]


def solve(
    problem: PINN,
    key: PRNGKeyArray,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    tol: float | None = None,
    method: AbstractMethod | None = None,
    optimizer: optax.GradientTransformation | float = 1.0,
    sampler: AbstractSampler | None = None,
    params: Params = None,
    state: TrainState | None = None,
    record_every: int = 25,
    callback: Callable[[dict[str, float], TrainState | None], None] | None = None,
) -> Solution:
    """Solves a PINN problem; nothing needs tuning.

    By default `sg.Auto` trains on evenly spread points: where the points outnumber the parameters they are
    kept for up to 100 steps, else drawn anew at each step. For the most accurate solution choose points that
    outnumber the parameters, two to one, if memory and time allow (`sg.pinn.advice` says what that takes).
    Use float64.

    **Arguments:**

    - `problem`, `key`: what to solve, and the randomness of initial weights and points.
    - `steps`, `seconds`: when to stop; 1000 steps if neither is given. Compilation does not count.
    - `tol`: stop once `relative_l2` (or `loss`, where the solution is unknown) is below this.
    - `method`, `optimizer`, `sampler`: in place of the defaults, as for `sg.run`.
    - `params`, `state`: where to start; a `state` comes from an earlier solution and goes on exactly.
    - `record_every`: steps between two records.
    - `callback`: is called with each record, and with the state then (None before the first step).

    ```python
    solution = sg.pinn.solve(problem, jax.random.key(0), seconds=60)
    solution(x), solution.history["relative_l2"][-1]
    ```
    """
    if not isinstance(problem, PINN):
        raise TypeError(f"`problem` must be a sg.pinn.PINN, got {type(problem).__name__}.")
    if steps is None and seconds is None:
        steps = 1000
    most = np.inf if steps is None else positive_int("steps", steps)
    limit = np.inf if seconds is None else float(seconds)
    if not limit > 0:
        raise ValueError(f"`seconds` must be above 0, got {seconds!r}.")
    chunk = int(min(positive_int("record_every", record_every), most))
    start = problem.init(jax.random.split(key)[0]) if params is None else params
    start = start if state is None else state.params
    problem.check(start, problem.draw(jax.random.fold_in(key, 1)))
    method, sampler, transform = _chosen(problem, start, method, sampler, optimizer)

    def advance(state: TrainState | None, count: int) -> TrainState:
        given = {"params": start} if state is None else {"state": state}
        result = run(problem, method, sampler, transform, count, key, record_every=count, **given)
        return jax.block_until_ready(result.state)

    jax.block_until_ready(advance(state, chunk).step)  # compile outside the measured time
    rows: list[dict[str, float]] = []
    spent, done, reason = 0.0, 0 if state is None else int(state.step), ""
    first = done
    current = state

    def record() -> dict[str, float]:
        found = {"step": float(done), "seconds": spent}
        found |= {
            k: float(v) for k, v in _metrics(problem, start if current is None else current.params).items()
        }
        if current is not None:
            found |= _watched(current)
        rows.append(found)
        if callback is not None:
            callback(found, current)
        return found

    last = record()
    stuck = 0
    while not reason:
        count = int(min(chunk, most - (done - first)))
        begin = time.perf_counter()
        refused = 0 if current is None else int(current.rejected)
        current = advance(current, count)
        spent += time.perf_counter() - begin
        done += count
        stuck = stuck + 1 if int(current.rejected) - refused == count else 0
        if stuck == 2:
            problem.check(current.params, problem.draw(jax.random.fold_in(key, done)))
            raise FloatingPointError(
                f"the last {2 * count} steps were not finite, from step {done - 2 * count}: the residuals "
                f"are finite but their derivatives are not. Look for a square root or a norm at zero."
            )
        last = record()
        goal = last.get("relative_l2", last["loss"])
        if tol is not None and goal <= tol:
            reason = "tol"
        elif done - first >= most:
            reason = "steps"
        elif spent >= limit:
            reason = "seconds"
    assert current is not None
    names = list(dict.fromkeys(name for row in rows for name in row))
    history = {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}
    return Solution(problem, current.params, history, reason, current)


def start(
    problem: PINN,
    key: PRNGKeyArray,
    *,
    method: AbstractMethod | None = None,
    optimizer: optax.GradientTransformation | float = 1.0,
    sampler: AbstractSampler | None = None,
) -> TrainState:
    """A state of the kind that `sg.pinn.solve` returns, to read a stored one into."""
    params = problem.init(key)
    return training.start(params, *_chosen(problem, params, method, sampler, optimizer), key)


def _chosen(
    problem: PINN,
    params: Params,
    method: AbstractMethod | None,
    sampler: AbstractSampler | None,
    optimizer: optax.GradientTransformation | float,
) -> tuple[AbstractMethod, AbstractSampler, optax.GradientTransformation]:
    """What was given, and the defaults for what was not."""
    return (
        Auto() if method is None else method,
        default_sampler(problem, params) if sampler is None else sampler,
        optimizer if isinstance(optimizer, optax.GradientTransformation) else _sgd(float(optimizer)),
    )


def default_sampler(problem: PINN, params: Params) -> Collocation:
    """Points kept for a while where they outnumber the parameters, else fresh ones."""
    rows, size = counts(problem, params)
    return Collocation(problem, refresh_every=REFRESH_EVERY if rows > size else 1, warm_up=True)


def counts(problem: PINN, params: Params) -> tuple[int, int]:
    """Rows k of a step and parameters n."""
    key = jax.random.key(0)
    shapes = jax.eval_shape(lambda params, key: problem.residuals(params, problem.draw(key)), params, key)
    rows = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    return rows, sum(leaf.size for leaf in jax.tree.leaves(params))


def advice(problem: PINN) -> str:
    """How many points a step would be best, and what they cost, in words."""
    params = jax.eval_shape(lambda key: problem.init(key), jax.random.key(0))
    rows, size = counts(problem, params)
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


@lru_cache
def _sgd(rate: float) -> optax.GradientTransformation:
    """Made once for each rate: a compiled loop is found again by the identity of its functions."""
    return optax.sgd(rate)


@eqx.filter_jit
def _metrics(problem: PINN, params: Params) -> dict[str, Array]:
    return problem.metrics(params)


def _watched(state: TrainState) -> dict[str, float]:
    found = {"rejected": float(state.rejected)}
    for name in WATCHED:
        value = getattr(state.method, name, None)
        if value is not None:
            found[name] = float(value)
    return found
