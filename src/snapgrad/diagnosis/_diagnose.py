"""`sg.diagnose`: from a problem to a report."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from .._checks import Given, positive_int, real_scalar, trainable
from .._contracts import AbstractProblem, AbstractSampler, Params
from ..sampling import AllRows, Uniform
from ._advice import advise
from ._choose import choose
from ._clock import step_seconds
from ._constants import constants
from ._decay import decay
from ._drawn import Drawn, draw
from ._linearity import one_step, whole_way
from ._reduced import System, system
from ._report import Diagnosis, SampleSize

DAMPINGS = {"float64": (1e-10, 1e-4, 1e-2), "float32": (1e-5, 1e-3, 1e-2)}
"""λ relative to the mean squared row: the least is what Cholesky bears in this precision."""
MOST_J = 8
"""Momentum is at most 1 − 2^−8."""
NONLINEAR = (1e-3, 1e-2), 3
"""Both for a model that is not linear: less damping or more momentum send it far away."""
GOALS = {True: 1e-4, False: 1e-2}
"""The default tolerance, for errors of parameters and of the residual."""
LARGEST, SIZES = 500, 5
"""By default sample sizes have at most so many rows, and there are at most so many of them."""
LEAST_STEPS, MOST_STEPS = 200, 20_000
"""Of a rehearsal."""
SHARE = 0.5
"""The part of the time that rehearsals may take."""


def diagnose(
    problem: Given[AbstractProblem, ""],
    key: PRNGKeyArray,
    *,
    params: Params = None,
    pool: int = 1000,
    sample_sizes: Sequence[int] | None = None,
    tolerance: float | None = None,
    seconds: float = 20.0,
    show: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Looks at a pool of rows of your own model and recommends method, k, λ, η, μ, precision and sampler.

    The pool's kernel says which rows and parameters are idle and how the spectrum falls. SNG and SPRING are
    then rehearsed on the pool as a linear problem, over a grid of settings at each sample size; real steps
    are compiled and timed: the recommendation is what is expected to arrive first, in seconds. What the
    theory proves, α, β, γ and the rates that follow, stands beside it.

    **Arguments:**

    - `problem`, `key`: such as `sg.LeastSquares` or a `sg.pinn.PINN`, and the randomness.
    - `params`: where to look; default `problem.init`. A model that has trained for a while has another kernel
      than a fresh one, and is more nearly linear.
    - `pool`: how many rows to look at, at most 2000.
    - `sample_sizes`: the k to choose from; by default up to five, as large as the pool can tell. A problem
      without rows to count, such as a PINN, keeps the batches of its own sampler.
    - `tolerance`: how far the error is to fall, relative to now. By default 1e-4 where the pool determines
      all parameters and their error counts, and 1e-2 where it is the residual.
    - `seconds`: about how long it may compute, compilation and timing of the model not counted. Less time
      means shorter rehearsals and fewer intervals.
    - `show`: is called with a line of progress now and then.

    **Returns:** a `sg.Diagnosis`: `str()` of it is meant to be read. `ValueError` if an argument is out of
    range, if no row depends on any parameter, or for molecules, whose rows follow their parameters.

    ```python
    problem = sg.problems.spectrum_llq(jax.random.key(0), "power:1", 60, 10, hessian="identity")
    report = sg.diagnose(problem, jax.random.key(1), sample_sizes=[3, 6], seconds=5)
    print(report)
    result = sg.run(problem, jax.random.key(2), method=report.method(), sampler=report.sampler(),
                    optimizer=report.optimizer(), steps=20)
    ```
    """
    if not isinstance(problem, AbstractProblem):
        raise TypeError(f"`problem` must be a problem such as sg.LeastSquares, got {type(problem).__name__}.")
    positive_int("pool", pool, most=2000)
    given = None if tolerance is None else float(real_scalar("tolerance", tolerance, low=0, below=1))
    budget = float(real_scalar("seconds", seconds, low=0))
    if given == 0 or budget == 0:
        raise ValueError(f"`tolerance` and `seconds` must be above 0, got {tolerance!r} and {seconds!r}.")
    say = show or (lambda line: None)
    key_init, key_pool, key_clock, key_theory, key_seed = jax.random.split(key, 5)
    seed = int(jax.random.randint(key_seed, (), 0, 2**31 - 1))
    params = problem.init(key_init) if params is None else trainable("params", params)
    sampler = problem.default_sampler(params) if problem.num_rows is None else None
    if sampler is not None and type(sampler).at is not AbstractSampler.at:
        raise ValueError(
            "`problem` draws its rows from what its parameters say, as quantum states do; its theory is for "
            "rows that stay. Train it by sg.methods.FisherSpring(), which sets itself."
        )

    say("drawing a pool of rows")
    drawn, looker = draw(problem, key_pool, params, sampler, pool)
    lin = system(drawn, looker)
    target = GOALS[lin.full] if given is None else given
    sizes = _sizes(drawn, lin, sample_sizes)
    mean_square = float(np.trace(drawn.kernel)) / len(drawn.kernel)
    say("going the whole way")
    straight = whole_way(drawn, looker, lin)
    relative, most_j = NONLINEAR
    if straight.nearly:
        relative, most_j = DAMPINGS.get(drawn.dtype, DAMPINGS["float32"]), MOST_J
    dampings = [mean_square * x for x in relative]
    clock = {}
    for points, _ in sizes:
        say(f"k = {points}: timing a step")
        batches = make_sampler(problem, sampler, points)
        clock[points] = step_seconds(problem, key_clock, params, batches, dampings[0])
    rehearse = partial(
        _rehearse, lin, sizes, clock, dampings, seconds=SHARE * budget / 2, seed=seed, most_j=most_j, say=say
    )
    rows, goal = rehearse(target=target), target
    if not any(np.isfinite(row.of(name).steps) for row in rows for name in ("SNG", "SPRING")):
        goal = min(1.0, 1.2 * min(min(row.sng.lowest, row.spring.lowest) for row in rows))
        rows = rehearse(target=goal)
    chosen, method = _fastest(rows)
    settled = chosen.of(method).setting
    say("trying one step")
    straight, settled = one_step(straight, drawn, looker, lin, chosen.rehearsed, settled, seed)
    say("constants of the theory")
    rows = constants(lin, rows, chosen, settled.damping, key_theory, (1 - SHARE) * budget)
    chosen = next(row for row in rows if row.sample_size == chosen.sample_size)
    fall = decay(lin.values, len(drawn.kernel))
    advice, warnings = advise(drawn, lin, fall, straight, rows, chosen, method, settled, (target, goal))
    return Diagnosis(
        drawn=drawn,
        decay=fall,
        eigenvalues=lin.values,
        curvature=lin.curvature,
        inconsistency=lin.inconsistency,
        error="parameters" if lin.full else "residual",
        linearity=straight,
        sizes=tuple(rows),
        sample_size=chosen.sample_size,
        name=method,
        setting=settled,
        tolerance=target,
        goal=goal,
        advice=advice,
        warnings=warnings,
        batches=make_sampler(problem, sampler, chosen.sample_size),
    )


def _rehearse(
    lin: System,
    sizes: Sequence[tuple[int, int]],
    clock: dict[int, float],
    dampings: Sequence[float],
    *,
    target: float,
    seconds: float,
    seed: int,
    most_j: int,
    say: Callable[[str], None],
) -> list[SampleSize]:
    """Every sample size, largest first: what arrives soon there limits how long others are worth watching."""
    rows: list[SampleSize] = []
    best = np.inf
    for points, rehearsed in reversed(sizes):
        say(f"k = {points}: rehearsing")
        most = MOST_STEPS
        if np.isfinite(best):
            most = int(np.clip(1.5 * best / clock[points], LEAST_STEPS, MOST_STEPS))
        found = choose(
            lin,
            rehearsed,
            dampings,
            target=target,
            most=most,
            seconds=seconds / len(sizes),
            seed=seed,
            most_j=most_j,
        )
        best = min(best, *(x.steps * clock[points] for x in found.values()))
        rows.insert(0, SampleSize(points, rehearsed, clock[points], found["SNG"], found["SPRING"]))
    return rows


def make_sampler(problem: AbstractProblem, own: AbstractSampler | None, points: int) -> AbstractSampler:
    """The problem's own sampler where it has one, else uniform rows, or all of them."""
    if own is not None:
        return own
    assert problem.num_rows is not None
    return AllRows(problem.num_rows) if points == problem.num_rows else Uniform(problem.num_rows, points)


def _sizes(drawn: Drawn, lin: System, given: Any) -> list[tuple[int, int]]:
    """Sample sizes, in points, and how many points of the pool stand for them in a rehearsal."""
    if drawn.batch is not None:
        if given is not None:
            raise ValueError(
                f"`sample_sizes` must be None for a problem with its own batches, {drawn.batch} rows here; "
                f"got {given!r}. Change the points of the problem instead."
            )
        return [(drawn.batch, min(drawn.batch, drawn.points // 2))]
    limit = drawn.points if drawn.whole else max(1, drawn.points // 2)
    if given is not None:
        name = "the number of rows" if drawn.whole else "half of the pool"
        if not len(given):
            raise ValueError("`sample_sizes` must hold at least one sample size, got none.")
        found = sorted({positive_int("sample_sizes", k, most=limit, most_name=name) for k in given})
        return [(k, k) for k in found]
    most = max(1, min(limit, LARGEST // drawn.outputs, -(-2 * len(lin.values) // drawn.outputs)))
    series = [a * 10**b for b in range(4) for a in (1, 2, 5) if a * 10**b < most]
    return [(k, k) for k in [*series, most][-SIZES:]]


def _fastest(rows: Sequence[SampleSize]) -> tuple[SampleSize, str]:
    """What arrives first; SNG where it takes hardly longer; where nothing arrives, the lowest error."""

    def order(row: SampleSize, name: str) -> tuple[float, float]:
        found = row.of(name)
        return found.steps * row.seconds_per_step * (1.1 if name == "SPRING" else 1.0), found.lowest

    return min(((row, name) for row in rows for name in ("SNG", "SPRING")), key=lambda x: order(*x))
