"""Oversample, then subselect: diverse batches from a pool that any sampler draws."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import Given, one_of, positive_int, real_scalar
from .._contracts import AbstractSampler, Batch, Linearisation, State
from ..linalg import pivoted_cholesky, select_by_volume


class Pool(AbstractSampler):
    """k rows of a pool drawn by another sampler, chosen for the volume that they span.

    The pool may be indices or points of a continuous domain: any pytree whose leaves share their first axis.
    About 5k rows are a good pool. A step linearises the pool and then the batch, so it costs about as much
    as a uniform batch of the pool's size without the solve.

    - `"rpcholesky"`: randomly pivoted Cholesky (Chen, Epperly, Tropp, Webber 2024); each row in turn with
      probability ∝ its squared distance to the span of those before. O(c k²) for a pool of c.
    - `"dpp"`: exact squared volume sampling of the pool. O(c³).

    It pays for noisy (inconsistent) problems with clustered, nearly repeated rows at small λ, where both come
    within about 2× of exact squared volume sampling and `"rpcholesky"` is the cheaper. With consistent
    residuals uniform rows can be faster; with incoherent rows or large λ all samplers are alike.

    **Arguments:**

    - `base`: the sampler of the pool, of at least k rows.
    - `sample_size`: k, the number of rows in a sample.
    - `damping`: λ of the kernel JJᵀ + λI. At λ = 0, once the rank is used up, the other rows are uniform.
    - `subselect`: `"rpcholesky"` or `"dpp"`.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    sampler = sg.sampling.Pool(sg.sampling.Uniform(6, 5), sample_size=3, damping=1e-6)
    result = sg.run(problem, jax.random.key(1), method=sg.SNG(1e-3), sampler=sampler, steps=20)
    ```
    """

    base: AbstractSampler
    sample_size: int = eqx.field(static=True)
    damping: Float[Array, ""]
    subselect: Literal["rpcholesky", "dpp"] = eqx.field(static=True)

    def __init__(
        self,
        base: AbstractSampler,
        sample_size: int,
        damping: Given[ArrayLike, ""] = 0.0,
        subselect: Literal["rpcholesky", "dpp"] = "rpcholesky",
    ):
        if not isinstance(base, AbstractSampler):
            raise TypeError(
                f"`base` must be a sampler such as sg.sampling.Uniform, got {type(base).__name__}."
            )
        self.base = base
        self.sample_size = positive_int("sample_size", sample_size)
        self.damping = real_scalar("damping", damping, low=0)
        self.subselect = one_of("subselect", subselect, ("rpcholesky", "dpp"))

    @property
    def num_rows(self) -> int | None:
        """The number m of rows to draw from, which is that of the sampler of the pool."""
        return self.base.num_rows

    def init(self, key: PRNGKeyArray) -> State:
        """Returns the state of the pool's sampler."""
        return self.base.init(key)

    def draw(
        self, key: PRNGKeyArray, state: State, linearise: Callable[[Batch], Linearisation]
    ) -> tuple[Batch, State]:
        """Draws a pool, and returns the part of it that is chosen."""
        key_pool, key_select = jax.random.split(key)
        pool, state = self.base.draw(key_pool, state, linearise)
        K = linearise(pool).jacobian.gram()
        c = K.shape[0]
        if any(jnp.shape(leaf)[:1] != (c,) for leaf in jax.tree.leaves(pool)):
            shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(pool)]
            raise ValueError(
                f"`base` must draw one entry per row of the Jacobian: {c} rows, got leaves of shape {shapes}."
            )
        positive_int("sample_size", self.sample_size, most=c, most_name="the size of the pool")
        if self.subselect == "dpp":
            chosen = select_by_volume(key_select, K, self.sample_size, self.damping)
        else:
            chosen = pivoted_cholesky(key_select, K, self.sample_size, self.damping).pivots
        return jax.tree.map(lambda leaf: leaf[chosen], pool), state
