"""optax's L-BFGS with its own line search on the batch."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Scalar

from .._contracts import AbstractMethod, Linearisation, Params
from ._trial import real_dtype, residual_at


class LBFGSState(eqx.Module):
    """optax's state, how far the parameters have moved, and the last step size."""

    history: Any
    moved: Params
    step_size: Float[Array, ""]


class LBFGS(AbstractMethod):
    """`optax.lbfgs`, for a batch that stays the same: its two-loop direction and its zoom line search.

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
        """Returns the state before the first step, which knows of no step yet."""
        zero = jax.tree.map(jnp.zeros_like, params)
        return LBFGSState(self._transform().init(zero), zero, jnp.ones((), real_dtype(params)))

    def propose(self, lin: Linearisation, state: LBFGSState) -> tuple[Params, LBFGSState]:
        """Returns the step that optax takes.

        Positions are counted from the start, since only differences matter.
        """
        after = residual_at(lin, "sg.methods.LBFGS")

        def loss(moved: Params) -> Scalar:
            step = jax.tree.map(lambda here, there: here - there, state.moved, moved)
            return jnp.sum(after(step) ** 2) / 2

        gradient, now = lin.jacobian.rmv(lin.residual), jnp.sum(lin.residual**2) / 2
        change, history = self._transform().update(
            gradient, state.history, state.moved, value=now, grad=gradient, value_fn=loss
        )
        moved = jax.tree.map(jnp.add, state.moved, change)
        size = optax.tree.get(history, "learning_rate").astype(state.step_size.dtype)
        return jax.tree.map(jnp.negative, change), LBFGSState(history, moved, size)

    def report(self, state: LBFGSState) -> dict[str, Scalar]:
        """Returns the last `step_size`."""
        return {"step_size": state.step_size}

    def _transform(self) -> optax.GradientTransformationExtraArgs:
        return optax.lbfgs(memory_size=self.memory)
