"""The loop: draw, linearise, step, record."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PRNGKeyArray

from .._checks import float_params, positive_int
from .._contracts import (
    AbstractMethod,
    AbstractProblem,
    AbstractSampler,
    Pair,
    Params,
    State,
    all_finite,
    tree_where,
)


class TrainState(eqx.Module):
    """Everything that one step hands to the next."""

    params: Params
    method: State
    optimizer: State
    sampler: State
    step: Int[Array, ""]
    rejected: Int[Array, ""]


class RunResult(eqx.Module):
    """What `sg.run` returns.

    - `params`: the final parameters.
    - `history`: `step` and each of the problem's metrics, recorded at step 0 and every `record_every`.
    - `rejected`: how many steps were not finite and therefore left out.
    - `state`: the whole final state; pass it to `sg.run` as `state` to go on.
    """

    params: Params
    history: dict[str, Array]
    rejected: Int[Array, ""]
    state: TrainState


def run(
    problem: AbstractProblem,
    method: AbstractMethod,
    sampler: AbstractSampler,
    optimizer: optax.GradientTransformation | float,
    steps: int,
    key: PRNGKeyArray,
    *,
    params: Params = None,
    state: TrainState | None = None,
    record_every: int = 1,
) -> RunResult:
    """Trains for `steps` steps in one compiled loop.

    A step that is not finite is left out of parameters, φ and optimizer state, and counted. The
    randomness of step t depends on `key` and t alone. Everything is a pytree, so a sweep over arrays
    of hyperparameters and seeds is one `vmap`:

    ```python
    def one(damping, key):
        return sg.run(problem, sg.SNG(damping), sampler, optax.sgd(1.0), 1000, key, record_every=1000)

    results = jax.vmap(jax.vmap(one, (None, 0)), (0, None))(dampings, keys)
    ```

    **Arguments:**

    - `problem`, `method`, `sampler`: what to minimise, how, and on which rows.
    - `optimizer`: an optax transformation from direction to update, such as `optax.sgd(0.1)`, which is
      what a number stands for.
    - `steps`, `key`: how long, and the randomness of initial parameters and batches.
    - `params`: where to start; default `problem.init`.
    - `state`: in its place, the `state` of an earlier result, to go on exactly as if never stopped.
    - `record_every`: steps between two records of the metrics.
    """
    if (problem.num_rows is not None) and sampler.num_rows not in (None, problem.num_rows):
        raise ValueError(
            f"`sampler` draws from {sampler.num_rows} rows, but `problem` has {problem.num_rows}: "
            f"they must be equal."
        )
    positive_int("steps", steps)
    positive_int("record_every", record_every)
    if not isinstance(optimizer, optax.GradientTransformation):
        optimizer = optax.sgd(optimizer)
    key_init, key_loop = jax.random.split(key)
    if state is None:
        params = problem.init(key_init) if params is None else float_params("params", params)
        state = start(params, method, sampler, optimizer, jax.random.fold_in(key_init, 1))
    elif params is not None:
        raise ValueError("give `params` or `state`, not both: a state has its own parameters.")
    return _loop(problem, method, sampler, optimizer, state, key_loop, steps, min(record_every, steps))


def start(
    params: Params,
    method: AbstractMethod,
    sampler: AbstractSampler,
    optimizer: optax.GradientTransformation,
    key: PRNGKeyArray,
) -> TrainState:
    """The state before the first step; `key` is that of the sampler."""
    return TrainState(
        params=params,
        method=method.init(params),
        optimizer=optimizer.init(params),
        sampler=sampler.init(key),
        step=jnp.zeros((), int),
        rejected=jnp.zeros((), int),
    )


@eqx.filter_jit
def _loop(problem, method, sampler, optimizer, state, key, steps: int, record_every: int) -> RunResult:
    def step(state: TrainState, _: None) -> tuple[TrainState, None]:
        linearise = partial(problem.linearise, state.params)
        key_step = jax.random.fold_in(key, state.step)
        batch, sampler_state = sampler.draw(key_step, state.sampler, linearise)
        lin = Pair(*map(linearise, batch)) if isinstance(batch, Pair) else linearise(batch)
        direction, method_state = method.propose(lin, state.method)
        updates, optimizer_state = optimizer.update(direction, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        proposed = (params, method_state, optimizer_state)
        ok = all_finite(proposed)
        before = (state.params, state.method, state.optimizer)
        params, method_state, optimizer_state = tree_where(ok, proposed, before)
        rejected = state.rejected + jnp.where(ok, 0, 1)
        return TrainState(
            params, method_state, optimizer_state, sampler_state, state.step + 1, rejected
        ), None

    def record(state: TrainState) -> dict[str, Array]:
        return {"step": state.step, **problem.metrics(state.params)}

    def chunk(state: TrainState, _: None, length: int = record_every) -> tuple[TrainState, dict[str, Array]]:
        state, _ = jax.lax.scan(step, state, length=length)
        return state, record(state)

    first = record(state)
    state, history = jax.lax.scan(chunk, state, length=steps // record_every)
    parts: list[Any] = [jax.tree.map(lambda x: x[None], first), history]
    if steps % record_every:
        state, last = chunk(state, None, steps % record_every)
        parts.append(jax.tree.map(lambda x: x[None], last))
    history = jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)
    return RunResult(state.params, history, state.rejected, state)
