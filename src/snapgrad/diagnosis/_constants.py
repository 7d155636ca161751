"""α, β and γ of the pool, with intervals, for as many sample sizes as there is time."""

import math
import time
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from .. import theory
from ._reduced import System
from ._report import SampleSize

DRAWS = 400
"""Batches behind an interval."""
MOST_WORK = 2e10
"""Multiplications for one sample size; beyond, there are fewer draws, and below the least number none."""
LEAST_DRAWS = 40
RANGES = {"alpha": (0.0, 1.0), "beta": (1.0, math.inf), "gamma": (0.0, math.inf)}
"""What is known of each constant beforehand, and an interval from few draws may not know."""
NEGLIGIBLE = 1e-4
"""Directions with eigenvalues below this part of λ are out of any batch's reach, and left out."""


def constants(
    system: System,
    rows: Sequence[SampleSize],
    chosen: SampleSize,
    damping: float,
    key: PRNGKeyArray,
    seconds: float,
) -> list[SampleSize]:
    """The rows with their constants under uniform sampling, the chosen one first, then its neighbours."""
    began, out = time.monotonic(), {row.sample_size: row for row in rows}
    # The theory sees rows in an orthonormal basis of the parameters that matter.
    R = system.rows[:, system.values > NEGLIGIBLE * damping]
    longest = 0.0
    for row in sorted(rows, key=lambda row: abs(np.log(row.sample_size / chosen.sample_size))):
        k = row.rehearsed * system.outputs
        work = 4.0 * len(R) * R.shape[1] * k + 120.0 * k**2 * max(k, R.shape[1])  # γ, and factorisations
        draws = int(min(DRAWS, MOST_WORK / work))
        left = seconds - (time.monotonic() - began)
        if draws < LEAST_DRAWS or left < longest:
            continue
        start = time.monotonic()
        keys = jax.random.split(jax.random.fold_in(key, k), 3)
        found = {
            name: constant(R, sample_size=k, damping=damping, sampling="uniform", key=key, num_samples=draws)
            for name, constant, key in zip(
                ("alpha", "beta", "gamma"), (theory.alpha, theory.beta, theory.gamma), keys, strict=True
            )
        }
        found = {name: _within(value, *RANGES[name]) for name, value in found.items()}
        out[row.sample_size] = row._replace(**found, proved=_proved(system, **found))
        longest = max(longest, time.monotonic() - start)
    return [out[row.sample_size] for row in rows]


def _proved(
    system: System, alpha: theory.Interval, beta: theory.Interval, gamma: theory.Interval
) -> dict[str, float | None]:
    """What theorems guarantee: α and √(α/β) for consistent least squares, else α/γ · λ_min(H)/‖H‖."""
    if system.action is system.rows:
        return {"SNG": alpha.low, "SPRING": math.sqrt(max(alpha.low, 0.0) / beta.high)}
    low, high = system.curvature
    return {"SNG": alpha.low / gamma.high * low / high, "SPRING": None}


def _within(found: theory.Interval, low: float, high: float) -> theory.Interval:
    return theory.Interval(*(min(max(x, low), high) for x in found))
