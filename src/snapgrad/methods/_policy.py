"""What a machine can afford: which factorisation, which damping, and how rows are stored."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from .._contracts import AbstractJacobian, Params
from ..linalg import Factorisation, on_gpu, rank_cutoff
from ..operators import DenseJacobian

FLOP_LIMIT = 2**32
"""QR factorisations that cost more are not affordable: about a second on two cores, and more on a GPU."""
TRUSTED = 0.1
"""Cholesky is tried down to this part of the damping at which it is certain to be accurate: a factorisation
that fails is a refused step, and refinement mends the rest."""
REFINEMENTS = 10
"""Conjugate gradients take at most so many steps to make up for factors at a larger damping."""
ROWS_LIMIT = 2**28
"""On a GPU fewer numbers than this are stored as rows, which it multiplies faster than many small factors."""


def affordable_solver(rows: int, columns: int) -> Factorisation:
    """`"auto"` where QR of this shape is affordable, else `"cholesky_qr"` on a GPU and `"cholesky"`."""
    if rows * columns**2 <= FLOP_LIMIT:
        return "auto"
    return "cholesky_qr" if on_gpu() else "cholesky"


def bearable_damping(damping: Float[Array, ""], rows: int, columns: int) -> Float[Array, ""]:
    """The relative damping, raised to what Cholesky can bear where that is the only factorisation."""
    if affordable_solver(rows, columns) != "cholesky":
        return damping
    return jnp.maximum(damping, TRUSTED * rank_cutoff(columns, damping.dtype))


def least_squares_solver(
    damping: Float[Array, ""], rows: int, columns: int
) -> tuple[Array, Array, Factorisation]:
    """The relative damping that least squares can bear, the one at which they are factored, and how.

    Where QR is not affordable, conjugate gradients make up for factors at a larger damping, up to a limit. In
    float32 that limit is far too high, and Cholesky-QR keeps what squaring the rows would lose.
    """
    if affordable_solver(rows, columns) == "auto":
        return damping, damping, "auto"
    if damping.dtype == jnp.float32:
        return damping, damping, "cholesky_qr"
    least = TRUSTED * rank_cutoff(columns, damping.dtype)
    return jnp.maximum(damping, least / REFINEMENTS**2), jnp.maximum(damping, least), "cholesky"


def trusted_part(solver: Factorisation) -> float:
    """Down to which part of the damping that is certain to suffice plain Cholesky is taken.

    QR is worth its price where it is affordable at all; Cholesky-QR costs several times as much as Cholesky.
    """
    return 1.0 if solver == "auto" else TRUSTED


def store_rows(jacobian: AbstractJacobian, params: Params) -> bool:
    """Whether products with stored rows are the faster ones, and the rows fit."""
    k, n = jacobian.shape
    real = not any(map(jnp.iscomplexobj, jax.tree.leaves(params)))
    return on_gpu() and real and k * n < ROWS_LIMIT


def quickest(jacobian: AbstractJacobian, params: Params) -> AbstractJacobian:
    """The same Jacobian in the form whose products are the quickest on this machine."""
    if not store_rows(jacobian, params):
        return jacobian
    unravel = ravel_pytree(params)[1]
    return DenseJacobian(jax.vmap(unravel)(jacobian.dense()))
