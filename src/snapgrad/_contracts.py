"""The contracts between rooms: one record, `Linearisation`, and four abstract classes.

Everything turns on the natural-gradient subproblem `J θ' = J θ − η r`, sampled on a batch:

    key ─► Sampler ─► batch ─► Problem.linearise(params, batch) ─► Linearisation(residual, jacobian)
                                                                        │
      params ◄── optax (η, schedule, clipping) ◄── direction ◄── Method.direction(lin, state)
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree, Scalar

Params: TypeAlias = Any
"""Any pytree of floating-point arrays; tangents and directions have the same structure."""
Batch: TypeAlias = Any
"""What a sampler draws and a problem understands: row indices, points, or a `Pair` of either."""
State: TypeAlias = Any
"""What a method or sampler hands from one step to the next: a pytree, `()` where there is nothing."""


class AbstractJacobian(eqx.Module):
    """The rows J_S of a model Jacobian as an operator; `dense()` aside, J itself need not exist."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """`(k, n)`: rows and the total number of parameters."""

    @abc.abstractmethod
    def gram(self) -> Float[Array, "k k"]:
        """The kernel J Jᵀ."""

    @abc.abstractmethod
    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """J φ, for φ shaped like the parameters."""

    @abc.abstractmethod
    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Jᵀ u, shaped like the parameters."""

    @abc.abstractmethod
    def dense(self) -> Float[Array, "k n"]:
        """J as a matrix, columns in the order of `jax.flatten_util.ravel_pytree`."""


class Linearisation(eqx.Module):
    """A problem seen from the current parameters on one batch.

    **Arguments:**

    - `residual`: the function-space gradient r_S, one number a row.
    - `jacobian`: the rows J_S = ∂v_S/∂θ.
    - `residual_at`: r_S on the same batch after a step, `residual_at(step)` at params − step, for methods
      that choose their own step (`sg.Auto`); others ignore it. A pytree such as `jax.tree_util.Partial`
      may cross a `jit`.

    ```python
    lin = sg.Linearisation(residual=r, jacobian=sg.DenseJacobian(J))
    ```
    """

    residual: Float[Array, " k"]
    jacobian: AbstractJacobian
    residual_at: Callable[[Params], Array] | None

    def __init__(
        self,
        residual: Any,
        jacobian: AbstractJacobian,
        residual_at: Callable[[Params], Array] | None = None,
    ):
        if not isinstance(jacobian, AbstractJacobian):
            raise TypeError(
                f"`jacobian` must be an AbstractJacobian such as sg.DenseJacobian(J), "
                f"got {type(jacobian).__name__}."
            )
        residual = jnp.asarray(residual)
        if not jnp.issubdtype(residual.dtype, jnp.floating):
            raise TypeError(f"`residual` must hold real floating-point numbers, got dtype {residual.dtype}.")
        if residual.shape != jacobian.shape[:1]:
            raise ValueError(
                f"`residual` must have one entry a row of `jacobian`, shape {jacobian.shape[:1]}; "
                f"got shape {residual.shape}."
            )
        if residual_at is not None and not callable(residual_at):
            raise TypeError(
                f"`residual_at` must be a function of a step, or None; got {type(residual_at).__name__}."
            )
        self.residual = residual
        self.jacobian = jacobian
        self.residual_at = residual_at


class Pair(NamedTuple):
    """Two batches (or two linearisations) that belong to one step; `sg.TwoBatch` takes such a pair."""

    first: Any
    second: Any


class AbstractProblem(eqx.Module):
    """Something to minimise: it knows its parameters and how to linearise itself on a batch."""

    num_rows: eqx.AbstractVar[int | None]
    """The number m of rows to sample from, or None for a continuous domain."""

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray) -> Params:
        """Initial parameters."""

    @abc.abstractmethod
    def linearise(self, params: Params, batch: Batch) -> Linearisation:
        """r_S and J_S at `params`."""

    @abc.abstractmethod
    def metrics(self, params: Params) -> dict[str, Scalar]:
        """Named numbers to record during training, such as the relative error."""


class AbstractSampler(eqx.Module):
    """Draws the batch of each step, with a state of its own where one is needed (Markov chains)."""

    num_rows: eqx.AbstractVar[int | None]
    """The number m of rows it draws from, or None if it draws something else."""

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray) -> State:
        """The state before the first draw; `()` for a sampler without memory."""

    @abc.abstractmethod
    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """A batch for the current parameters, which `linearise` sees and plain samplers ignore."""


class AbstractMethod(eqx.Module):
    """Turns a `Linearisation` into a direction; `params ← params − η · direction`.

    A method implements `init` and `propose`. Callers use `direction`, which adds the guard that
    keeps a non-finite step out of both the parameters and the state.
    """

    @abc.abstractmethod
    def init(self, params: Params) -> State:
        """The state before the first step."""

    @abc.abstractmethod
    def propose(self, lin: Any, state: State) -> tuple[Params, State]:
        """The method's equation, unguarded."""

    @final
    def direction(self, lin: Any, state: State) -> tuple[Params, State]:
        """The direction and the next state; a zero direction and the same state if not finite."""
        direction, state, _ = self.attempt(lin, state)
        return direction, state

    @final
    def attempt(self, lin: Any, state: State) -> tuple[Params, State, Bool[Array, ""]]:
        """As `direction`, and whether the step was finite."""
        direction, proposed = self.propose(lin, state)
        ok = all_finite((direction, proposed))
        zero = jax.tree.map(jnp.zeros_like, direction)
        return tree_where(ok, direction, zero), tree_where(ok, proposed, state), ok


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every floating-point entry of a tree is finite."""
    checks = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree) if eqx.is_inexact_array(x)]
    return jnp.stack(checks).all() if checks else jnp.asarray(True)


def tree_where(condition: Bool[Array, ""], yes: PyTree, no: PyTree) -> PyTree:
    """`yes` where the condition holds, else `no`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b) if eqx.is_array(a) else a, yes, no)
