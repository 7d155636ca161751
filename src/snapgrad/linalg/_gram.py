"""Gram matrices: how they are formed, and which of their eigenvalues mean something."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._symmetric import mirror, symmetric_sum, syrk_pays


def gram(J: Float[Array, "k n"]) -> Float[Array, "k k"]:
    """The gram matrix J Jᵀ at full precision, of which only one half is computed where that is quicker.

    ```python
    K = sg.linalg.gram(jax.random.normal(jax.random.key(0), (6, 4)))       # [6, 6], of rank 4
    ```
    """
    total = symmetric_sum(J.shape[0], J.dtype)
    whole = len(total.strips) == 1 and not syrk_pays(*J.shape)
    K = total.add([J[start:stop] for start, stop in total.blocks()]).lower()
    return K if whole else mirror(K)


def rank_cutoff(size: int, dtype: jnp.dtype) -> float:
    """The fraction of the largest eigenvalue below which others of a gram matrix of this size count as zero.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    w = jnp.linalg.eigvalsh(J @ J.T)
    rank = jnp.sum(w > sg.linalg.rank_cutoff(6, w.dtype) * w.max())        # 4
    ```
    """
    return 10 * size * float(jnp.finfo(dtype).eps)


def psd_eigh(K: Float[Array, "k k"]) -> tuple[Float[Array, " k"], Float[Array, "k k"], Bool[Array, " k"]]:
    """The eigenvalues of K (clipped at zero), its eigenvectors, and which eigenvalues are not zero.

    Zero are those below `rank_cutoff` times the largest one. That K is symmetric and positive semidefinite
    is not checked.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    w, V, keep = sg.linalg.psd_eigh(J @ J.T)                               # `keep` holds four times True
    ```
    """
    w, V = jnp.linalg.eigh(K)
    w = jnp.maximum(w, 0)
    return w, V, w > rank_cutoff(K.shape[0], K.dtype) * w.max()
