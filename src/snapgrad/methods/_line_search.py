"""The best multiple of another method's direction."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from .._contracts import AbstractMethod, Linearisation, Params, State
from ._trial import real_dtype, residual_at

STEP_SIZES = 2.0 ** -np.arange(21)
"""What a line search chooses from, besides zero: from a whole step down to a millionth of it."""


def best_step(lin: Linearisation, direction: Params, method: str) -> tuple[Params, Float[Array, ""]]:
    """The multiple of a direction that lowers the batch's loss most (zero if none does), and its factor."""
    after = residual_at(lin, method)
    sizes = jnp.asarray([*STEP_SIZES, 0.0], lin.residual.dtype)

    def loss(size: Float[Array, ""]) -> Float[Array, ""]:
        residual = after(jax.tree.map(lambda d: size.astype(d.dtype) * d, direction))
        total = jnp.sum(residual**2)
        return jnp.where(jnp.isfinite(total), total, jnp.inf)

    chosen = sizes[jnp.argmin(jax.lax.map(loss, sizes))]
    return jax.tree.map(lambda d: chosen.astype(d.dtype) * d, direction), chosen


class LineSearchState(eqx.Module):
    """The inner method's state and the last step size."""

    inner: State
    step_size: Float[Array, ""]


class LineSearch(AbstractMethod):
    """The step along another method's direction that lowers the batch's loss most.

    It tries the step sizes 1, ½, ¼, … 2⁻²⁰ and zero, one residual each, and returns the whole step: use it
    with a unit learning rate. It needs `residual_at` in the linearisation.

    **Arguments:**

    - `inner`: the method whose direction is scaled, such as `sg.SNG(1e-8)`.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    method, sampler = sg.methods.LineSearch(sg.SNG(damping=1e-8)), sg.sampling.AllRows(6)
    result = sg.run(problem, jax.random.key(1), method=method, sampler=sampler, steps=20)
    ```
    """

    inner: AbstractMethod

    def init(self, params: Params) -> LineSearchState:
        """Returns the state of the inner method before its first step."""
        return LineSearchState(self.inner.init(params), jnp.ones((), real_dtype(params)))

    def propose(self, lin: Linearisation, state: LineSearchState) -> tuple[Params, LineSearchState]:
        """Returns the direction of the inner method, scaled to the step that lowers the loss of the batch
        most.
        """
        direction, inner = self.inner.propose(lin, state.inner)
        step, size = best_step(lin, direction, "sg.methods.LineSearch")
        return step, LineSearchState(inner, size.astype(state.step_size.dtype))

    def report(self, state: LineSearchState) -> dict[str, Scalar]:
        """Returns what the inner method reports, and the last `step_size`."""
        return {**self.inner.report(state.inner), "step_size": state.step_size}
