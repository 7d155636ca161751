"""The random matrices of the paper's experiments."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .. import _memory
from .._checks import positive_int, real_array


def singular_values(name: str, count: int) -> Float[Array, " n"]:
    """Returns the singular values σ_i for i = 1 … `count`.

    The `name` is `"flat"` (all one), `"power:p"` (i^−p) or `"exp:r"` (e^{−r(i−1)}), with a number for p or r;
    any other is a `ValueError`.

    ```python
    sg.problems.singular_values("power:2", 4)                  # 1, 1/4, 1/9, 1/16
    ```
    """
    i = jnp.arange(1, positive_int("count", count) + 1, dtype=float)
    kind, _, value = name.partition(":")
    try:
        if name == "flat":
            return jnp.ones_like(i)
        if kind == "power":
            return i ** -float(value)
        if kind == "exp":
            return jnp.exp(-float(value) * (i - 1))
    except ValueError:
        pass
    raise ValueError(f"`spectrum` must be 'flat', 'power:P' or 'exp:R' with a number P or R; got {name!r}.")


def spectrum_matrix(key: PRNGKeyArray, values: Float[Array, " n"], num_rows: int) -> Float[Array, "m n"]:
    """Returns a random matrix Q₁ diag(values) Q₂, Q₁ (m × n) and Q₂ (n × n) having orthonormal columns.

    **Arguments:**

    - `key`: a JAX random key; the same key gives the same result.
    - `values`: the n singular values.
    - `num_rows`: m ≥ n, the number of rows; `ValueError` if it is less.

    ```python
    J = sg.problems.spectrum_matrix(jax.random.key(0), jnp.array([1.0, 0.5, 0.2, 0.1]), 6)     # [6, 4]
    ```
    """
    values = real_array("values", values, ndim=1)
    n = values.shape[0]
    if num_rows < n:
        raise ValueError(f"`num_rows` must be at least the number of `values`, {n}; got {num_rows}.")
    _memory.require(
        3 * num_rows * n * values.dtype.itemsize,
        f"a random matrix of {num_rows} rows and {n} columns",
        "fewer rows or columns take less",
    )
    left, right = jax.random.split(key)
    # The columns of Q₁: a QR of a tall normal matrix, which costs O(mn²) where a Haar m × m costs O(m³).
    q1, r = jnp.linalg.qr(jax.random.normal(left, (num_rows, n), dtype=values.dtype))
    q1 = q1 * jnp.sign(jnp.diagonal(r))[None, :]
    return (q1 * values[None, :]) @ jax.random.orthogonal(right, n, dtype=values.dtype)


def gaussian_matrix(
    key: PRNGKeyArray, num_rows: int, num_columns: int, inflation: float = 1.0
) -> Float[Array, "m n"]:
    """Returns a matrix of standard normal entries, the first row times `inflation`, scaled to ‖J‖₂ = 1.

    It has `num_rows` rows and `num_columns` columns; `key` is its randomness.

    ```python
    J = sg.problems.gaussian_matrix(jax.random.key(0), 6, 4)   # [6, 4]
    ```
    """
    J = jax.random.normal(key, (num_rows, num_columns)).at[0].multiply(inflation)
    return J / jnp.linalg.norm(J, 2)


def wishart_hessian(key: PRNGKeyArray, size: int) -> Float[Array, "m m"]:
    """Returns a random Hessian: LLᵀ/‖LLᵀ‖₂ with a square L of `size` × `size` standard normal entries.

    ```python
    H = sg.problems.wishart_hessian(jax.random.key(0), 6)      # [6, 6]
    ```
    """
    L = jax.random.normal(key, (size, size))
    H = L @ L.T
    return H / jnp.linalg.eigvalsh(H)[-1]


def linear_hessian(key: PRNGKeyArray, size: int, condition: float = 100.0) -> Float[Array, "m m"]:
    """Returns a random Hessian with a given condition number: Q D Qᵀ with a random orthogonal Q.

    The diagonal D falls from 1 to 1/κ like 1/(1 + (i−1)(κ−1)/(m−1)); m is `size` and κ is `condition`.

    ```python
    H = sg.problems.linear_hessian(jax.random.key(0), 6, condition=10.0)       # [6, 6]
    ```
    """
    Q = jax.random.orthogonal(key, size)
    return (Q / (1 + jnp.linspace(0, 1, size) * (condition - 1))[None, :]) @ Q.T
