"""L-BFGS with a line search on the batch."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Scalar

from .._contracts import AbstractMethod, Linearisation, Params
from ._line_search import best_step
from ._trial import real_dtype


class LBFGSState(eqx.Module):
    """optax's history, how far the parameters have moved, and the last step size."""

    history: Any
    moved: Params
    step_size: Float[Array, ""]


class LBFGS(AbstractMethod):
    """L-BFGS directions from optax with a line search on the batch, for a batch that stays the same.

    It returns the whole step: use it with a unit learning rate. It needs `residual_at` in the linearisation.

    **Arguments:**

    - `memory`: how many steps back the approximation of the Hessian looks.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    method, sampler = sg.methods.LBFGS(memory=5), sg.sampling.AllRows(6)
    result = sg.run(problem, jax.random.key(1), method=method, sampler=sampler, steps=20)
    ```
    """

    memory: int = eqx.field(static=True, default=50)

    def init(self, params: Params) -> LBFGSState:
        """No history."""
        zero = jax.tree.map(jnp.zeros_like, params)
        return LBFGSState(self._transform().init(zero), zero, jnp.ones((), real_dtype(params)))

    def propose(self, lin: Linearisation, state: LBFGSState) -> tuple[Params, LBFGSState]:
        """The two-loop direction, scaled."""
        gradient = lin.jacobian.rmv(lin.residual)
        # Only differences of positions matter to it, so they may be counted from the start.
        direction, history = self._transform().update(gradient, state.history, state.moved)
        step, size = best_step(lin, direction, "sg.methods.LBFGS")
        moved = jax.tree.map(lambda m, s: m - s, state.moved, step)
        return step, LBFGSState(history, moved, size.astype(state.step_size.dtype))

    def report(self, state: LBFGSState) -> dict[str, Scalar]:
        """The last `step_size`."""
        return {"step_size": state.step_size}

    def _transform(self) -> optax.GradientTransformation:
        return optax.scale_by_lbfgs(memory_size=self.memory)
