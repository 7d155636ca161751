"""Gram matrices: how they are formed, and which of their eigenvalues mean something."""

import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, Bool, Float


def gram(J: Float[Array, "k n"]) -> Float[Array, "k k"]:
    """J Jᵀ at full precision: on GPUs JAX's default would be TF32, good to three digits.

    ```python
    K = sg.linalg.gram(J)
    ```
    """
    return jnp.matmul(J, J.T, precision=Precision.HIGHEST)


def rank_cutoff(size: int, dtype: jnp.dtype) -> float:
    """Eigenvalues of a gram matrix of this size below this fraction of the largest count as zero.

    ```python
    rank = jnp.sum(w > sg.linalg.rank_cutoff(w.size, w.dtype) * w.max())
    ```
    """
    return 10 * size * float(jnp.finfo(dtype).eps)


def psd_eigh(K: Float[Array, "k k"]) -> tuple[Float[Array, " k"], Float[Array, "k k"], Bool[Array, " k"]]:
    """Eigenvalues (clipped at zero), eigenvectors, and which eigenvalues are above the rank cut-off.

    ```python
    w, V, keep = sg.linalg.psd_eigh(K)
    ```
    """
    w, V = jnp.linalg.eigh(K)
    w = jnp.maximum(w, 0)
    return w, V, w > rank_cutoff(K.shape[0], K.dtype) * w.max()
