"""Determinants of many small matrices, with derivatives that stay finite where a determinant vanishes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

UNROLLED = 12
"""Matrices up to this size are eliminated by plain arithmetic: many small calls into LAPACK cost far more."""


@jax.jit  # by the name of this call the forward Laplacian knows it, as it knows `jnp.linalg.slogdet`
def slogdet(A: Float[Array, "*b n n"]) -> tuple[Float[Array, "*b"], Float[Array, "*b"]]:
    """Returns the sign of det A and log|det A| of each matrix in `A`; 0 and −∞ where a pivot is
    exactly zero.

    As `jnp.linalg.slogdet`, but derivatives there are zero in place of NaN, so that one vanishing determinant
    does no harm in a sum of several.

    ```python
    sign, log = sg.linalg.slogdet(jnp.array([[[0.0, 2.0], [3.0, 0.0]]]))       # [-1], [log 6]
    ```
    """
    return _slogdet(A)


@jax.custom_jvp
def _slogdet(A: Float[Array, "*b n n"]) -> tuple[Float[Array, "*b"], Float[Array, "*b"]]:
    if A.shape[-1] > UNROLLED:
        sign, log = jnp.linalg.slogdet(A)
        return sign, log
    _, sign, log = _eliminate(A, A[..., :0])
    return sign, log


@_slogdet.defjvp
def _slogdet_jvp(primals: tuple, tangents: tuple) -> tuple:
    inverse, sign, log = inverse_slogdet(primals[0])
    slope = jnp.sum(jnp.swapaxes(inverse, -1, -2) * tangents[0], axis=(-2, -1))
    return (sign, log), (jnp.zeros_like(sign), slope)


def inverse_slogdet(
    A: Float[Array, "*b n n"],
) -> tuple[Float[Array, "*b n n"], Float[Array, "*b"], Float[Array, "*b"]]:
    """Returns the inverse of each matrix in `A`, the sign of its determinant, and the logarithm
    of its size.

    A singular matrix has an inverse of zeros here.

    ```python
    inverse, sign, log = sg.linalg.inverse_slogdet(jnp.eye(3)[None])
    ```
    """
    n = A.shape[-1]
    eye = jnp.broadcast_to(jnp.eye(n, dtype=A.dtype), A.shape)
    if n <= UNROLLED:
        return _eliminate(A, eye)
    sign, log = jnp.linalg.slogdet(A)
    dead = (sign == 0)[..., None, None]
    return jnp.where(dead, 0, jnp.linalg.inv(jnp.where(dead, eye, A))), sign, log


def _eliminate(
    A: Float[Array, "*b n n"], right: Float[Array, "*b n m"]
) -> tuple[Float[Array, "*b n m"], Float[Array, "*b"], Float[Array, "*b"]]:
    """Gauss–Jordan with partial pivoting: A⁻¹ right, and the determinant's sign and logarithm.

    Rows are not moved: each column marks the row that it was eliminated with.
    """
    n = A.shape[-1]
    work = jnp.concatenate([A, right], axis=-1)
    free = jnp.ones(A.shape[:-1], bool)
    rows = jax.lax.broadcasted_iota(int, free.shape, free.ndim - 1)
    places, pivots = [], []
    for j in range(n):
        column = work[..., j]
        place = jnp.argmax(jnp.where(free, jnp.abs(column), -1), axis=-1)
        mark = place[..., None] == rows
        row = jnp.sum(jnp.where(mark[..., None], work, 0), axis=-2)
        pivot = row[..., j]
        row = row / jnp.where(pivot == 0, 1, pivot)[..., None]
        reduced = work - column[..., None] * row[..., None, :]
        work = jnp.where(mark[..., None], row[..., None, :], reduced)
        free = free & ~mark
        places.append(place)
        pivots.append(pivot)
    order, pivot = jnp.stack(places, axis=-1), jnp.stack(pivots, axis=-1)
    crossed = jnp.sum(jnp.triu(order[..., :, None] > order[..., None, :], 1), axis=(-2, -1))
    dead = jnp.any(pivot == 0, axis=-1)
    sign = jnp.prod(jnp.sign(pivot), axis=-1) * (1 - 2 * (crossed % 2)).astype(A.dtype)
    log = jnp.sum(jnp.log(jnp.abs(pivot)), axis=-1)
    solved = jnp.take_along_axis(work[..., n:], order[..., None], axis=-2)
    return jnp.where(dead[..., None, None], 0, solved), sign, log
