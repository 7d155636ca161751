"""A natural-gradient method without settings."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Scalar

from .._checks import Given
from .._contracts import AbstractMethod, Linearisation, Params
from ..linalg import CG
from ._adaptive_spring import AdaptiveSpring, AdaptiveSpringState
from ._levenberg_marquardt import LevenbergMarquardt, LevenbergMarquardtState


class AutoState(eqx.Module):
    """The states of both methods; a step moves the one of the method that it uses."""

    many: LevenbergMarquardtState
    few: AdaptiveSpringState


class Auto(AbstractMethod):
    """Natural gradients without settings; use it with a unit learning rate, the default everywhere.

    With at least as many rows as parameters it is `sg.LevenbergMarquardt`, otherwise `sg.AdaptiveSpring`. In
    both, the step is bent along the geodesic: its second-order part, from one more residual, is what lets it
    follow a narrow curved valley. A step that would raise the batch's loss is refused and the damping raised.

    It needs `residual_at` in the linearisation, which `sg.linearise` and the problems of this library
    provide; a step costs three residuals and one factorisation.

    **Arguments:**

    - `damping`: where the damping starts, relative to the size of the matrix that it is added to.
    - `bend`: whether to add the second-order part of the step.
    - `solver`: `"auto"`, or `"cg"` (or a `sg.CG`) for batches of at most as many rows as parameters, but too
      many to factor their kernel: see `sg.AdaptiveSpring`.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    method, sampler = sg.Auto(), sg.sampling.AllRows(6)
    result = sg.run(problem, jax.random.key(1), method=method, sampler=sampler, steps=20)
    method.report(result.state.method)     # damping, gain, refused, converged, step_size, momentum
    ```
    """

    many: LevenbergMarquardt
    few: AdaptiveSpring

    def __init__(
        self,
        damping: Given[ArrayLike, ""] = 1e-2,
        bend: bool = True,
        solver: Literal["auto", "cg"] | CG = "auto",
    ):
        self.many = LevenbergMarquardt(damping, bend)
        self.few = AdaptiveSpring(damping, bend, solver)

    def init(self, params: Params) -> AutoState:
        """Returns the state before the first step, in which nothing is known of the problem."""
        return AutoState(self.many.init(params), self.few.init(params))

    def propose(self, lin: Linearisation, state: AutoState) -> tuple[Params, AutoState]:
        """Returns the whole step, to be taken with a unit learning rate; it is zero where it would raise the
        loss on the batch.
        """
        k, n = lin.jacobian.shape
        if k >= n:
            step, many = self.many.propose(lin, state.many)
            return step, AutoState(many, state.few)
        step, few = self.few.propose(lin, state.few)
        return step, AutoState(state.many, few)

    def converged(self, state: AutoState) -> Bool[Array, ""]:
        """Returns whether the last step found nothing more to gain on its rows, to rounding."""
        return self.many.converged(state.many) | self.few.converged(state.few)

    def solved(self, state: AutoState) -> Bool[Array, ""]:
        """Returns whether rounding hid all that there was to gain on the rows of the last step."""
        return self.many.solved(state.many)

    def report(self, state: AutoState) -> dict[str, Scalar]:
        """Returns `damping`, `step_size`, `momentum`, `gain`, the number of `refused` steps, `converged`."""
        few = self.few.report(state.few)
        many = {**few, "step_size": jnp.ones(()), "momentum": jnp.zeros(()), **self.many.report(state.many)}
        used = state.few.trial.step > 0
        return {name: jnp.where(used, value, many[name]) for name, value in few.items()}
