"""How long a real step takes: the problem's own step, compiled and timed."""

import time

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from .._contracts import AbstractProblem, AbstractSampler, Params
from ..methods import Spring
from ..training import advance, as_transformation, prepare

SHORTEST = 0.02
"""A measurement takes at least so many seconds, by taking more steps."""
MOST_STEPS = 2**12
REPEATS = 3
"""Of which the shortest counts: other programs only ever make it longer."""


def step_seconds(
    problem: AbstractProblem, key: PRNGKeyArray, params: Params, sampler: AbstractSampler, damping: float
) -> float:
    """Seconds of one step of SPRING in a compiled loop. SNG takes as long, but for one product J φ."""
    dtype = jax.tree.leaves(params)[0].dtype
    # No step is taken: at η = 0 the model stays where it is, however often it is timed.
    method, still = Spring(jnp.asarray(damping, dtype), jnp.asarray(0.5, dtype)), as_transformation(0.0)
    setup, state = prepare(problem, key, method, sampler, still, params, None)

    def timed(count: int, repeats: int = REPEATS) -> float:
        taken = []
        for _ in range(repeats):
            began = time.perf_counter()
            jax.block_until_ready(advance(setup, state, jnp.asarray(count)))
            taken.append(time.perf_counter() - began)
        return min(taken)

    timed(0, 1)
    count = 1
    while (taken := timed(count)) < SHORTEST and count < MOST_STEPS:
        count *= 4
    return taken / count
