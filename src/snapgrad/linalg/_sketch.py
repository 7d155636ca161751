"""Sketching matrices Ω (k × m), applied to the rows of a linear system."""

import abc
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import positive_int
from ._subsets import random_subset


class AbstractSketch(eqx.Module):
    """A random Ω, drawn anew at each step; `apply` gives ΩA and Ωb.

    Selecting rows costs O(kn) per step. The others mix all rows and cost O(kmn): use them where rows are
    so unequal that few of them carry the system. One of your own needs these two:

    ```python
    class Averages(sg.linalg.AbstractSketch):                  # each combination is the mean of two rows
        sample_size: int

        def apply(self, key, A, b):
            pairs = jax.random.choice(key, A.shape[0], (self.sample_size, 2))
            return A[pairs].mean(axis=1), b[pairs].mean(axis=1)

    A = jax.random.normal(jax.random.key(0), (6, 4))
    sg.kaczmarz(A, A @ jnp.ones(4), sketch=Averages(3)).reason
    ```
    """

    sample_size: eqx.AbstractVar[int]
    """The number k of combinations."""

    @abc.abstractmethod
    def apply(
        self, key: PRNGKeyArray, A: Float[Array, "m n"], b: Float[Array, " m"]
    ) -> tuple[Float[Array, "k n"], Float[Array, " k"]]:
        """Returns the rows ΩA and right-hand sides Ωb of one step, for an Ω that depends on `key` alone."""


class AbstractMatrixSketch(AbstractSketch):
    """A sketch that forms Ω."""

    @abc.abstractmethod
    def matrix(self, key: PRNGKeyArray, num_rows: int) -> Float[Array, "k m"]:
        """Returns Ω itself, with as many rows as the sketch and as many columns as the system has rows."""

    @final
    def apply(
        self, key: PRNGKeyArray, A: Float[Array, "m n"], b: Float[Array, " m"]
    ) -> tuple[Float[Array, "k n"], Float[Array, " k"]]:
        """Draws Ω and returns the sketched system, (ΩA, Ωb)."""
        sketch = self.matrix(key, A.shape[0]).astype(A.dtype)
        return (
            jnp.matmul(sketch, A, precision=Precision.HIGHEST),
            jnp.matmul(sketch, b, precision=Precision.HIGHEST),
        )


def _size(value: int) -> int:
    return positive_int("sample_size", value)


class RowSketch(AbstractSketch):
    """k rows of the identity, uniformly without replacement: block Kaczmarz.

    **Arguments:**

    - `sample_size`: the number k of rows, at most those of the system.

    ```python
    A = jax.random.normal(jax.random.key(0), (6, 4))
    rows, rhs = sg.linalg.RowSketch(3).apply(jax.random.key(1), A, jnp.ones(6))          # [3, 4], [3]
    ```
    """

    sample_size: int = eqx.field(static=True, converter=_size)

    def apply(
        self, key: PRNGKeyArray, A: Float[Array, "m n"], b: Float[Array, " m"]
    ) -> tuple[Float[Array, "k n"], Float[Array, " k"]]:
        """Draws rows S and returns them with their right-hand sides, (A_S, b_S); no Ω is formed."""
        rows = random_subset(key, A.shape[0], self.sample_size)
        return A[rows], b[rows]


class GaussianSketch(AbstractMatrixSketch):
    """Independent normal entries of variance 1/k; a step sees k random combinations of all rows.

    **Arguments:**

    - `sample_size`: the number k of combinations.

    ```python
    sketch = sg.linalg.GaussianSketch(3)
    omega = sketch.matrix(jax.random.key(0), num_rows=6)                                  # [3, 6]
    A = jax.random.normal(jax.random.key(0), (6, 4))
    result = sg.kaczmarz(A, A @ jnp.ones(4), sketch=sketch, steps=20)
    ```
    """

    sample_size: int = eqx.field(static=True, converter=_size)

    def matrix(self, key: PRNGKeyArray, num_rows: int) -> Float[Array, "k m"]:
        """Returns Ω, a dense matrix of independent normal numbers."""
        return jax.random.normal(key, (self.sample_size, num_rows)) / jnp.sqrt(self.sample_size)


class SparseSignSketch(AbstractMatrixSketch):
    """Each column holds `nonzeros` random signs in distinct random places, scaled to unit norm.

    **Arguments:**

    - `sample_size`: the number k of combinations.
    - `nonzeros`: how many of them a row of the system enters; all of them where k is smaller.

    ```python
    omega = sg.linalg.SparseSignSketch(3, nonzeros=2).matrix(jax.random.key(0), num_rows=6)      # [3, 6]
    ```
    """

    sample_size: int = eqx.field(static=True, converter=_size)
    nonzeros: int = eqx.field(static=True, default=8)

    def __check_init__(self):
        positive_int("nonzeros", self.nonzeros)

    def matrix(self, key: PRNGKeyArray, num_rows: int) -> Float[Array, "k m"]:
        """Returns Ω with `min(nonzeros, k)` entries in each column, all of one size and random signs."""
        filled = min(self.nonzeros, self.sample_size)
        place, sign = jax.random.split(key)
        rows = jax.vmap(lambda key: random_subset(key, self.sample_size, filled))(
            jax.random.split(place, num_rows)
        )
        signs = jax.random.rademacher(sign, rows.shape, dtype=float) / jnp.sqrt(filled)
        columns = jnp.broadcast_to(jnp.arange(num_rows)[:, None], rows.shape)
        return jnp.zeros((self.sample_size, num_rows)).at[rows, columns].set(signs)


class HadamardSketch(AbstractMatrixSketch):
    """k random rows of a Walsh–Hadamard matrix with random column signs (SRHT), scaled by 1/√k.

    The system is thought of as padded by zero rows to the next power of two.

    **Arguments:**

    - `sample_size`: the number k of combinations.

    ```python
    omega = sg.linalg.HadamardSketch(3).matrix(jax.random.key(0), num_rows=6)                    # [3, 6]
    ```
    """

    sample_size: int = eqx.field(static=True, converter=_size)

    def matrix(self, key: PRNGKeyArray, num_rows: int) -> Float[Array, "k m"]:
        """Returns Ω, rows of a Hadamard matrix with random signs: (−1)^{popcount(i & j)} · sign_j / √k."""
        choice, sign = jax.random.split(key)
        padded = 1 << (num_rows - 1).bit_length()
        rows = random_subset(choice, padded, min(self.sample_size, padded))
        parity = jax.lax.population_count(rows[:, None] & jnp.arange(num_rows)[None, :]) % 2
        signs = jax.random.rademacher(sign, (1, num_rows), dtype=float)
        return (1 - 2 * parity) * signs / jnp.sqrt(self.sample_size)
