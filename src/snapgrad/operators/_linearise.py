"""Nonlinear least squares in one line."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float

from .._contracts import Batch, Linearisation, Params
from ._jacobian import jacobian
from ._structured import StructuredJacobian


def linearise(residual_fn: Callable, params: Params, batch: Batch, **options: Any) -> Linearisation:
    """The least-squares problem min ½‖r(θ)‖² seen from the current parameters: r_S, J_S and a trial step.

    **Arguments:**

    - `residual_fn`: `residual_fn(params, x)` for one point; a real number, or an array of them, each of which
      becomes a row.
    - `params`: any pytree; leaves that are not floating-point arrays, such as activation functions, are held
      fixed.
    - `batch`: a pytree of arrays that share their first axis, the points.
    - `options`: those of `sg.jacobian`.

    **Returns:** a `sg.Linearisation`, which any method takes, self-tuning ones too.

    ```python
    x = jnp.linspace(0, 1, 20)
    params = {"a": jnp.ones(()), "b": jnp.zeros(())}
    lin = sg.linearise(lambda p, xy: p["a"] * xy[0] + p["b"] - xy[1], params, (x, 3 * x - 1))
    step, state = sg.SNG(damping=1e-6).direction(lin, ())
    ```
    """
    jac = jacobian(residual_fn, params, batch, **options)
    return Linearisation(jac.values(), jac, jax.tree_util.Partial(_after, jac), params=jac.params)


def _after(jac: StructuredJacobian, step: Params) -> Float[Array, " k"]:
    """The residual at params − step, on the same points."""
    moved = jax.tree.map(lambda p, s: p - s.astype(p.dtype), jac.params, step)
    return eqx.tree_at(lambda j: j.params, jac, moved).values()
