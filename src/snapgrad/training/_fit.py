"""`sg.fit`: the host loop. Steps in compiled chunks; between them it records, stores, shows and stops."""

import inspect
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray

from .. import _signals
from .._checks import Given, positive_int, real_scalar, trainable
from .._contracts import (
    REASONS,
    AbstractMethod,
    AbstractProblem,
    AbstractSampler,
    Pair,
    Params,
    Reason,
    Result,
)
from ..methods import Auto
from ..problems import LeastSquares
from ..sampling import AllRows, Uniform
from ._devices import Team, local, placed, within
from ._endings import ends_in_order
from ._progress import shown
from ._run import advance, measure, prepare
from ._step import Setup, TrainState, as_transformation
from ._store import CHECKPOINT, Kept, Log, Store, claimed, fingerprint

DEFAULT_STEPS = 1000
"""Where neither steps nor seconds are given."""
ALL_ROWS_NUMBERS = 2**25
"""All rows are used at each step while their Jacobian has at most this many numbers (256 MiB in float64)."""
BATCH_ROWS = 512
"""Otherwise a batch has this many rows, enough to keep matrix products busy, or fewer for a vast model."""
TICK = 1e-9
"""Seconds: no step takes less."""
GOALS = ("relative_l2", "relative_error", "loss")
"""What `tol` looks at: the first of these that the problem measures."""
GAINS = ("loss", *GOALS)
"""What `patience` looks at: nobody who needs a solution knows its error."""

Callback = Callable[[dict[str, float], TrainState], Any]


@ends_in_order
def fit(
    problem: AbstractProblem,
    key: PRNGKeyArray,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    tol: float | None = None,
    patience: int | None = None,
    keep_best: bool = False,
    method: AbstractMethod | None = None,
    sampler: AbstractSampler | None = None,
    batch_size: int | None = None,
    optimizer: Given[float | Array | optax.Schedule | optax.GradientTransformation, ""] = 1.0,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: bool = False,
    callback: Callback | None = None,
    record_every: int = 25,
    params: Params = None,
    state: TrainState | None = None,
    mesh: Given[Mesh | None, ""] = None,
) -> Result:
    """Trains a problem until a limit is reached or nothing improves any more; nothing needs tuning.

    **Arguments:**

    - `problem`, `key`: what to minimise, such as `sg.LeastSquares`, and the randomness of it.
    - `steps`, `seconds`: when to stop; 1000 steps if neither is given. Compilation does not count as seconds.
    - `tol`: stop once the goal is at most this. The goal is the relative error where the problem knows its
      solution (`relative_l2` or `relative_error`), and `loss` otherwise.
    - `patience`: stop once the `loss` (or the goal, where that is not measured) has not been improved for so
      many steps.
    - `keep_best`: whether to return the parameters of the record with the least `loss` (or goal), of which
      the last entry of `history` then tells, rather than the last ones.
    - `method`: default `sg.Auto()`, which chooses damping, step size and momentum itself.
    - `sampler`: default all rows at each step if their Jacobian fits into memory, else uniform batches.
    - `batch_size`: rows per step, in place of a sampler.
    - `optimizer`: η, a schedule of it, or any optax transformation. Methods that choose their own step want
      the default of 1.
    - `checkpoint`: a folder to store the state in, every 30 seconds, at the end, on Ctrl-C and on SIGTERM, by
      which schedulers announce the end; the process then exits with code 143. It belongs to one process at a
      time.
    - `resume`: go on from the checkpoint in that folder if there is one, bit for bit as if never stopped;
      `steps` and `seconds` then count from the very first step. With False a checkpoint that is there is
      refused, never overwritten.
    - `progress`: whether to show a progress bar.
    - `callback`: is called as `callback(record, state)` with each record; training stops if it returns
      something true.
    - `record_every`: steps between two records; with `seconds` there is one after the first step too, and
      sooner ones near the end.
    - `params`, `state`: where to start, in place of `problem.init`; a `state` comes from an earlier result,
      and `steps` and `seconds` then count from there.
    - `mesh`: devices to spread the rows of each step over, a `jax.sharding.Mesh` of one axis such as
      `jax.make_mesh((jax.device_count(),), ("rows",))`; parameters and data are on each of them. Results do
      not depend on the number of devices, but for rounding. After `jax.distributed.initialize()` a mesh may
      span processes and hosts: all of them make the same call, and the first one writes and keeps the time.

    **Returns:** a `sg.Result`; its `reason` says why it stopped. `FloatingPointError` if none of many steps
    in a row was finite, with the row or point that is to blame where the problem can tell; `ValueError` if a
    checkpoint is damaged or belongs to another problem, key or method; `OSError` if it cannot be written or
    another process writes there; `MemoryError`, with what would take less, if a step does not fit.

    ```python
    x = jnp.linspace(0, 1, 6)
    problem = sg.LeastSquares(lambda p, row: p["a"] * jnp.exp(-p["b"] * row[0]) - row[1],
                              (x, 2 * jnp.exp(-3 * x)), {"a": 1.0, "b": 1.0})
    result = sg.fit(problem, jax.random.key(0), steps=50)
    result.params, result.reason, result.history["loss"][-1]
    ```
    """
    limits = _limits(steps, seconds, tol, patience)
    every = positive_int("record_every", record_every)
    method = Auto() if method is None else method
    if not isinstance(method, AbstractMethod):
        raise TypeError(f"`method` must be a method such as sg.Auto() or sg.Spring(1e-3), got {method!r}.")
    transform = as_transformation(optimizer)
    if sampler is not None and batch_size is not None:
        raise ValueError("give `sampler` or `batch_size`, not both: a sampler has its own size.")
    if params is not None:
        params = trainable("params", params)
    if sampler is None:
        begun = params if state is None else state.params
        like = eqx.filter_eval_shape(problem.init, key) if begun is None else begun
        sampler = _default_sampler(problem, like, batch_size)
    setup, current = prepare(problem, key, method, sampler, transform, params, state, mesh)
    start = Kept(current, current.params if keep_best else None)
    log, team = Log(first=int(current.step)), Team(setup.mesh)
    with ExitStack() as stack:
        stack.enter_context(within(setup.mesh))
        store = None
        if checkpoint is not None:
            store = Store(Path(checkpoint) / CHECKPOINT, fingerprint(setup, every), team)
            team.told(lambda: stack.enter_context(claimed(Path(checkpoint))))
            found = store.begin(local(start, setup.mesh), resume and state is None)
            if found is not None:
                start, log = placed(found[0], setup.mesh), found[1]
        return _loop(setup, start, log, limits, every, store, callback, progress and team.leads, team)


@dataclass(frozen=True)
class _Limits:
    steps: float
    seconds: float
    tol: float
    patience: float


def _loop(
    setup: Setup,
    start: Kept,
    log: Log,
    limits: _Limits,
    every: int,
    store: Store | None,
    callback: Callback | None,
    progress: bool,
    team: Team,
) -> Result:
    (state, best), every_row = start, isinstance(setup.sampler, AllRows)
    goal, gain, stuck, stopped, resumed = _Goal(GOALS), _Goal(GAINS), 0, False, bool(log.rows)

    def record() -> dict[str, float]:
        nonlocal best
        found = {"step": float(state.step), "seconds": log.spent}
        found |= {name: float(value) for name, value in measure(setup, state).items()}
        log.rows.append(found)
        goal.update(found)
        if gain.update(found) and best is not None:
            best = state.params
        return found

    def interrupted(kind: Any, value: Any, trace: Any) -> None:
        if store is not None and _signals.is_interruption(value):
            store.write(good[0], log.cut(*good[1:]))

    for row in log.rows:  # of an earlier part of this run
        goal.update(row)
        gain.update(row)
    # What belongs together, whenever Ctrl-C comes:
    good = Kept(state, best), len(log.rows), log.spent, log.converged
    with ExitStack() as stack:
        stack.push(interrupted)
        stop_if_asked = stack.enter_context(team.together())
        show = stack.enter_context(shown(progress, limits.steps, limits.seconds))
        if not log.rows:
            last = record()
            (stopped,) = map(bool, team.agree(callback is not None and bool(callback(last, state))))
        state, _ = advance(setup, state, jnp.asarray(0))  # compiles, outside the time that is counted
        over = log.converged or (resumed and bool(setup.converged(state)))
        reason = _reason(log, goal, gain, limits, stopped, over)
        begun = state
        good = Kept(state, best), len(log.rows), log.spent, log.converged
        while reason is None:
            done = int(state.step)
            count = int(min(every - done % every, limits.steps - (done - log.first)))
            count = min(count, _affordable(log, done, limits))
            began = time.perf_counter()
            after, converged = jax.block_until_ready(advance(setup, state, jnp.asarray(count)))
            count = int(after.step) - done
            refused = int(after.rejected) - int(state.rejected)
            unmoved = every_row and count == every and not refused and _equal(after.params, state.params)
            if refused and state is begun:
                _check(setup, begun)
            state = after
            (log.spent,) = team.agree(log.spent + time.perf_counter() - began)
            last = record()
            show(last, goal.name)
            stuck = stuck + count if refused == count else 0
            if stuck >= 2 * every or (stuck and stuck >= limits.steps):
                _check(setup, state)
                raise FloatingPointError(
                    f"the last {stuck} steps were not finite, from step {int(state.step) - stuck} on: the "
                    f"residuals are finite but their derivatives or the steps are not. Look for a square "
                    f"root or a norm at zero, or raise the damping."
                )
            (stopped,) = map(bool, team.agree(callback is not None and bool(callback(last, state))))
            reason = _reason(log, goal, gain, limits, stopped, bool(converged) or bool(unmoved))
            good = Kept(state, best), len(log.rows), log.spent, reason == "converged"
            log.converged = reason == "converged"
            if store is not None and (store.due or reason):
                store.write(good[0], log)
            stop_if_asked()
    code = jnp.asarray(REASONS.index(reason))
    setup, state, best = local((setup, state, best), setup.mesh)
    if best is not None and gain.row is not None and gain.row is not log.rows[-1]:
        end = {**gain.row, "step": log.rows[-1]["step"], "seconds": log.spent}
        log = replace(log, rows=[*log.rows, end])  # the records end with what is returned
    params = state.params if best is None else best
    return Result(setup.problem.complete(params), log.arrays(), code, state.rejected, state)


_equal = eqx.filter_jit(eqx.tree_equal)


class _Goal:
    """The best value so far of the first of some metrics that there is, and when it was reached."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.name, self.value, self.best, self.step = "", np.nan, np.inf, 0.0
        self.row: dict[str, float] | None = None  # that of the best value

    def update(self, row: dict[str, float]) -> bool:
        """Takes note of a record; returns whether it is the best so far."""
        self.name = next((name for name in self.names if name in row), "")
        self.value = row.get(self.name, np.nan)
        better = self.value < self.best
        if better:
            self.best, self.step, self.row = self.value, row["step"], row
        return better


def _reason(
    log: Log, goal: _Goal, gain: _Goal, limits: _Limits, stopped: bool, converged: bool
) -> Reason | None:
    step = log.rows[-1]["step"]
    if stopped:
        return "callback"
    if goal.value <= limits.tol:
        return "tol"
    if converged:
        return "converged"
    if step - log.first >= limits.steps:
        return "steps"
    if log.spent >= limits.seconds:
        return "seconds"
    if step - gain.step >= limits.patience:
        return "patience"
    return None


def _affordable(log: Log, done: int, limits: _Limits) -> float:
    """How many steps the seconds that are left will last for, at the least one; one to find out."""
    if limits.seconds == np.inf:
        return np.inf
    taken = done - log.first
    return max(1, int((limits.seconds - log.spent) * taken / max(log.spent, TICK))) if taken else 1


def _limits(steps: int | None, seconds: float | None, tol: float | None, patience: int | None) -> _Limits:
    if steps is None and seconds is None:
        steps = DEFAULT_STEPS
    if seconds is not None and not float(seconds) > 0:
        raise ValueError(f"`seconds` must be above 0, got {seconds!r}.")
    return _Limits(
        steps=np.inf if steps is None else positive_int("steps", steps),
        seconds=np.inf if seconds is None else float(seconds),
        tol=-np.inf if tol is None else float(real_scalar("tol", tol, low=0)),
        patience=np.inf if patience is None else positive_int("patience", patience),
    )


def _default_sampler(problem: AbstractProblem, params: Params, batch_size: int | None) -> AbstractSampler:
    rows = problem.num_rows
    if batch_size is None:
        chosen = problem.default_sampler(params)
        if chosen is not None:
            return chosen
    if rows is None:
        raise ValueError(
            "`sampler` is missing: this problem has no rows to draw from, so say what a batch is."
        )
    if batch_size is not None:
        return Uniform(
            rows, positive_int("batch_size", batch_size, most=rows, most_name="the number of rows")
        )
    batch = jax.ShapeDtypeStruct((1,), jnp.result_type(int))
    outputs = jax.eval_shape(lambda p, b: problem.linearise(p, b).residual, params, batch).size
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    if rows * outputs * size <= ALL_ROWS_NUMBERS:
        return AllRows(rows)
    return Uniform(rows, int(np.clip(ALL_ROWS_NUMBERS // (outputs * size), 1, min(rows, BATCH_ROWS))))


def _check(setup: Setup, state: TrainState) -> None:
    """Ask the problem, where it can tell, to name what is not finite on the next batch."""
    if type(setup.problem).check is not AbstractProblem.check:
        setup, state = local((setup._replace(mesh=None), state), setup.mesh)
        batch, _ = eqx.filter_jit(Setup.draw)(setup, state)
        for part in batch if isinstance(batch, Pair) else (batch,):
            setup.problem.check(state.params, part)


def with_options_of(loop: Callable) -> Callable[[Callable], Callable]:
    """Returns a decorator that shows the keyword arguments of `loop` in the signature of a function that
    hands its `options` on.

    ```python
    @sg.training.with_options_of(sg.fit)
    def fit_twice(problem, key, **options):
        first = sg.fit(problem, key, **options)
        return sg.fit(problem, key, state=first.state, **options)

    help(fit_twice)                                    # names steps, seconds, tol, …
    ```
    """

    def decorate(fn: Callable) -> Callable:
        mine = inspect.signature(fn)
        own = [p for p in mine.parameters.values() if p.kind is not p.VAR_KEYWORD]
        passed = [p for p in inspect.signature(loop).parameters.values() if p.kind is p.KEYWORD_ONLY]
        passed = [p for p in passed if p.name not in mine.parameters]
        fn.__signature__ = mine.replace(parameters=[*own, *passed])  # pyright: ignore[reportFunctionMemberAccess]
        return fn

    return decorate


@with_options_of(fit)
def least_squares(
    residual: Callable, params: Params, data: Any, key: PRNGKeyArray | None = None, **options: Any
) -> Result:
    """Fits parameters to data in one call: `sg.fit(sg.LeastSquares(residual, data, params), key, **options)`.

    **Arguments:**

    - `residual`: `residual(params, row)` for one row of the data; a real number or an array of them.
    - `params`: where to start, any pytree.
    - `data`: any pytree of arrays that share their first axis, the rows.
    - `key`: the randomness of batches, `jax.random.key(0)` by default; all rows at once need none.
    - `options`: those of `sg.fit`.

    **Returns:** a `sg.Result`, as `sg.fit` does.

    ```python
    x = jnp.linspace(0, 1, 6)
    result = sg.least_squares(lambda p, row: p[0] * jnp.exp(p[1] * row[0]) - row[1],
                              jnp.array([1.0, 0.0]), (x, 2 * jnp.exp(-3 * x)), steps=60)
    result.params                                                              # close to [2, -3]
    ```
    """
    return fit(LeastSquares(residual, data, params), jax.random.key(0) if key is None else key, **options)
