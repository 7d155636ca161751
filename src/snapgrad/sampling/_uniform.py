"""Uniform rows, all rows, and two independent batches."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from .._checks import positive_int
from .._contracts import AbstractSampler, Batch, Linearisation, Pair, State
from ..linalg import random_subset


class Uniform(AbstractSampler):
    """k of m rows, uniformly, without replacement (the default) or with.

    A draw without replacement costs O(k²), whatever m is.

    **Arguments:**

    - `num_rows`: m, the number of rows to draw from.
    - `sample_size`: k, the number of rows in a sample, at most m unless rows may come twice.
    - `replace`: whether a row may come twice in one batch.

    ```python
    sampler = sg.sampling.Uniform(6, sample_size=3)
    rows = sampler.sample(jax.random.key(0))                   # [3]; sampler.sample(key, (N,)) is [N, 3]
    ```
    """

    num_rows: int = eqx.field(static=True)
    sample_size: int = eqx.field(static=True)
    replace: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        positive_int("num_rows", self.num_rows)
        if self.replace:
            positive_int("sample_size", self.sample_size)
        else:
            positive_int("sample_size", self.sample_size, most=self.num_rows, most_name="`num_rows`")

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Int[Array, "*shape k"]:
        """Draws row numbers without a problem or a loop: one set of `sample_size` rows, or an array of sets
        of the given `shape`.
        """
        if self.replace:
            return jax.random.randint(key, (*shape, self.sample_size), 0, self.num_rows)
        if not shape:
            return random_subset(key, self.num_rows, self.sample_size)
        return jax.vmap(lambda key: self.sample(key, shape[1:]))(jax.random.split(key, shape[0]))

    def init(self, key: PRNGKeyArray) -> State:
        """Returns the empty state `()`: draws do not depend on each other."""
        del key
        return ()

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Returns fresh rows, each set as likely as any other."""
        del linearise
        return self.sample(key), state


class AllRows(AbstractSampler):
    """Every row, every step: `sg.SNG` on it is deterministic natural gradient descent.

    **Arguments:**

    - `num_rows`: m, the number of rows of the problem.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    sampler = sg.sampling.AllRows(problem.num_rows)
    result = sg.run(problem, jax.random.key(1), method=sg.SNG(), sampler=sampler, steps=20)
    ```
    """

    num_rows: int = eqx.field(static=True)

    def __check_init__(self):
        positive_int("num_rows", self.num_rows)

    def init(self, key: PRNGKeyArray) -> State:
        """Returns the empty state `()`: every draw is the same."""
        del key
        return ()

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Returns the numbers of all rows, 0 … m − 1, in this order."""
        del key, linearise
        return jnp.arange(self.num_rows), state


class TwoBatches(AbstractSampler):
    """Two independent batches per step, for `sg.TwoBatch`: one for the gradient, one for the preconditioner.

    **Arguments:**

    - `sampler`: the sampler that draws each of the two.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    sampler = sg.sampling.TwoBatches(sg.sampling.Uniform(6, sample_size=3))
    result = sg.run(problem, jax.random.key(1), method=sg.TwoBatch(1.0), sampler=sampler, steps=20)
    ```
    """

    sampler: AbstractSampler

    @property
    def num_rows(self) -> int | None:
        """The number m of rows to draw from, which is that of the sampler that draws both batches."""
        return self.sampler.num_rows

    def init(self, key: PRNGKeyArray) -> State:
        """Returns a state of the sampler for each of the two batches."""
        first, second = jax.random.split(key)
        return self.sampler.init(first), self.sampler.init(second)

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Returns a `Pair` of independent batches."""
        keys = jax.random.split(key)
        first, state_first = self.sampler.draw(keys[0], state[0], linearise)
        second, state_second = self.sampler.draw(keys[1], state[1], linearise)
        return Pair(first, second), (state_first, state_second)
