"""`sg.run`: many steps in one compiled loop, of which a sweep is the `vmap`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from .._checks import Given, positive_int, trainable
from .._contracts import REASONS, AbstractMethod, AbstractProblem, AbstractSampler, Params, Result, State
from .._threads import warn_of_few_threads
from ..operators import rows_mesh
from ._devices import Team, gathered, local, placed, within
from ._step import Setup, TrainState, as_transformation


def run(
    problem: AbstractProblem,
    key: PRNGKeyArray,
    *,
    method: AbstractMethod,
    sampler: AbstractSampler,
    optimizer: Given[float | Array | optax.Schedule | optax.GradientTransformation, ""] = 1.0,
    steps: int,
    params: Params = None,
    state: TrainState | None = None,
    record_every: int = 1,
    mesh: Given[Mesh | None, ""] = None,
) -> Result:
    """Trains for `steps` steps in one compiled loop, without looking up; `sg.fit` is the loop that does.

    A step that is not finite leaves parameters, method, optimizer and sampler as they were, and is counted.
    The randomness of step t depends on `key` and t alone. Everything is a pytree, so a sweep over arrays
    of hyperparameters and seeds is one `vmap`.

    **Arguments:**

    - `problem`, `key`: what to minimise, and the randomness of initial parameters and batches.
    - `method`, `sampler`: how, and on which rows.
    - `optimizer`: η, a schedule of it, or any optax transformation from direction to update. Methods that
      choose their own step, such as `sg.Auto`, want the default of 1.
    - `steps`: how many.
    - `params`: where to start; default `problem.init`.
    - `state`: in its place, the `state` of an earlier result, to go on exactly as if never stopped.
    - `record_every`: steps between two records of the metrics.
    - `mesh`: devices to spread the rows of each step over, as in `sg.fit`.

    **Returns:** a `sg.Result`. `ValueError` if sampler and problem do not have the same number of rows.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    sampler = sg.sampling.Uniform(6, sample_size=3)

    def error(damping, key):
        result = sg.run(problem, key, method=sg.SNG(damping), sampler=sampler, steps=50, record_every=50)
        return result.history["relative_error"][-1]

    keys = jax.random.split(jax.random.key(1), 3)
    errors = jax.vmap(jax.vmap(error, (None, 0)), (0, None))(jnp.logspace(-4, 0, 5), keys)  # [5, 3]
    ```
    """
    positive_int("steps", steps)
    positive_int("record_every", record_every)
    setup, state = prepare(problem, key, method, sampler, as_transformation(optimizer), params, state, mesh)
    with within(setup.mesh):
        end, history = local(_scan(setup, state, steps, min(record_every, steps)), setup.mesh)
    code = jnp.asarray(REASONS.index("steps"))
    return Result(problem.complete(end.params), history, code, end.rejected, end)


def prepare(
    problem: AbstractProblem,
    key: PRNGKeyArray,
    method: AbstractMethod,
    sampler: AbstractSampler,
    optimizer: optax.GradientTransformation,
    params: Params,
    state: TrainState | None,
    mesh: Given[Mesh | None, ""] = None,
) -> tuple[Setup, TrainState]:
    """Returns what stays the same during training, and the state to start from; `sg.training.advance` takes
    both.

    **Arguments:**

    - `problem`, `key`, `method`, `sampler`: as for `sg.run`.
    - `optimizer`: an optax transformation; `sg.training.as_transformation` makes one of a learning rate.
    - `params`: where to start, or None for what the problem suggests.
    - `state`: in its place, the `sg.training.TrainState` of an earlier run.
    - `mesh`: devices to spread the rows over, as in `sg.fit`.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    rate, sampler = sg.training.as_transformation(0.1), sg.sampling.AllRows(6)
    setup, state = sg.training.prepare(problem, jax.random.key(1), sg.SNG(1e-3), sampler, rate, None, None)
    ```
    """
    mesh = None if mesh is None else rows_mesh(mesh)
    Team(mesh)  # refuses a mesh that this process cannot train on
    warn_of_few_threads()
    if problem.num_rows is not None and sampler.num_rows not in (None, problem.num_rows):
        raise ValueError(
            f"`sampler` draws from {sampler.num_rows} rows, but `problem` has {problem.num_rows}: "
            f"they must be equal."
        )
    if state is not None and params is not None:
        raise ValueError("give `params` or `state`, not both: a state has its own parameters.")
    params = None if params is None else trainable("params", params)
    key_init, key_loop, key_sampler = _keys(key)
    setup = Setup(problem, method, sampler, optimizer, key_loop)
    state = _begin(setup, params, key_init, sampler.init(key_sampler)) if state is None else state
    return placed(setup, mesh)._replace(mesh=mesh), placed(state, mesh)


# One program for all of it: eager operations are compiled one by one.
@jax.jit
def _keys(key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
    key_init, key_loop = jax.random.split(key)
    return key_init, key_loop, jax.random.fold_in(key_init, 1)


@eqx.filter_jit
def _begin(setup: Setup, params: Params, key: PRNGKeyArray, sampler: State) -> TrainState:
    return setup.begin(setup.problem.init(key) if params is None else params, sampler)


@eqx.filter_jit
def _scan(
    setup: Setup, state: TrainState, steps: int, record_every: int
) -> tuple[TrainState, dict[str, Array]]:
    def step(state: TrainState, _: None) -> tuple[TrainState, None]:
        return setup.step(state), None

    def record(state: TrainState) -> dict[str, Array]:
        return {"step": state.step, **setup.problem.metrics(state.params)}

    def chunk(state: TrainState, _: None, length: int = record_every) -> tuple[TrainState, dict[str, Array]]:
        state, _ = jax.lax.scan(step, state, length=length)
        return state, record(state)

    first = record(state)
    state, history = jax.lax.scan(chunk, state, length=steps // record_every)
    parts: list[Any] = [jax.tree.map(lambda x: x[None], first), history]
    if steps % record_every:
        state, last = chunk(state, None, steps % record_every)
        parts.append(jax.tree.map(lambda x: x[None], last))
    return gathered((state, jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)), setup.mesh)


@eqx.filter_jit
def advance(setup: Setup, state: TrainState, count: Int[Array, ""]) -> tuple[TrainState, Bool[Array, ""]]:
    """Takes `count` steps, fewer if the method converges on the way; returns the state and
    whether it does.

    One compilation serves every count. What an earlier run has found of convergence does not count.

    **Arguments:**

    - `setup`, `state`: what `sg.training.prepare` returned, or the state of the call before.
    - `count`: how many steps at the most, an array of shape `()`.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    rate, sampler = sg.training.as_transformation(0.1), sg.sampling.AllRows(6)
    setup, state = sg.training.prepare(problem, jax.random.key(1), sg.SNG(1e-3), sampler, rate, None, None)
    state, converged = sg.training.advance(setup, state, jnp.asarray(5))
    state.params, state.rejected
    ```
    """

    def unfinished(carry: tuple[TrainState, Bool[Array, ""]]) -> Bool[Array, ""]:
        now, converged = carry
        return (now.step < state.step + count) & ~converged

    def step(carry: tuple[TrainState, Bool[Array, ""]]) -> tuple[TrainState, Bool[Array, ""]]:
        before, _ = carry
        now = setup.step(before)
        return now, setup.converged(now) & (now.rejected == before.rejected)

    return gathered(jax.lax.while_loop(unfinished, step, (state, jnp.zeros((), bool))), setup.mesh)


@eqx.filter_jit
def measure(setup: Setup, state: TrainState) -> dict[str, Array]:
    """What there is to record of a state: the problem's metrics, and what method and sampler report."""
    metrics = setup.problem.metrics(state.params) | setup.sampler.report(state.sampler)
    found = {"rejected": state.rejected, **metrics, **setup.method.report(state.method)}
    return gathered(found, setup.mesh)
