"""Gram matrices: how they are formed, and which of their eigenvalues mean something."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._symmetric import gram_onto, mirror, symmetric_sum, syrk_pays

ALIGNED_ROWS, ALIGNED_COLUMNS = 64, 32
"""A GPU's routine for symmetric products is a third slower for a matrix whose sides are no multiples of these
(10,065 × 20,130 in float64 on an H200: 64 ms, and 46 ms with a few rows and columns of zeros)."""


def gram(J: Float[Array, "k n"]) -> Float[Array, "k k"]:
    """Returns the gram matrix J Jᵀ of the rows of `J`, at full precision.

    Only one half is computed where that is quicker; the other is its mirror image.

    ```python
    K = sg.linalg.gram(jax.random.normal(jax.random.key(0), (6, 4)))       # [6, 6], of rank 4
    ```
    """
    if syrk_pays(*J.shape):
        padded = jnp.pad(J, [(0, -J.shape[0] % ALIGNED_ROWS), (0, -J.shape[1] % ALIGNED_COLUMNS)])
        K = gram_onto(padded, jnp.zeros((padded.shape[0],) * 2, J.dtype))
        return mirror(K)[: J.shape[0], : J.shape[0]]
    total = symmetric_sum(J.shape[0], J.dtype)
    K = total.add([J[start:stop] for start, stop in total.blocks()]).lower()
    return mirror(K) if len(total.strips) > 1 else K


def rank_cutoff(size: int, dtype: jnp.dtype) -> float:
    """Returns the fraction of the largest eigenvalue of a gram matrix below which others count as zero.

    **Arguments:**

    - `size`: the number of rows of the matrix.
    - `dtype`: the type of its numbers, whose rounding hides smaller eigenvalues.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    w = jnp.linalg.eigvalsh(J @ J.T)
    rank = jnp.sum(w > sg.linalg.rank_cutoff(6, w.dtype) * w.max())        # 4
    ```
    """
    return 10 * size * float(jnp.finfo(dtype).eps)


def least_damping(K: Float[Array, "k k"]) -> Float[Array, ""]:
    """Returns the λ above which Cholesky's factors of K + λI are certain to be as good as
    eigenvalues of K.

    It is ten times the rounding of K: a matrix is known to eps‖K‖ only, however it is factored. For ‖K‖ the
    Frobenius norm is taken. That is close to the largest eigenvalue where a few of them dominate, as they do
    in kernels of networks.

    **Arguments:** `K`: a symmetric positive semidefinite matrix, which is not checked.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    sg.linalg.least_damping(J @ J.T)                                       # about 2e-5 in float32
    ```
    """
    most = jnp.diagonal(K).max()
    unit = jnp.where(most > 0, most, 1)  # squares of entries may overflow
    return rank_cutoff(1, K.dtype) * unit * jnp.linalg.norm(K / unit)


def psd_eigh(K: Float[Array, "k k"]) -> tuple[Float[Array, " k"], Float[Array, "k k"], Bool[Array, " k"]]:
    """Returns the eigenvalues of `K` (clipped at zero), its eigenvectors, and which eigenvalues
    are not zero.

    Zero are those below `sg.linalg.rank_cutoff` times the largest one. That K is symmetric and positive
    semidefinite is not checked.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    w, V, keep = sg.linalg.psd_eigh(J @ J.T)                               # `keep` holds four times True
    ```
    """
    w, V = jnp.linalg.eigh(K)
    w = jnp.maximum(w, 0)
    return w, V, w > rank_cutoff(K.shape[0], K.dtype) * w.max()
