"""Any method as an optax transformation."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from .._checks import same_tree
from .._contracts import AbstractMethod, Params, State, guard


class MethodState(NamedTuple):
    """The method's own state and how many non-finite steps it has refused."""

    method: State
    rejected: Int[Array, ""]


def as_optax(
    method: AbstractMethod, learning_rate: optax.ScalarOrSchedule | None = None
) -> optax.GradientTransformationExtraArgs:
    """The method as an `optax.GradientTransformationExtraArgs`.

    `update` needs the keyword `linearisation`, from which it makes the whole update; the gradients
    passed to it are ignored, so it comes first in a chain. Clipping, schedules and weight decay come
    after it, from optax. A non-finite direction becomes a zero update and is counted in `rejected`.

    **Arguments:**

    - `method`: such as `sg.Spring(damping=1e-3, momentum=0.9)`.
    - `learning_rate`: η or an optax schedule; None leaves out the factor −η.

    ```python
    tx = optax.chain(sg.as_optax(method, 0.1), optax.clip_by_global_norm(1.0))
    state = tx.init(params)
    updates, state = tx.update(None, state, params, linearisation=lin)
    params = optax.apply_updates(params, updates)
    ```
    """

    def init(params: Params) -> MethodState:
        return MethodState(method.init(params), jnp.zeros((), int))

    def update(
        updates: Any, state: Any, params: Params = None, *, linearisation: Any = None, **extra: Any
    ) -> tuple[Params, MethodState]:
        del updates, extra
        if linearisation is None:
            raise ValueError(
                "`linearisation` is missing: call update(grads, state, params, linearisation=lin)."
            )
        direction, inner = method.propose(linearisation, state.method)
        zero = jax.tree.map(jnp.zeros_like, direction)
        (direction, inner), ok = guard((direction, inner), (zero, state.method))
        if params is not None:
            same_tree("linearisation", direction, params, "`params`")
        return direction, MethodState(inner, state.rejected + jnp.where(ok, 0, 1))

    transform = optax.GradientTransformationExtraArgs(init, update)
    if learning_rate is None:
        return transform
    return optax.chain(transform, optax.scale_by_learning_rate(learning_rate))
