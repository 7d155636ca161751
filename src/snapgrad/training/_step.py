"""One guarded step: parameters, method, optimizer and sampler move together or not at all."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from .._checks import Given, same_tree
from .._contracts import (
    AbstractMethod,
    AbstractProblem,
    AbstractSampler,
    Batch,
    Linearisation,
    Pair,
    Params,
    State,
    guard,
    tree_where,
)
from ..operators import AbstractRows
from ..sampling import AllRows
from ._devices import gathered, spread


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
    """Takes one step of method and optimizer; returns it, and whether it was finite.

    If not, everything is as it was.

    **Arguments:**

    - `method`, `optimizer`: the method, and an optax transformation of its direction.
    - `lin`: the `sg.Linearisation` of the batch at the parameters, or the pair that the method takes.
    - `params`: the parameters, or None, as optax allows; then only what is added to them is known.
    - `method_state`, `optimizer_state`: what each of them returned before, or `init(params)` at first.

    ```python
    params, rate, method = jnp.zeros(2), optax.sgd(0.1), sg.SNG(1e-3)
    lin = sg.linearise(lambda p, x: jnp.tanh(p @ x) - 0.5, params, jnp.eye(2))
    after, finite = sg.training.move(method, rate, lin, params, method.init(params), rate.init(params))
    after.params, finite
    ```
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
    """What stays the same from step to step; `key` is the randomness of the batches.

    With a `mesh` the rows of a batch and what the sampler remembers of them are spread over its devices, and
    everything else is on each of them. Random numbers do not depend on how they are spread.
    """

    problem: AbstractProblem
    method: AbstractMethod
    sampler: AbstractSampler
    optimizer: optax.GradientTransformation
    key: PRNGKeyArray
    mesh: Mesh | None = None

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
        key = jax.random.fold_in(self.key, state.step)
        return spread(sampler.draw(key, spread(state.sampler, self.mesh), linearise), self.mesh)

    def linearise(self, params: Params, batch: Batch) -> Linearisation:
        """The problem on a batch, its rows where the batch is."""
        lin = self.problem.linearise(params, batch)
        if self.mesh is None or not isinstance(lin.jacobian, AbstractRows):
            return lin
        return eqx.tree_at(lambda lin: lin.jacobian, lin, lin.jacobian.shard(self.mesh))

    def converged(self, state: TrainState) -> Bool[Array, ""]:
        """Whether the method has converged; on a part of the rows it can know that only if it had not seen
        them before.
        """
        if isinstance(self.sampler, AllRows):
            return self.method.converged(state.method)
        return self.method.solved(state.method) & self.sampler.unseen(state.sampler)

    def step(self, state: TrainState) -> TrainState:
        """Draw a batch, linearise, step; a step that is not finite is counted and changes nothing else."""
        batch, drawn = self.draw(state)
        linearise = partial(self.linearise, state.params)
        lin = Pair(*map(linearise, batch)) if isinstance(batch, Pair) else linearise(batch)
        after, ok = move(self.method, self.optimizer, lin, state.params, state.method, state.optimizer)
        whole = gathered(after, self.mesh)
        return TrainState(
            params=whole.params,
            method=whole.method,
            optimizer=whole.optimizer,
            sampler=tree_where(ok, drawn, state.sampler),
            step=state.step + 1,
            rejected=state.rejected + jnp.where(ok, 0, 1),
        )


def as_transformation(
    optimizer: Given[float | Array | optax.Schedule | optax.GradientTransformation, ""],
) -> optax.GradientTransformation:
    """Returns an optax transformation as it is; a number or a schedule as gradient descent with that rate.

    `optimizer` is one of these; anything else is a `TypeError`.

    ```python
    sg.training.as_transformation(0.1), sg.training.as_transformation(optax.adam(1e-3))
    ```
    """
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
