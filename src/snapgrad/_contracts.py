"""The contracts between rooms: one record, `Linearisation`, and four abstract classes.

Everything turns on the natural-gradient subproblem `J θ' = J θ − η r`, sampled on a batch:

    key ─► Sampler ─► batch ─► Problem.linearise(params, batch) ─► Linearisation(residual, jacobian)
                                                                        │
      params ◄── optax (η, schedule, clipping) ◄── direction ◄── Method.direction(lin, state)
"""

import abc
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, final, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Scalar

from ._checks import Given

Params: TypeAlias = Any
"""Any pytree of floating-point arrays; tangents and directions have the same structure."""
Batch: TypeAlias = Any
"""What a sampler draws and a problem understands: row indices, points, or a `Pair` of either."""
State: TypeAlias = Any
"""What a method or sampler hands from one step to the next: a pytree, `()` where there is nothing."""


class AbstractJacobian(eqx.Module):
    """The rows J_S of a model Jacobian as an operator; `dense()` aside, J itself need not exist.

    A method asks it for nothing but products and the kernel, so any matrix that offers these will do:

    ```python
    class Repeated(sg.AbstractJacobian):                       # k times the same row
        row: jax.Array
        k: int

        @property
        def shape(self):
            return self.k, self.row.size

        def gram(self, *, block_size=None):
            return jnp.full((self.k, self.k), self.row @ self.row)

        def mv(self, tangent):
            return jnp.full(self.k, self.row @ tangent)

        def rmv(self, cotangent):
            return self.row * cotangent.sum()

        def dense(self):
            return jnp.tile(self.row, (self.k, 1))

    lin = sg.Linearisation(jnp.ones(3), Repeated(jnp.array([1.0, 2.0]), 3))
    sg.SNG(1e-3).direction(lin, ())                            # nearly row / ‖row‖²
    ```
    """

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """`(k, n)`: how many rows there are, and how many numbers the parameters hold."""

    @abc.abstractmethod
    def gram(self) -> Float[Array, "k k"]:
        """Returns the kernel J Jᵀ, one number for each two rows."""

    @abc.abstractmethod
    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """Returns the product J φ, one number per row, for a `tangent` φ shaped like the parameters."""

    @abc.abstractmethod
    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Returns the product Jᵀ u, shaped like the parameters, for a `cotangent` u of one number per row."""

    @abc.abstractmethod
    def dense(self) -> Float[Array, "k n"]:
        """Returns J as a matrix, columns in the order of `jax.flatten_util.ravel_pytree`."""


class Linearisation(eqx.Module):
    """A problem seen from the current parameters on one batch.

    **Arguments:**

    - `residual`: the function-space gradient r_S, one number per row.
    - `jacobian`: the rows J_S = ∂v_S/∂θ.
    - `residual_at`: a trial step: `residual_at(step)` is r_S on the same batch at params − step. Methods that
      choose their own step (`sg.Auto`) need it; others ignore it. A pytree such as `jax.tree_util.Partial`
      may cross a `jit`. `sg.linearise` and the problems of this library provide it.
    - `loss_at`: where the loss of the batch is not ½‖r_S‖², and so J_S need not be ∂r_S/∂θ: `loss_at(step)`
      is that loss at params − step, up to a constant.
    - `params`: where this was made, with which a method may compare its step; `sg.linearise` provides it.
    - `has_loss`: whether the batch has a loss by which a trial step may be judged. The energy of a quantum
      state has none, since its samples follow the parameters.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    lin = sg.Linearisation(residual=jnp.ones(6), jacobian=sg.DenseJacobian(J))
    ```

    `TypeError` or `ValueError` if the residual is not real or has not one entry per row of the Jacobian.
    """

    residual: Float[Array, " k"]
    jacobian: AbstractJacobian
    residual_at: Callable[[Params], Array] | None
    loss_at: Callable[[Params], Scalar] | None
    params: Params | None
    has_loss: bool = eqx.field(static=True)

    def __init__(
        self,
        residual: Given[ArrayLike, " k"],
        jacobian: AbstractJacobian,
        residual_at: Callable[[Params], Array] | None = None,
        loss_at: Callable[[Params], Scalar] | None = None,
        *,
        params: Params | None = None,
        has_loss: bool = True,
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
                f"`residual` must have one entry per row of `jacobian`, shape {jacobian.shape[:1]}; "
                f"got shape {residual.shape}."
            )
        for name, trial in (("residual_at", residual_at), ("loss_at", loss_at)):
            if trial is not None and not callable(trial):
                raise TypeError(
                    f"`{name}` must be a function of a step, or None; got {type(trial).__name__}."
                )
        self.residual = residual
        self.jacobian = jacobian
        self.residual_at = residual_at
        self.loss_at = loss_at
        self.params = params
        self.has_loss = has_loss


class Pair(NamedTuple):
    """Two batches (or two linearisations) that belong to one step; `sg.TwoBatch` takes such a pair.

    - `first`: what the gradient is made of.
    - `second`: what the preconditioner is made of.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    first, second = (sg.Linearisation(jnp.ones(3), sg.DenseJacobian(rows)) for rows in (J[:3], J[3:]))
    direction, state = sg.TwoBatch(damping=0.1).direction(sg.Pair(first, second), ())
    ```
    """

    first: Any
    second: Any


class AbstractProblem(eqx.Module):
    """Something to minimise: it knows its parameters and how to linearise itself on a batch.

    Three more things have defaults that most problems keep: which batches to draw where the user names none,
    the form in which parameters are handed back, and what to say when residuals are not finite.

    ```python
    class Root(sg.AbstractProblem):
        target: float
        num_rows: int | None = 1

        def init(self, key):
            return jnp.ones(())

        def linearise(self, params, batch):                    # batch: numbers of rows
            return sg.linearise(lambda x, row: x**2 - self.target, params, batch)

        def metrics(self, params):
            return {"error": jnp.abs(params**2 - self.target)}

    sg.fit(Root(2.0), jax.random.key(0), steps=10).params      # √2
    ```
    """

    num_rows: eqx.AbstractVar[int | None]
    """The number m of rows to sample from, or None for a continuous domain."""

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray) -> Params:
        """Returns the parameters to start from, where the user gives none."""

    @abc.abstractmethod
    def linearise(self, params: Params, batch: Batch) -> Linearisation:
        """Returns the residual r_S and the Jacobian J_S on a batch, at the parameters `params`."""

    @abc.abstractmethod
    def metrics(self, params: Params) -> dict[str, Scalar]:
        """Returns named numbers to record during training, such as the relative error."""

    def default_sampler(self, params: Params) -> "AbstractSampler | None":
        """Returns the sampler that suits the problem; None leaves it to the loop, which draws
        rows uniformly.

        Of the parameters it may use the shapes alone.
        """
        del params
        return None

    def complete(self, params: Params) -> Params:
        """Returns the trained parameters in the form in which the user gave them."""
        return params

    def check(self, params: Params, batch: Batch) -> None:
        """Raises `ValueError` that names the row or point if the residual on this batch is not finite."""
        del params, batch


class AbstractSampler(eqx.Module):
    """Draws the batch of each step, with a state of its own where one is needed (Markov chains).

    A sampler says how many rows it draws from (`num_rows`), and implements `init` and `draw`:

    ```python
    class InTurn(sg.AbstractSampler):
        num_rows: int

        def init(self, key):
            return jnp.zeros((), int)                          # the row whose turn it is

        def draw(self, key, state, linearise):
            return state[None], (state + 1) % self.num_rows    # a batch of one row, and the next state

    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    sg.run(problem, jax.random.key(1), method=sg.SNG(1e-3), sampler=InTurn(6), optimizer=0.1, steps=12)
    ```
    """

    num_rows: eqx.AbstractVar[int | None]
    """The number m of rows it draws from, or None if it draws something else."""

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray) -> State:
        """Returns the state before the first draw; `()` for a sampler without memory."""

    @abc.abstractmethod
    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Returns the batch of a step and the next state.

        Samplers that follow a changing Jacobian get it by calling `linearise(batch)`; plain ones ignore it.
        """

    def at(self, params: Params) -> "AbstractSampler":
        """Returns the sampler for these parameters, if its draws depend on them; by default itself."""
        del params
        return self

    def report(self, state: State) -> dict[str, Scalar]:
        """Returns numbers of the state to record during training, such as an acceptance rate; by default
        none.
        """
        del state
        return {}

    def unseen(self, state: State) -> Bool[Array, ""]:
        """Returns whether the rows of the last step were all new, so that training had not followed them
        yet: what a method finds `solved` there is solved. By default no.
        """
        del state
        return jnp.zeros((), bool)


class AbstractMethod(eqx.Module):
    """Turns a `Linearisation` into a direction; `params ← params − η · direction`.

    A method implements `init` and `propose`, `report` where its state holds numbers worth watching, and
    `converged` and `solved` where it can tell. A method that chooses its own step returns the whole step and
    is used with a unit learning rate.

    ```python
    class Signs(sg.AbstractMethod):
        def init(self, params):
            return ()                                          # it remembers nothing

        def propose(self, lin, state):
            return jax.tree.map(jnp.sign, lin.jacobian.rmv(lin.residual)), state

    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    sampler = sg.sampling.AllRows(6)
    sg.run(problem, jax.random.key(1), method=Signs(), sampler=sampler, optimizer=0.01, steps=20)
    ```
    """

    @abc.abstractmethod
    def init(self, params: Params) -> State:
        """Returns the state before the first step, for parameters of this shape."""

    @abc.abstractmethod
    def propose(self, lin: Any, state: State) -> tuple[Params, State]:
        """Computes the method's equation, unguarded; returns a direction and the next state."""

    def report(self, state: State) -> dict[str, Scalar]:
        """Returns numbers of the state to record during training, such as the current damping; by default
        none.
        """
        del state
        return {}

    def converged(self, state: State) -> Bool[Array, ""]:
        """Returns whether the last step found nothing more to gain on its batch; a method that cannot tell
        says no.

        Loops stop for it where every step sees all rows: on a batch it says nothing of the others.
        """
        del state
        return jnp.zeros((), bool)

    def solved(self, state: State) -> Bool[Array, ""]:
        """Returns whether the last step met a batch that was solved already, to rounding and whatever the
        damping; a method that cannot tell says no. Loops stop for it where all rows were new to the method.
        """
        del state
        return jnp.zeros((), bool)

    @final
    def direction(self, lin: Any, state: State) -> tuple[Params, State]:
        """Returns the direction and the next state; a zero direction and the old state if anything is not
        finite.
        """
        direction, proposed = self.propose(lin, state)
        zero = jax.tree.map(jnp.zeros_like, direction)
        kept, _ = guard((direction, proposed), (zero, state))
        return kept


def guard(after: PyTree, before: PyTree) -> tuple[PyTree, Bool[Array, ""]]:
    """`after` if all of it is finite, else `before`; and which. The only guard against non-finite steps."""
    ok = all_finite(after)
    return tree_where(ok, after, before), ok


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every floating-point entry of a tree is finite."""
    checks = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree) if eqx.is_inexact_array(x)]
    return jnp.stack(checks).all() if checks else jnp.asarray(True)


def tree_where(condition: Bool[Array, ""], yes: PyTree, no: PyTree) -> PyTree:
    """`yes` where the condition holds, else `no`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b) if eqx.is_array(a) else a, yes, no)


Reason: TypeAlias = Literal[
    "steps", "seconds", "tol", "converged", "patience", "callback", "least_squares", "non_finite"
]
REASONS: tuple[Reason, ...] = get_args(Reason)
"""Why training ended:

- `"steps"`, `"seconds"`: the limit that was given;
- `"tol"`: what is minimised (an error or a loss) is below the tolerance;
- `"converged"`: no step lowers the loss on all rows any more, or on new ones, to rounding;
- `"patience"`: nothing better for as many steps as were allowed;
- `"callback"`: the callback said so;
- `"least_squares"`: a linear system has no exact solution, and this is the least-squares one;
- `"non_finite"`: the iteration ran to infinity; the last finite parameters are returned.
"""


class Result(eqx.Module):
    """What every loop of this library returns: `sg.fit`, `sg.run`, `sg.pinn.solve`, `sg.kaczmarz`.

    - `params`: the final parameters, in the form in which they were given.
    - `history`: arrays of one length, one entry per record: `step`, the problem's metrics and, from loops
      that run on the host, `seconds` and what the method reports of itself.
    - `reason`: why it ended, one of the words of `REASONS`.
    - `rejected`: how many steps were not finite and were therefore left out.
    - `state`: everything that a further step needs; pass it back as `state` to go on.

    It is a pytree, so it may leave a `jit` or a `vmap`; of several runs, `reason` is an array of words.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    sampler = sg.sampling.Uniform(6, sample_size=3)
    result = sg.run(problem, jax.random.key(1), method=sg.SNG(1e-3), sampler=sampler, steps=20)
    result.params, result.history["relative_error"][-1], result.reason
    ```
    """

    params: Params
    history: dict[str, Any]
    code: Int[Array, "..."]  # index into REASONS, which a compiled loop can return
    rejected: Int[Array, "..."]
    state: State

    @property
    def reason(self) -> Any:
        """Why it ended: a word of `REASONS`, or an array of them for several runs."""
        words = np.asarray(REASONS)[np.asarray(self.code)]
        return str(words) if words.ndim == 0 else words
