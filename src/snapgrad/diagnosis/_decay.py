"""The spectrum of a kernel in a few numbers and one word."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

FLAT = 10.0
"""A spectrum is flat if nine tenths of its eigenvalues are within this factor of the largest."""
DAMPINGS = (1.0, 1e-2, 1e-4, 1e-6)
"""Damping, relative to the mean squared row, at which the effective dimension is stated."""


class Decay(NamedTuple):
    """How the eigenvalues κ_i of the pool's kernel fall.

    - `kind`: `"flat"`, `"power law"` (κ_i ∝ i^−exponent) or `"exponential"` (κ_i ∝ e^{−exponent·i}).
    - `misfit`: root mean square of the fit, in factors: 1.3 means that it is off by 30 %.
    - `condition`: the largest over the smallest eigenvalue that is not zero; `rank`: how many are not.
    - `effective_dimension`: `{λ: Σ κ/(κ + λ)}`, λ relative to the mean squared row.
    """

    kind: str
    exponent: float
    misfit: float
    condition: float
    rank: int
    effective_dimension: dict[float, float]

    def __str__(self) -> str:
        law = {"flat": "flat", "power law": f"a power law, κ_i ∝ i^−{self.exponent:.2g}"}.get(
            self.kind, f"exponential, κ_i ∝ exp(−{self.exponent:.2g} i)"
        )
        return f"{law}; {self.rank} eigenvalues are not zero, over a range of {self.condition:.2g}"


def decay(values: Float[np.ndarray, " e"], rows: int) -> Decay:
    """The decay of eigenvalues, largest first, of a kernel of so many rows."""
    scale = float(values.sum()) / rows
    count = len(values)
    dimension = {lam: float(np.sum(values / (values + lam * scale))) for lam in DAMPINGS}
    condition = float(values[0] / values[-1])
    most = max(1, int(np.ceil(0.9 * count)))
    if count < 4 or values[0] <= FLAT * values[most - 1]:
        return Decay("flat", 0.0, float(np.sqrt(condition)), condition, count, dimension)
    # Points evenly spaced in log i, so that neither end outweighs the other.
    i = np.unique(np.geomspace(1, count, 40).round().astype(int))
    y = np.log(values[i - 1])
    fits = {}
    for kind, x in (("power law", np.log(i)), ("exponential", i.astype(float))):
        slope, start = np.polyfit(x, y, 1)
        fits[kind] = float(np.exp(np.std(y - slope * x - start))), -float(slope)
    kind = min(fits, key=lambda name: fits[name][0])
    return Decay(kind, fits[kind][1], fits[kind][0], condition, count, dimension)
