"""Empirical convergence rates: slopes of log squared errors."""

from typing import Any

import numpy as np

FLOOR = 1e-12
"""Relative errors below this are rounding, not convergence, and are left out of every fit."""


def fitted_rate(steps: np.ndarray, error: np.ndarray, *, skip: float = 0.0) -> np.ndarray:
    """−d log(error²)/dt by least squares, over the last axis; −∞ where an error is not finite, NaN without three points.

    `skip` is the share of the steps at the beginning that is left out, to see past transients.
    """
    flat = error.reshape(-1, error.shape[-1])
    rates = np.array([_one(steps, row, skip) for row in flat])
    return rates.reshape(error.shape[:-1])


def _one(steps: np.ndarray, error: np.ndarray, skip: float) -> float:
    if not np.isfinite(error).all():
        return -np.inf
    low = np.flatnonzero(error < FLOOR)
    end = int(low[0]) if len(low) else len(error)
    start = int(skip * end)
    if end - start < 3:
        return np.nan
    return -float(np.polyfit(steps[start:end], 2 * np.log(error[start:end]), 1)[0])


def loglog_slope(x: Any, y: Any) -> float:
    """The exponent p of a fit y ∝ x^p."""
    return float(np.polyfit(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)), 1)[0])
