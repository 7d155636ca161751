"""The best λ, η and μ for one sample size, from rehearsals: a coarse race, finer ones, and their spread."""

import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ..theory import Interval
from ._reduced import System
from ._rehearsal import Race, Setting, Stage, expected_steps, fitted_rate

SEEDS = 4
"""Races that confirm a setting, on batches of their own."""
MARGIN = 0.1
"""A rate is never stated more narrowly than this, on either side: a run differs from the next by as much."""
ERRORS = 3.0
"""Otherwise by so many standard deviations between races."""
CLEARANCE = 0.08
"""With noise, settings must get this far below the target: errors fluctuate, and may touch it by chance."""


class Expected(NamedTuple):
    """What to expect of one method at one sample size with the best settings that were found.

    - `steps`: to the target, infinite where nothing leads there; `reached`: whether the rehearsals got there,
      or were extended at their last pace.
    - `rate`: −d log(error²)/dt by least squares over the first `over` steps, as an interval.
    - `lowest`: the error, relative to the start, at which the rehearsals ended.
    """

    setting: Setting
    steps: float
    reached: bool
    rate: Interval
    over: int
    lowest: float


def choose(
    system: System,
    points: int,
    dampings: Sequence[float],
    *,
    target: float,
    most: int,
    seconds: float,
    seed: int,
    most_j: int = 8,
) -> dict[str, Expected]:
    """The best setting of each method, `"SNG"` and `"SPRING"`, found in about so many seconds.

    Momentum is at most 1 − 2^−`most_j`.
    """
    stage = Stage(system, points, seed)
    target = (1 - CLEARANCE) * target if system.noisy else target
    began = time.thread_time()
    etas, js = _coarse(system)
    grid = [(lam, i, j) for lam, i, j in itertools.product(dampings, etas, js) if j <= most_j]
    race = _race(stage, system, grid, target, most, began + seconds / 3)
    steps, out = expected_steps(race, target, system.noisy), {}
    for part, name in enumerate(("SPRING", "SNG")):
        mine = [g for g, point in enumerate(grid) if (point[2] > 0) == (name == "SPRING")]
        best = grid[min(mine, key=lambda g: _order(race, steps, g))]
        deadline = began + seconds * (0.67 if part == 0 else 1.0)
        out[name] = _confirm(stage, system, _around(best, system, most_j), target, most, deadline)
    return out


def _coarse(system: System) -> tuple[list[float], list[int]]:
    """Exponents: η = 2^i/‖H‖ and μ = 1 − 2^−j; with least squares no η of 2 or more converges."""
    least_squares = system.action is system.rows
    return [-6.0, -4.0, -2.0, 0.0] if least_squares else [-6.0, -4.0, -2.0, 0.0, 2.0, 4.0], [0, 1, 3, 5, 7]


def _around(best: tuple[float, float, int], system: System, most_j: int) -> list[tuple[float, float, int]]:
    lam, i, j = best
    top = 0.5 if system.action is system.rows else np.inf
    steps = [i + d for d in (-1.0, -0.5, 0.0, 0.5, 1.0) if i + d <= top]
    momenta = [0] if j == 0 else [b for b in (j - 1, j, j + 1) if 0 < b <= most_j]
    return [(lam, a, b) for a in steps for b in momenta]


def _setting(point: tuple[float, float, int], system: System) -> Setting:
    lam, i, j = point
    return Setting(lam, 2.0**i / system.curvature[1], 1 - 2.0**-j)


def _race(
    stage: Stage,
    system: System,
    grid: Sequence[tuple[float, float, int]],
    target: float,
    most: int,
    end: float,
) -> Race:
    settings = [_setting(point, system) for point in grid]
    return stage.race(settings, target=target, most=most, deadline=end)


def _order(race: Race, steps: Float[np.ndarray, " G"], g: int) -> tuple[float, float]:
    """Fewest steps first; of those that never arrive the lowest error."""
    return float(steps[g]), _end(race, g)


def _end(race: Race, g: int) -> float:
    """Where a setting ended: the median of its last tenth, infinite if it was lost on the way."""
    error = race.error[:, g]
    if np.isnan(error[-1]) and not np.isfinite(race.steps[g]):
        return np.inf
    error = error[np.isfinite(error)]
    return float(np.median(error[-max(1, len(error) // 10) :]))


def _confirm(
    stage: Stage,
    system: System,
    grid: Sequence[tuple[float, float, int]],
    target: float,
    most: int,
    deadline: float,
) -> Expected:
    """The setting with the least bad of several races, and the spread of its rate over them."""
    left = deadline - time.thread_time()
    races = []
    for index in range(SEEDS):
        end = deadline - left * (SEEDS - 1 - index) / SEEDS
        races.append(_race(stage, system, grid, target, most, end))
        if index == 0:
            length = len(races[0].error)  # the others need not be longer than what decides
            most = min(most, 2 * length)
    all_steps = np.array([expected_steps(race, target, system.noisy) for race in races])
    ends = np.array([_end(race, g) for race in races for g in range(len(grid))]).reshape(SEEDS, -1)
    worst = all_steps.max(axis=0)
    g = min(range(len(grid)), key=lambda g: (worst[g], ends[:, g].max()))
    rates = np.array([fitted_rate(race.error[:, g]) for race in races])
    middle, spread = float(rates.mean()), float(rates.std(ddof=1))
    width = max(MARGIN * abs(middle), ERRORS * spread)
    return Expected(
        setting=_setting(grid[g], system),
        steps=float(np.mean(all_steps[:, g])),
        reached=bool(np.isfinite([race.steps[g] for race in races]).all()),
        rate=Interval(middle - width, middle, middle + width),
        over=round(float(np.mean([np.isfinite(race.error[:, g]).sum() - 1 for race in races]))),
        lowest=float(np.median(ends[:, g])),
    )
