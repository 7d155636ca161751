"""Empirical convergence rates: slopes of log squared errors."""

from typing import Any

import numpy as np

FLOOR = 1e-12
"""Relative errors below this are rounding, not convergence, and are left out of every fit."""


def fitted_rate(steps: np.ndarray, error: np.ndarray) -> np.ndarray:
    """−d log(error²)/dt by least squares over the last axis.

    −∞ where an error is not finite, NaN where fewer than three are above the floor.
    """
    flat = error.reshape(-1, error.shape[-1])
    rates = np.array([_one(steps, row) for row in flat])
    return rates.reshape(error.shape[:-1])


def _one(steps: np.ndarray, error: np.ndarray) -> float:
    if not np.isfinite(error).all():
        return -np.inf
    low = np.flatnonzero(error < FLOOR)
    end = int(low[0]) if len(low) else len(error)
    return -float(np.polyfit(steps[:end], 2 * np.log(error[:end]), 1)[0]) if end >= 3 else np.nan


def loglog_slope(x: Any, y: Any) -> float:
    """The exponent p of a fit y ∝ x^p."""
    return float(np.polyfit(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)), 1)[0])
