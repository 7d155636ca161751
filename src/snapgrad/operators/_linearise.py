"""Nonlinear least squares in one line."""

from collections.abc import Callable
from typing import Any

from .._contracts import Batch, Linearisation, Params
from ._jacobian import jacobian


def linearise(residual_fn: Callable, params: Params, batch: Batch, **options: Any) -> Linearisation:
    """r_S and J_S of the least-squares problem min ½ ‖r(θ)‖²: `residual_fn(params, x)` at every point.

    `options` are those of `sg.jacobian`.

    ```python
    lin = sg.linearise(lambda p, xy: model(p, xy[0]) - xy[1], params, (x, y))
    direction, state = sg.SNG(damping=1e-6).direction(lin, state)
    ```
    """
    jac = jacobian(residual_fn, params, batch, **options)
    return Linearisation(residual=jac.values(), jacobian=jac)
