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

    Without replacement costs O(k²) per draw, whatever m is.

    ```python
    sampler = sg.sampling.Uniform(1000, sample_size=10)
    rows = sampler.sample(key)             # int [10]; sampler.sample(key, (N,)) → [N, 10]
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
        """Independent draws, one set of rows each."""
        if self.replace:
            return jax.random.randint(key, (*shape, self.sample_size), 0, self.num_rows)
        if not shape:
            return random_subset(key, self.num_rows, self.sample_size)
        return jax.vmap(lambda key: self.sample(key, shape[1:]))(jax.random.split(key, shape[0]))

    def init(self, key: PRNGKeyArray) -> State:
        """No state."""
        del key
        return ()

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Fresh rows."""
        del linearise
        return self.sample(key), state


class AllRows(AbstractSampler):
    """Every row, every step: `sg.SNG` on it is deterministic natural gradient descent.

    ```python
    sampler = sg.sampling.AllRows(problem.num_rows)
    ```
    """

    num_rows: int = eqx.field(static=True)

    def __check_init__(self):
        positive_int("num_rows", self.num_rows)

    def init(self, key: PRNGKeyArray) -> State:
        """No state."""
        del key
        return ()

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """0 … m−1."""
        del key, linearise
        return jnp.arange(self.num_rows), state


class TwoBatches(AbstractSampler):
    """Two independent batches of one sampler per step, for `sg.TwoBatch`: gradient, preconditioner.

    ```python
    sampler = sg.sampling.TwoBatches(sg.sampling.Uniform(1000, sample_size=10))
    ```
    """

    sampler: AbstractSampler

    @property
    def num_rows(self) -> int | None:
        """As the sampler it draws from."""
        return self.sampler.num_rows

    def init(self, key: PRNGKeyArray) -> State:
        """A state for each batch."""
        first, second = jax.random.split(key)
        return self.sampler.init(first), self.sampler.init(second)

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """A `Pair` of batches."""
        keys = jax.random.split(key)
        first, state_first = self.sampler.draw(keys[0], state[0], linearise)
        second, state_second = self.sampler.draw(keys[1], state[1], linearise)
        return Pair(first, second), (state_first, state_second)
