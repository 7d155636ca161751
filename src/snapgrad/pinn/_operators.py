"""Differential operators on ordinary functions of a point."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._forward import Wanted, taylor
from ._partials import biharmonic_directions, directions_for

Axes: TypeAlias = int | slice | Sequence[int] | None
"""Coordinates: one, a slice such as `slice(1, None)`, several, or all (None)."""


class Derivatives(NamedTuple):
    """What `sg.pinn.derivatives` returns for a function u of a point with d coordinates.

    - `value`: u itself, a number; for a vector-valued u an array of its o components.
    - `gradient`: the derivatives by all coordinates, `[d]`; for a vector-valued u the Jacobian matrix `[o,
      d]`.
    - `laplacian`: the sum of the second derivatives over the chosen coordinates, of the shape of `value`.

    ```python
    found = sg.pinn.derivatives(lambda x: x[0] ** 2 * x[1], jnp.array([1.0, 2.0]))
    found.value, found.gradient, found.laplacian              # 2, [4, 1], 4
    ```
    """

    value: Float[Array, "*o"]
    gradient: Float[Array, "*o d"]
    laplacian: Float[Array, "*o"]


def derivatives(u: Callable, x: Float[Array, "..."], axes: Axes = None) -> Derivatives:
    """A function, its gradient and its Laplacian at one point, all in one forward pass.

    **Arguments:**

    - `u`: the function of one point, such as the network that a residual receives.
    - `x`: the point, an array of shape `(d,)`.
    - `axes`: the coordinates over which the Laplacian sums; by default all. In a space–time domain time is
      the first coordinate, and `axes=slice(1, None)` are those of space. The gradient is always by all
      coordinates.

    **Returns:** a `sg.pinn.Derivatives`, the triple of `value`, `gradient` and `laplacian`. `ValueError` if
    `x` is not one point, or if `axes` names a coordinate that it has not.

    ```python
    def burgers(u, x):
        value, (u_t, u_x), u_xx = sg.pinn.derivatives(u, x, axes=1)
        return u_t + value * u_x - 0.01 / jnp.pi * u_xx
    ```
    """
    chosen, eye = _indices(x, axes), np.eye(x.shape[0])
    value, found = taylor(u, x, {1: Wanted(eye, eye), 2: _summed(eye[list(chosen)])})
    return Derivatives(value, jnp.moveaxis(found[1], 0, -1), found[2][0])


def laplacian(u: Callable, x: Float[Array, "..."], axes: Axes = None) -> Float[Array, "*o"]:
    """The Laplacian Δu at one point: the sum of the second derivatives of u over some or all coordinates.

    One forward pass computes it. Natural gradients stay cheap with it: a weight matrix enters each row of the
    Jacobian as a sum of len(axes) + 2 outer products.

    **Arguments:**

    - `u`: the function of one point, scalar or vector-valued.
    - `x`: the point, an array of shape `(d,)`.
    - `axes`: the coordinates to sum over: one, several, or a slice; by default all.

    **Returns:** a number, or one for each component of `u`. `ValueError` if `x` is not one point, or if
    `axes` names a coordinate that it has not.

    ```python
    sg.pinn.laplacian(lambda x: x[0] ** 2 + x[1] ** 3, jnp.array([1.0, 2.0]))      # 2 + 6 · 2 = 14
    ```
    """
    chosen = _indices(x, axes)
    return taylor(u, x, {2: _summed(np.eye(x.shape[0])[list(chosen)])})[1][2][0]


def biharmonic(u: Callable, x: Float[Array, "..."], axes: Axes = None) -> Float[Array, "*o"]:
    """The biharmonic operator Δ²u at one point: the Laplacian of the Laplacian, which bends plates.

    In the plane, one forward pass along three directions computes it, and a weight matrix enters each row of
    the Jacobian as a sum of eleven outer products.

    **Arguments:**

    - `u`: the function of one point, scalar or vector-valued; it must be smooth, as `tanh` is and `relu` is
      not.
    - `x`: the point, an array of shape `(d,)`.
    - `axes`: the coordinates of both Laplacians: one, several, or a slice; by default all.

    **Returns:** a number, or one for each component of `u`. `ValueError` if `x` is not one point, or if
    `axes` names a coordinate that it has not.

    ```python
    sg.pinn.biharmonic(lambda x: x[0] ** 4 + x[0] ** 2 * x[1] ** 2, jnp.array([1.0, 2.0]))     # 24 + 8
    ```
    """
    chosen = list(_indices(x, axes))
    directions, weights = biharmonic_directions(len(chosen))
    embedded = np.zeros((len(directions), x.shape[0]))
    embedded[:, chosen] = directions
    return taylor(u, x, {4: Wanted(embedded, weights)})[1][4][0]


def derivative(u: Callable, x: Float[Array, " d"], axes: int | Sequence[int]) -> Float[Array, "*o"]:
    """One partial derivative of u at one point, of any order; for several at once use `sg.pinn.partials`.

    **Arguments:**

    - `u`: the function of one point, scalar or vector-valued.
    - `x`: the point, an array of shape `(d,)`.
    - `axes`: the coordinate to differentiate by, or a sequence with one coordinate for each differentiation:
      `(1, 1, 1)` is ∂³u/∂x₁³.

    **Returns:** a number, or one for each component of `u`. `ValueError` if `x` is not one point, or if
    `axes` names a coordinate that it has not.

    ```python
    u = lambda x: x[0] ** 2 * x[1] ** 3
    sg.pinn.derivative(u, jnp.array([1.0, 2.0]), (1, 1, 1))                       # ∂³u/∂x₁³ = 6
    sg.pinn.derivative(u, jnp.array([1.0, 2.0]), (0, 1))                          # ∂²u/∂x₀∂x₁ = 24
    ```
    """
    return partials(u, x, [(axes,) if isinstance(axes, int) else axes])[0]


def partials(
    u: Callable, x: Float[Array, " d"], wanted: Sequence[Sequence[int]]
) -> tuple[Float[Array, "*o"], ...]:
    """Several partial derivatives of u at x, in one forward pass.

    **Arguments:**

    - `u`: the function of one point, scalar or vector-valued.
    - `x`: the point, an array of shape `(d,)`.
    - `wanted`: for each derivative the coordinates to differentiate by, in any order: `()` is u itself,
      `(1, 1, 1)` is ∂³u/∂x₁³, `(0, 1)` a mixed one.

    **Returns:** their values, in the same order; arrays for a vector-valued u.

    The pass carries Taylor polynomials along few directions, found from the list. Its cost is linear in
    the order of pure derivatives: here 5 vectors for each weight matrix, where nested `jax.jvp` has 13.

    ```python
    def korteweg_de_vries(u, x):
        value, u_t, u_x, u_xxx = sg.pinn.partials(u, x, [(), (0,), (1,), (1, 1, 1)])
        return u_t + value * u_x + 0.022**2 * u_xxx
    ```
    """
    dim = _point(x).shape[0]
    chosen = [tuple(axes) for axes in wanted]
    for axes in chosen:
        if any(isinstance(i, bool) or not isinstance(i, int) or not -dim <= i < dim for i in axes):
            raise ValueError(
                f"`wanted` must hold tuples of coordinates of `x`, out of 0 to {dim - 1}; got {axes!r}."
            )
    counts = [tuple(sum(i % dim == axis for i in axes) for axis in range(dim)) for axes in chosen]
    unique = tuple(dict.fromkeys(counts))
    value, found = taylor(u, x, directions_for(dim, unique))
    by_count = {}
    for order, values in found.items():
        by_count |= zip([count for count in unique if sum(count) == order], values, strict=True)
    return tuple(by_count[count] if sum(count) else value for count in counts)


def gradient(u: Callable, x: Float[Array, " d"]) -> Float[Array, "*o d"]:
    """The gradient ∇u at one point.

    **Arguments:**

    - `u`: the function of one point, scalar or vector-valued.
    - `x`: the point, an array of shape `(d,)`.

    **Returns:** an array `[d]`; for a vector-valued `u` the Jacobian matrix, with one row for each component.
    `ValueError` if `x` is not one point.

    ```python
    sg.pinn.gradient(lambda x: x[0] * x[1], jnp.array([1.0, 2.0]))                 # [2, 1]
    ```
    """
    return jax.jacfwd(u)(_point(x))


def divergence(field: Callable, x: Float[Array, " d"], axes: Axes = None) -> Float[Array, ""]:
    """The divergence Σ ∂F_i/∂x_i of a vector field F at one point.

    **Arguments:**

    - `field`: the function of one point that returns the components of F, as many as there are `axes`.
    - `x`: the point, an array of shape `(d,)`.
    - `axes`: the coordinates that belong to the components, in their order; by default all. In a space–time
      domain, where time comes first, `axes=slice(1, None)` are those of space.

    **Returns:** one number. `ValueError` if `field` has another number of components than there are `axes`.

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
    """The derivative ∂u/∂t at one point of a space–time domain, where time is the first coordinate.

    **Arguments:**

    - `u`: the function of one point, scalar or vector-valued.
    - `x`: the point, an array `(t, x₁, …)`.

    **Returns:** a number, or one for each component of `u`. `ValueError` if `x` is not one point.

    ```python
    sg.pinn.time_derivative(lambda x: x[0] * x[1], jnp.array([1.0, 2.0]))          # 2
    ```
    """
    return directional(u, x, jnp.zeros_like(_point(x)).at[0].set(1))


def directional(u: Callable, x: Float[Array, " d"], direction: Float[Array, " d"]) -> Float[Array, "*o"]:
    """The derivative of u at one point along a direction, such as the normal of a boundary.

    **Arguments:**

    - `u`: the function of one point, scalar or vector-valued.
    - `x`: the point, an array of shape `(d,)`.
    - `direction`: a vector of the same shape. The derivative is per unit of `x` only where its length is one;
      a direction twice as long gives twice the number.

    **Returns:** a number, or one for each component of `u`. `ValueError` if `x` is not one point.

    ```python
    sg.pinn.directional(lambda x: x @ x, jnp.array([1.0, 2.0]), jnp.array([0.0, 1.0]))   # 4
    ```
    """
    return jax.jvp(u, (_point(x),), (direction,))[1]


def _summed(directions: Float[np.ndarray, "q d"]) -> Wanted:
    return Wanted(directions, np.ones((1, len(directions))))


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
