"""Boundary conditions ready made: each is a `sg.pinn.Block`."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from .._checks import Given
from ._blocks import Block
from ._domains import Points, SpaceTime
from ._drawing import AbstractDomain
from ._geometry import AbstractShape, AbstractSurface, Boundary, part
from ._operators import directional


def Dirichlet(
    domain: AbstractDomain | Points,
    value: Given[Callable | float, ""],
    points: int | None = None,
    *,
    where: Callable | None = None,
    name: str = "dirichlet",
    weight: Given[ArrayLike, ""] = 1.0,
) -> Block:
    """The condition u = `value` on the boundary of a domain, or on a part of it, as a `sg.pinn.Block`.

    **Arguments:**

    - `domain`: a shape or a `sg.pinn.SpaceTime`, whose boundary is meant; a boundary; or `sg.pinn.Points`.
    - `value`: a number, an array for a vector-valued u, or a function of a point.
    - `points`: how many points each step draws.
    - `where`: which part of the boundary of `domain`, as for `boundary(where=...)`.
    - `name`, `weight`: as for `sg.pinn.Block`. A problem with two conditions of one kind needs a name for
      each.

    **Returns:** a `sg.pinn.Block` for `sg.pinn.PINN`. `ValueError` if `value` is a matrix, or if `where` is
    given for a `domain` that is not a shape.

    ```python
    channel = sg.pinn.Box([0, 0], [2, 1])
    sg.pinn.Dirichlet(channel, lambda x: x[1] * (1 - x[1]), 40, where=lambda x: x[0] < 1e-9, name="inlet")
    ```
    """
    value = _function("value", value)
    return Block(name, lambda u, x: u(x) - value(x), _edge(domain, where, False), points, weight)


def Neumann(
    domain: AbstractDomain | Points,
    flux: Given[Callable | float, ""],
    points: int | None = None,
    *,
    where: Callable | None = None,
    name: str = "neumann",
    weight: Given[ArrayLike, ""] = 1.0,
) -> Block:
    """The condition ∂u/∂n = `flux` on the boundary of a domain, whose outward normal is n.

    **Arguments:**

    - `domain`: a shape or a `sg.pinn.SpaceTime`, whose boundary is meant; a boundary that was made with
      `normals=True`; or `sg.pinn.Points` with a column `normal`.
    - `flux`: a number, an array for a vector-valued u, or a function of a point.
    - `points`: how many points each step draws.
    - `where`: which part of the boundary of `domain`, as for `boundary(where=...)`.
    - `name`, `weight`: as for `sg.pinn.Block`. A problem with two conditions of one kind needs a name for
      each.

    **Returns:** a `sg.pinn.Block` for `sg.pinn.PINN`. `ValueError` if `flux` is a matrix, or if `where` is
    given for a `domain` that is not a shape.

    ```python
    ring = sg.pinn.Ball([0, 0], 2) - sg.pinn.Ball([0, 0], 1)
    sg.pinn.Neumann(ring, 0.0, 60, where=lambda x: x @ x < 1.5, name="insulated")
    ```
    """
    return Robin(domain, 0.0, 1.0, flux, points, where=where, name=name, weight=weight)


def Robin(
    domain: AbstractDomain | Points,
    a: Given[Callable | float, ""],
    b: Given[Callable | float, ""],
    value: Given[Callable | float, ""],
    points: int | None = None,
    *,
    where: Callable | None = None,
    name: str = "robin",
    weight: Given[ArrayLike, ""] = 1.0,
) -> Block:
    """The condition a u + b ∂u/∂n = `value` on the boundary of a domain, whose outward normal is n.

    **Arguments:**

    - `domain`: a shape or a `sg.pinn.SpaceTime`, whose boundary is meant; a boundary that was made with
      `normals=True`; or `sg.pinn.Points` with a column `normal`.
    - `a`, `b`, `value`: numbers, arrays for a vector-valued u, or functions of a point.
    - `points`: how many points each step draws.
    - `where`: which part of the boundary of `domain`, as for `boundary(where=...)`.
    - `name`, `weight`: as for `sg.pinn.Block`. A problem with two conditions of one kind needs a name for
      each.

    **Returns:** a `sg.pinn.Block` for `sg.pinn.PINN`. `ValueError` if `a`, `b` or `value` is a matrix, or if
    `where` is given for a `domain` that is not a shape.

    ```python
    wall = sg.pinn.Box([0], [1])
    sg.pinn.Robin(wall, 2.0, 1.0, lambda x: 20.0, 2)                  # heat given off to air at 10 degrees
    ```
    """
    a, b, value = (_function(name, given) for name, given in (("a", a), ("b", b), ("value", value)))

    def residual(u: Callable, x: Array, normal: Array) -> Array:
        return a(x) * u(x) + b(x) * directional(u, x, normal) - value(x)

    return Block(name, residual, _edge(domain, where, True), points, weight)


def _function(name: str, given: Any) -> Callable:
    if callable(given):
        return given
    constant = jnp.asarray(given, float)
    if constant.ndim > 1:
        raise ValueError(f"`{name}` must be a number, a vector or a function, got shape {constant.shape}.")
    return lambda x: constant


def _edge(domain: Any, where: Callable | None, normals: bool) -> AbstractDomain | Points:
    """The boundary that is meant."""
    if isinstance(domain, AbstractShape) or (
        isinstance(domain, SpaceTime) and isinstance(domain.space, AbstractShape)
    ):
        return domain.boundary(normals=normals, where=where)
    if isinstance(domain, AbstractSurface | Boundary):
        return part(domain, normals, where)
    if where is not None:
        raise ValueError("`where` needs a shape as `domain`; a boundary takes it as `boundary(where=...)`.")
    return domain
