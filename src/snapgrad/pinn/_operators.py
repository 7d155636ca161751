"""Differential operators on ordinary functions of a point."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._forward import forward_laplacian

Axes: TypeAlias = int | slice | Sequence[int] | None
"""Coordinates: one, a slice such as `slice(1, None)`, several, or all (None)."""


class Derivatives(NamedTuple):
    """What `sg.pinn.derivatives` returns; for a vector-valued u with an axis of components in front.

    ```python
    found = sg.pinn.derivatives(lambda x: x[0] ** 2 * x[1], jnp.array([1.0, 2.0]))
    found.value, found.gradient, found.laplacian              # 2, [4, 1], 4
    ```
    """

    value: Float[Array, "*o"]
    gradient: Float[Array, "*o d"]
    laplacian: Float[Array, "*o"]


def derivatives(u: Callable, x: Float[Array, "..."], axes: Axes = None) -> Derivatives:
    """u, its whole gradient and its Laplacian over `axes` at x, in one forward pass.

    In a space–time domain time is the first coordinate, and `axes=slice(1, None)` are those of space:

    ```python
    def burgers(u, x):
        value, (u_t, u_x), u_xx = sg.pinn.derivatives(u, x, axes=1)
        return u_t + value * u_x - 0.01 / jnp.pi * u_xx
    ```
    """
    chosen = _indices(x, axes)
    jet = forward_laplacian(u, x, jnp.eye(x.shape[0], dtype=x.dtype), chosen)
    return Derivatives(jet.value, jnp.moveaxis(jet.slopes, 0, -1), jet.laplacian)


def laplacian(u: Callable, x: Float[Array, "..."], axes: Axes = None) -> Float[Array, "*o"]:
    """Δu at one point x: the sum of the second derivatives of u over the coordinates `axes`, by default all.

    One forward pass computes it, and each row of the Jacobian is then len(axes) + 2 outer products for each
    weight matrix.

    ```python
    sg.pinn.laplacian(lambda x: x[0] ** 2 + x[1] ** 3, jnp.array([1.0, 2.0]))      # 2 + 6 · 2 = 14
    ```
    """
    chosen = _indices(x, axes)
    directions = jnp.eye(x.shape[0], dtype=x.dtype)[jnp.array(chosen)]
    return forward_laplacian(u, x, directions, range(len(chosen))).laplacian


def gradient(u: Callable, x: Float[Array, " d"]) -> Float[Array, "*o d"]:
    """∇u at one point x, an array of shape (d,); of a vector-valued u the Jacobian matrix.

    ```python
    sg.pinn.gradient(lambda x: x[0] * x[1], jnp.array([1.0, 2.0]))                 # [2, 1]
    ```
    """
    return jax.jacfwd(u)(_point(x))


def divergence(field: Callable, x: Float[Array, " d"], axes: Axes = None) -> Float[Array, ""]:
    """Σ ∂F_i/∂x_i over `axes`, for a field with one component for each of them, else `ValueError`.

    ```python
    sg.pinn.divergence(lambda x: x**2, jnp.array([1.0, 2.0]))                      # 2 · 1 + 2 · 2 = 6
    ```
    """
    chosen = jnp.array(_indices(x, axes))
    matrix = gradient(field, x)
    if matrix.ndim != 2 or matrix.shape[0] != chosen.shape[0]:
        raise ValueError(
            f"`field` must return {chosen.shape[0]} components, one for each coordinate; "
            f"got shape {matrix.shape[:-1]}."
        )
    return jnp.trace(matrix[:, chosen])


def time_derivative(u: Callable, x: Float[Array, " d"]) -> Float[Array, "*o"]:
    """∂u/∂t at one point x, whose first coordinate is the time t.

    ```python
    sg.pinn.time_derivative(lambda x: x[0] * x[1], jnp.array([1.0, 2.0]))          # 2
    ```
    """
    return directional(u, x, jnp.zeros_like(_point(x)).at[0].set(1))


def directional(u: Callable, x: Float[Array, " d"], direction: Float[Array, " d"]) -> Float[Array, "*o"]:
    """The derivative of u at one point x along a direction, such as a boundary's normal.

    ```python
    sg.pinn.directional(lambda x: x @ x, jnp.array([1.0, 2.0]), jnp.array([0.0, 1.0]))   # 4
    ```
    """
    return jax.jvp(u, (_point(x),), (direction,))[1]


def _point(x: Any) -> Float[Array, " d"]:
    x = jnp.asarray(x)
    if x.ndim != 1:
        raise ValueError(
            f"`x` must be one point, an array of shape (d,), got shape {x.shape}; residuals are written for "
            f"one point, and mapped over the batch for you."
        )
    return x


def _indices(x: Any, axes: Axes) -> tuple[int, ...]:
    dim = _point(x).shape[0]
    if axes is None:
        return tuple(range(dim))
    if isinstance(axes, slice):
        chosen = tuple(range(dim)[axes])
    else:
        chosen = (axes,) if isinstance(axes, int) else tuple(axes)
    if not chosen or any(not -dim <= i < dim for i in chosen):
        raise ValueError(f"`axes` must name some of the {dim} coordinates of `x`, got {axes!r}.")
    return tuple(i % dim for i in chosen)
