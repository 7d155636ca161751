"""Settings side by side on one problem until the first arrives: a grid costs the steps of its best."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from .._contracts import AbstractProblem
from ..methods import Spring
from ..sampling import Uniform
from ..training import prepare, run


class Lanes(NamedTuple):
    """Settings that run side by side, at one λ or at one each."""

    damping: Float[Array, "..."]
    step_size: Float[Array, " G"]
    momentum: Float[Array, " G"]


@eqx.filter_jit
def _begin(lanes: Lanes, chosen: AbstractProblem, keys: Any, k: int) -> Any:
    sampler = Uniform(chosen.num_rows or 0, k)

    def one(lam: Any, eta: Any, mu: Any, key: PRNGKeyArray) -> Any:
        return prepare(chosen, key, Spring(lam, mu), sampler, optax.sgd(eta), None, None)[1]

    return _over(one, lanes)(*lanes, keys)


@eqx.filter_jit
def _go_on(lanes: Lanes, chosen: AbstractProblem, keys: Any, k: int, steps: int, state: Any) -> Any:
    sampler = Uniform(chosen.num_rows or 0, k)

    def one(lam: Any, eta: Any, mu: Any, key: PRNGKeyArray, state: Any) -> Any:
        result = run(
            chosen,
            key,
            method=Spring(lam, mu),
            sampler=sampler,
            optimizer=optax.sgd(eta),
            steps=steps,
            state=state,
        )
        return result.history["relative_error"], result.state

    return _over(one, lanes, True)(*lanes, keys, state)


def _over(one: Any, lanes: Lanes, stateful: bool = False) -> Any:
    """Runs inside, settings outside: what does not depend on the setting is shared."""
    last = (0,) if stateful else ()
    inner = jax.vmap(one, (None, None, None, 0, *last))
    return jax.vmap(inner, (0 if lanes.damping.ndim else None, 0, 0, None, *last))


def arrivals(
    chosen: AbstractProblem, keys: Any, k: int, lanes: Lanes, target: float, most: int, chunk: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean steps to the target for each setting, infinite if not all runs arrive in time; and the errors.

    It ends with the first setting that arrives, or after `most` steps.
    """
    state, errors = _begin(lanes, chosen, keys, k), []
    arrived = np.zeros((len(lanes.step_size), len(keys)), bool)
    for _ in range(0, most, chunk):
        error, state = _go_on(lanes, chosen, keys, k, chunk, state)
        errors.append(np.asarray(error)[..., 1:] if errors else np.asarray(error))
        arrived |= (errors[-1] <= target).any(axis=-1)
        if arrived.all(axis=1).any():
            break
    whole = np.concatenate(errors, axis=-1)
    steps = np.where(arrived, np.argmax(whole <= target, axis=-1), np.inf).mean(axis=1)
    return np.where(steps <= most, steps, np.inf), whole
