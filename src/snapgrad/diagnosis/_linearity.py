"""Whether the model is linear: over the recommended step, and all the way to the linear model's solution."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ._drawn import Drawn, Looker
from ._reduced import System
from ._rehearsal import Setting

LINEAR = {"float64": 1e-6, "float32": 1e-2}
"""A departure below this is rounding."""
NEARLY = 0.1
"""Up to this departure on the whole way, the theory of linear problems is a guide to the end of training."""
BEARABLE = 0.5
"""Up to this departure a step does about what it should; beyond, η is halved."""
HALVINGS = 8
REACH = 1e-3
"""The way leads to the solution with this damping, relative to the mean squared row."""


class Departure(NamedTuple):
    """What a move from the current parameters does, against what the linear model says of it.

    - `residual`: ‖r(θ') − r − ∂r/∂θ(θ' − θ)‖ / ‖∂r/∂θ(θ' − θ)‖ on the pool.
    - `kernel`: ‖K(θ') − K(θ)‖/‖K(θ)‖, Frobenius.
    """

    residual: float
    kernel: float


class Linearity(NamedTuple):
    """How far the model is from linear.

    - `way`: over the whole way to the solution of the linear model; `linear`: whether that is rounding alone,
      `nearly`: whether it is small enough for the theory to hold to the end.
    - `step`: over one step of the recommended size; `raised`, `halved`: how often λ had to be raised tenfold
      and η be halved before the model followed it.
    """

    way: Departure
    step: Departure
    raised: int
    halved: int
    linear: bool
    nearly: bool


def whole_way(drawn: Drawn, looker: Looker, system: System) -> Linearity:
    """Go to the solution of the linear model on the pool, slightly damped, and look there."""
    w, U = system.values, system.rows / np.sqrt(system.values)
    damping = REACH * float(np.trace(drawn.kernel)) / len(drawn.kernel)
    departure = _departure(drawn, looker, U @ (system.error * np.sqrt(w) / (w + damping)))
    linear = departure.residual <= LINEAR.get(drawn.dtype, 1e-2)
    return Linearity(departure, departure, 0, 0, linear, departure.residual <= NEARLY)


def one_step(
    known: Linearity, drawn: Drawn, looker: Looker, system: System, points: int, setting: Setting, seed: int
) -> tuple[Linearity, Setting]:
    """Take one step of SNG on a batch of the pool; raise λ, then lower η, until the model follows it."""
    if known.linear:
        return known, setting
    S = system.batch(np.random.default_rng([seed, 1]), points)
    K, r = drawn.kernel, drawn.residual
    mean_square = float(np.trace(K)) / len(K)
    raised = halved = 0
    while True:
        u = np.zeros(len(r))
        u[S] = np.linalg.solve(K[np.ix_(S, S)] + setting.damping * np.eye(len(S)), r[S])
        departure = _departure(drawn, looker, setting.step_size * u)
        if departure.residual <= BEARABLE or halved == HALVINGS:
            return known._replace(step=departure, raised=raised, halved=halved), setting
        if setting.damping < mean_square:
            setting, raised = setting._replace(damping=10 * setting.damping), raised + 1
        else:
            setting, halved = setting._replace(step_size=setting.step_size / 2), halved + 1


def _departure(drawn: Drawn, looker: Looker, cotangent: Float[np.ndarray, " p"]) -> Departure:
    there, predicted, kernel = looker.after(cotangent)
    moved = float(np.linalg.norm(predicted - drawn.residual))
    residual = float(np.linalg.norm(there - predicted)) / moved if moved else 0.0
    change = float(np.linalg.norm(kernel - drawn.kernel) / np.linalg.norm(drawn.kernel))
    return Departure(*(x if np.isfinite(x) else np.inf for x in (residual, change)))
