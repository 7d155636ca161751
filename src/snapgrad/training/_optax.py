"""Any method as an optax transformation."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from .._checks import Given, trainable
from .._contracts import AbstractMethod, Params, State
from ..operators import restrict
from ._step import as_transformation, move


class MethodState(NamedTuple):
    """What `sg.as_optax` remembers: the method's state, the optimizer's, and the steps refused so far."""

    method: State
    optimizer: State
    rejected: Int[Array, ""]


class _Update(Protocol):
    """As optax has it, but gradients may be None: the linearisation takes their place."""

    def __call__(
        self, updates: Any, state: Any, params: Params = None, **extra: Any
    ) -> tuple[Params, MethodState]: ...


class _Transformation(optax.GradientTransformationExtraArgs):
    """What type checkers know of it: which state it has, and that gradients may be None."""

    init: Callable[[Params], MethodState]
    update: _Update


def as_optax(
    method: AbstractMethod,
    optimizer: Given[float | Array | optax.Schedule | optax.GradientTransformation, ""] = 1.0,
) -> _Transformation:
    """Returns the method as an `optax.GradientTransformationExtraArgs`, for a training loop of your own.

    `update` needs the keyword `linearisation`, from which the whole update is made; the gradients passed to
    it are ignored. A step that is not finite becomes a zero update that leaves method and optimizer as they
    were, and is counted in `rejected`. So everything that shapes the step belongs into `optimizer`: what
    comes after it in an `optax.chain` would move even when a step is refused.

    **Arguments:**

    - `method`: such as `sg.Spring(damping=1e-3, momentum=0.9)`.
    - `optimizer`: a learning rate η, a schedule of it, or any optax transformation of the direction (which
      points uphill, like a gradient) into an update, such as `optax.adam(1e-3)`. The default of 1 is right
      for methods that choose their own step, such as `sg.Auto`. Weight decay goes before the rate:
      `optax.chain(optax.add_decayed_weights(1e-2), optax.sgd(0.1))`.

    Under `optax.masked` the frozen parameters are held fixed and do not enter the kernel. Under
    `optax.MultiSteps` give it `optax.tree.zeros_like(params)` for gradients: every k-th call takes a step, on
    the linearisation of that call. To add up rows of several batches, stack them into one linearisation.

    ```python
    params = {"a": jnp.ones(())}
    lin = sg.linearise(lambda p, x: p["a"] * x - jnp.sin(x), params, jnp.linspace(0, 1, 6))
    tx = sg.as_optax(sg.Spring(damping=1e-3), optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)))
    state = tx.init(params)
    updates, state = tx.update(None, state, params, linearisation=lin)
    params = optax.apply_updates(params, updates)
    ```
    """
    if not isinstance(method, AbstractMethod):
        raise TypeError(f"`method` must be a method such as sg.Spring(1e-3), got {type(method).__name__}.")
    transform = as_transformation(optimizer)

    def init(params: Params) -> MethodState:
        params = trainable("params", params)
        return MethodState(method.init(params), transform.init(params), jnp.zeros((), int))

    def update(
        updates: Any, state: Any, params: Params = None, *, linearisation: Any = None, **extra: Any
    ) -> tuple[Params, MethodState]:
        del updates, extra
        if linearisation is None:
            raise ValueError(
                "`linearisation` is missing: call update(grads, state, params, linearisation=lin)."
            )
        if params is not None:
            params = trainable("params", params)
            linearisation = restrict(linearisation, params)
        after, ok = move(method, transform, linearisation, params, state.method, state.optimizer)
        return after.updates, MethodState(after.method, after.optimizer, state.rejected + jnp.where(ok, 0, 1))

    return _Transformation(init, update)
