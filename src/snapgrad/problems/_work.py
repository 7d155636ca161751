"""The loss along a step where rows are coupled, so that a batch has no loss of its own."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from .._contracts import AbstractJacobian, Params


class Work(eqx.Module):
    """The integral of r_S · dv_S along a step, by the trapezium rule: exact for v = Jθ and L quadratic."""

    residual: Float[Array, " k"]
    jacobian: AbstractJacobian
    residual_at: Callable[[Params], Array]

    def __call__(self, step: Params) -> Scalar:
        """−½(r_S + r_S after the step) · J_S step."""
        return -jnp.vdot(self.jacobian.mv(step), self.residual + self.residual_at(step)) / 2
