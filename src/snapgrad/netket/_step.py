"""What a step of the driver compiles: a method's proposal, the guarded move, the choice of samples."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Num, PRNGKeyArray

from .._contracts import AbstractMethod, Linearisation, Params, State
from ..operators import jacobian
from ..training import move
from ._local import Configurations, LocalEnergies
from ._log_psi import LogPsi, Settings, log_psi_jacobian, rows
from ._subselect import Selection, points_kernel, select


def method_at(method: Any, step: int) -> AbstractMethod:
    """The method of a step, where one method or a function of the step count was given."""
    if not isinstance(method, AbstractMethod | type) and callable(method):
        method = method(step)
    if not isinstance(method, AbstractMethod):
        raise TypeError(
            "`method` must be a method such as sg.Spring(1e-3, 0.9), or a function from the step count "
            f"to one; got {method!r}."
        )
    return method


def first_state(method: AbstractMethod, params: Params) -> tuple[State, bool]:
    """The method's state before the first step, and whether it looks at residuals of other parameters.

    `ValueError` if the driver cannot run the method.
    """
    asked = []

    def attempt(params: Params) -> Any:
        # Any model will do, and nothing is computed: only what the method asks of a linearisation matters.
        model = lambda p, x: x * sum(jnp.sum(leaf).real for leaf in jax.tree.leaves(p))  # noqa: E731
        points = jnp.zeros(2, jnp.finfo(jnp.result_type(*jax.tree.leaves(params))).dtype)

        def after(step: Params) -> Array:
            del step
            asked.append(True)
            return points

        lin = Linearisation(points, jacobian(model, params, points), after, has_loss=False)
        return method.propose(lin, method.init(params))

    try:
        jax.eval_shape(attempt, params)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`method` must work on one linearisation without a loss to judge its steps by, which a quantum "
            f"state does not give: leave it out, or use sg.Spring or sg.SNG. {type(method).__name__} says: "
            f"{error}"
        ) from error
    return method.init(params), bool(asked)


def shown(method: AbstractMethod) -> str:
    """A method with the values of its hyperparameters."""
    plain = jax.tree.map(lambda x: x.item() if eqx.is_array(x) and x.ndim == 0 else x, method)
    return eqx.tree_pformat(plain, width=1000)


@partial(jax.jit, static_argnames=("apply", "settings"))
def propose(
    params: Params,
    model_state: Any,
    found: Configurations,
    method: AbstractMethod,
    method_state: State,
    lift: Any,
    energies: LocalEnergies | None = None,
    *,
    apply: Callable,
    settings: Settings,
) -> tuple[Params, State]:
    """The method's direction and next state; `energies` for methods that look at other parameters."""
    log_psi = LogPsi(apply, dict(model_state), settings.mode == "real")
    return method.propose(rows(log_psi, params, found, settings, lift, energies), method_state)


class Decided(AbstractMethod):
    """A direction in hand: NetKet computes it in one call, shows it to callbacks, applies it in another."""

    found: Params
    state: State

    def init(self, params: Params) -> State:
        """The state to come."""
        del params
        return self.state

    def propose(self, lin: Any, state: State) -> tuple[Params, State]:
        """What was decided."""
        del lin, state
        return self.found, self.state


@partial(jax.jit, static_argnames="optimizer")
def take(
    decided: Decided,
    params: Params,
    method_state: State,
    optimizer_state: State,
    optimizer: optax.GradientTransformation,
) -> tuple[Any, Bool[Array, ""]]:
    """The one guarded step of the library."""
    return move(decided, optimizer, None, params, method_state, optimizer_state)


@partial(jax.jit, static_argnames=("apply", "settings", "size", "relative"))
def subselect(
    key: PRNGKeyArray,
    params: Params,
    model_state: Any,
    samples: Num[Array, "c sites"],
    damping: Any,
    *,
    apply: Callable,
    settings: Settings,
    size: int,
    relative: bool,
) -> Selection:
    """The part of a pool to keep; `relative` damping is a multiple of the mean of the kernel's diagonal."""
    log_psi = LogPsi(apply, dict(model_state), settings.mode == "real")
    jac = log_psi_jacobian(log_psi, params, samples, settings)
    K = jac.scale(1 / jnp.sqrt(samples.shape[0])).centre().gram()
    damping = damping * jnp.mean(jnp.diagonal(K)) if relative else damping
    return select(key, points_kernel(K, jac.outputs), size, damping)
