"""One guarded step: parameters, method, optimizer and sampler move together or not at all."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from .._checks import same_tree
from .._contracts import (
    AbstractMethod,
    AbstractProblem,
    AbstractSampler,
    Batch,
    Pair,
    Params,
    State,
    guard,
    tree_where,
)
from ..sampling import AllRows


class TrainState(eqx.Module):
    """Everything that one step hands to the next.

    - `params`: the trained parameters.
    - `method`, `optimizer`, `sampler`: what each of them remembers.
    - `step`: how many steps were tried; the randomness of a step depends on it and on the key alone.
    - `rejected`: how many of them were not finite and were left out.
    """

    params: Params
    method: State
    optimizer: State
    sampler: State
    step: Int[Array, ""]
    rejected: Int[Array, ""]


class Move(NamedTuple):
    """Where a step leads: the next parameters and what was added to them, the next states."""

    params: Params
    updates: Params
    method: State
    optimizer: State


def move(
    method: AbstractMethod,
    optimizer: optax.GradientTransformation,
    lin: Any,
    params: Params,
    method_state: State,
    optimizer_state: State,
) -> tuple[Move, Bool[Array, ""]]:
    """One step of method and optimizer, and whether it was finite; if not, everything is as it was.

    `params` may be None, as optax allows; then only what is added to them is known.
    """
    direction, proposed = method.propose(lin, method_state)
    if params is not None:
        same_tree("linearisation", direction, params, "`params`")
    updates, optimizer_next = optimizer.update(direction, optimizer_state, params)
    moved = None if params is None else optax.apply_updates(params, updates)
    nothing = jax.tree.map(jnp.zeros_like, updates)
    return guard(
        Move(moved, updates, proposed, optimizer_next),
        Move(params, nothing, method_state, optimizer_state),
    )


class Setup(NamedTuple):
    """What stays the same from step to step; `key` is the randomness of the batches."""

    problem: AbstractProblem
    method: AbstractMethod
    sampler: AbstractSampler
    optimizer: optax.GradientTransformation
    key: PRNGKeyArray

    def begin(self, params: Params, sampler: State) -> TrainState:
        """The state before the first step, from parameters and the state of the sampler."""
        return TrainState(
            params=params,
            method=self.method.init(params),
            optimizer=self.optimizer.init(params),
            sampler=sampler,
            step=jnp.zeros((), int),
            rejected=jnp.zeros((), int),
        )

    def draw(self, state: TrainState) -> tuple[Batch, State]:
        """The batch of the next step, and the sampler's state after it."""
        linearise: Callable = partial(self.problem.linearise, state.params)
        sampler = self.sampler.at(state.params)
        return sampler.draw(jax.random.fold_in(self.key, state.step), state.sampler, linearise)

    def converged(self, state: TrainState) -> Bool[Array, ""]:
        """Whether the method has converged; on a part of the rows it could not know."""
        if not isinstance(self.sampler, AllRows):
            return jnp.zeros((), bool)
        return self.method.converged(state.method)

    def step(self, state: TrainState) -> TrainState:
        """Draw a batch, linearise, step; a step that is not finite is counted and changes nothing else."""
        batch, drawn = self.draw(state)
        linearise = partial(self.problem.linearise, state.params)
        lin = Pair(*map(linearise, batch)) if isinstance(batch, Pair) else linearise(batch)
        after, ok = move(self.method, self.optimizer, lin, state.params, state.method, state.optimizer)
        return TrainState(
            params=after.params,
            method=after.method,
            optimizer=after.optimizer,
            sampler=tree_where(ok, drawn, state.sampler),
            step=state.step + 1,
            rejected=state.rejected + jnp.where(ok, 0, 1),
        )


def as_transformation(optimizer: Any) -> optax.GradientTransformation:
    """An optax transformation as it is; a number or a schedule as gradient descent with that rate."""
    if isinstance(optimizer, optax.GradientTransformation):
        return optimizer
    if optimizer is None or isinstance(optimizer, bool | str):
        raise TypeError(
            f"`optimizer` must be a learning rate, a schedule or an optax transformation such as "
            f"optax.sgd(0.1); got {optimizer!r}."
        )
    if isinstance(optimizer, int | float) or callable(optimizer):
        return _descent(optimizer)
    if jnp.shape(optimizer) != ():
        raise ValueError(
            f"`optimizer` must be one learning rate, got an array of shape {jnp.shape(optimizer)}."
        )
    return optax.sgd(optimizer)


@lru_cache(maxsize=256)
def _descent(rate: Any) -> optax.GradientTransformation:
    """Made once for each rate: a compiled loop is found again by the identity of its functions."""
    return optax.sgd(rate)
