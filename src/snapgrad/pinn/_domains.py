"""Where points come from: boxes, balls, space and time, and points that are given."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._checks import Given, real_array, real_scalar
from ..linalg import random_subset
from ._drawing import AbstractDomain, Sites
from ._geometry import AbstractShape, AbstractSurface


class Box(AbstractShape):
    """A box, in any number of dimensions: an interval, a rectangle, a cuboid.

    **Arguments:**

    - `low`, `high`: two opposite corners, one number for each coordinate.
    - `periodic`: in which coordinates the two ends are the same place, for all of them at once or one by one.
      Such a coordinate has no boundary, and `sg.pinn.network(box)` is periodic in it.

    `ValueError` unless each number of `low` is below that of `high`.

    ```python
    box = sg.pinn.Box([0, -1], [2, 1])
    box.sample(jax.random.key(0), 100)          # 100 independent points, an array of shape (100, 2)
    box.spread(jax.random.key(0), 100)          # the same, evenly spread
    box.boundary()                              # its four sides
    sg.pinn.Box([0, -1], [2, 1], periodic=[True, False]).boundary()      # the lower and the upper one
    box - sg.pinn.Ball([1, 0], 0.5)             # shapes combine: `|`, `&`, `-`
    ```
    """

    low: Float[Array, " d"]
    high: Float[Array, " d"]
    periodic: tuple[bool, ...] = eqx.field(static=True)

    def __init__(
        self,
        low: Given[ArrayLike | Sequence[float], " d"],
        high: Given[ArrayLike | Sequence[float], " d"],
        periodic: bool | Sequence[bool] = False,
    ):
        low, high = (
            real_array(name, np.atleast_1d(value), ndim=1) for name, value in (("low", low), ("high", high))
        )
        if low.shape != high.shape:
            raise ValueError(f"`high` must have {low.shape[0]} entries like `low`, got {high.shape[0]}.")
        if np.any(np.asarray(low) >= np.asarray(high)):
            raise ValueError(
                f"`low` must be below `high` in every coordinate, or the box is empty; got "
                f"{low.tolist()} and {high.tolist()}."
            )
        self.low, self.high = low, high
        flags = np.asarray(periodic)
        if flags.dtype != bool or flags.shape not in ((), low.shape):
            raise ValueError(
                f"`periodic` must be True or False, or {low.shape[0]} of them; got {periodic!r}."
            )
        self.periodic = tuple(np.broadcast_to(flags, low.shape).tolist())

    @property
    def periods(self) -> dict[int, float]:
        """The coordinates in which the box is periodic, each with the length of its period."""
        lengths = np.asarray(self.high - self.low).tolist()
        return {i: length for i, length in enumerate(lengths) if self.periodic[i]}

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Returns the two corners, `low` and `high`."""
        return self.low, self.high

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.low.shape[0]

    @property
    def unit_dim(self) -> int:
        """How many uniform numbers place a point: one for each coordinate."""
        return self.dim

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Returns points of the unit cube scaled and shifted into the box."""
        return self.low[None] + (self.high - self.low)[None] * unit

    @property
    def volume(self) -> Float[Array, ""]:
        """The volume of the box, the product of the lengths of its sides."""
        return jnp.prod(self.high - self.low)

    def inside(self, x: Float[Array, " d"]) -> Bool[Array, ""]:
        """Returns whether one point is in the box; its sides belong to it."""
        return jnp.all((self.low <= x) & (x <= self.high))

    def surfaces(self, low: Float[Array, " d"], high: Float[Array, " d"]) -> tuple[AbstractSurface, ...]:
        """Returns the faces of the box, if it has any."""
        del low, high
        return () if all(self.periodic) else (BoxBoundary(self),)

    def whole_boundary(self) -> "BoxBoundary":
        """Returns the faces of the box, but for those of periodic coordinates; `ValueError` where none is
        left.
        """
        return BoxBoundary(self)


class BoxBoundary(AbstractSurface):
    """The faces of a box, each with as many points as its area deserves; `Box.boundary()` makes it.

    **Arguments:**

    - `box`: the `sg.pinn.Box`. Faces of its periodic coordinates are left out; `ValueError` if all are
      periodic, since then there is no boundary.

    ```python
    sg.pinn.Box([0, 0], [1, 2]).boundary().sample(jax.random.key(0), 10)
    ```
    """

    box: Box

    def __init__(self, box: Box):
        if all(box.periodic):
            raise ValueError("`box` is periodic in every coordinate, and has no boundary.")
        self.box = box

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.box.dim

    @property
    def unit_dim(self) -> int:
        """How many uniform numbers place a point: one for each coordinate, and one that chooses the face."""
        return self.box.dim + 1

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Returns points of the box, each moved along one coordinate to a face."""
        walls, areas = self._walls, self._areas[self._walls]
        edges = jnp.cumsum(jnp.repeat(areas / 2, 2)) / jnp.sum(areas)
        face = jnp.clip(
            jnp.searchsorted(edges, unit[:, 0], side="right", method="compare_all"), 0, edges.shape[0] - 1
        )
        axis = walls[face // 2]
        ends = jnp.where(face % 2 == 0, self.box.low[axis], self.box.high[axis])
        inside = self.box.place(unit[:, 1:])
        return jnp.where(jnp.arange(self.dim)[None] == axis[:, None], ends[:, None], inside)

    @property
    def area(self) -> Float[Array, ""]:
        """The area of all faces together; in two dimensions the length of all sides."""
        return 2 * jnp.sum(self._areas[self._walls])

    def level(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Returns the largest of the signed distances from the faces: negative inside the box, positive
        outside.
        """
        return jnp.max(self._heights(x))

    def normal(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Returns the unit vector that points outward from the face nearest to a point."""
        face = jnp.argmax(self._heights(x))
        sign = jnp.where(face < self.dim, -1.0, 1.0)
        return jnp.where(jnp.arange(self.dim) == face % self.dim, sign, 0.0)

    def _heights(self, x: Float[Array, " d"]) -> Float[Array, " 2*d"]:
        """Signed distances from the lower faces, then from the upper ones; periodic ones are no faces."""
        wall = ~jnp.array(self.box.periodic)
        heights = (self.box.low - x, x - self.box.high)
        return jnp.concatenate([jnp.where(wall, height, -jnp.inf) for height in heights])

    @property
    def _walls(self) -> Int[Array, " w"]:
        return jnp.array([i for i, periodic in enumerate(self.box.periodic) if not periodic])

    @property
    def _areas(self) -> Float[Array, " d"]:
        """The area of a face across each coordinate."""
        lengths = self.box.high - self.box.low
        return jnp.exp(jnp.sum(jnp.log(lengths)) - jnp.log(lengths))


class Sphere(AbstractSurface):
    """The surface of a ball, which in two dimensions is a circle; `Ball.boundary()` makes it.

    **Arguments:**

    - `centre`: one number for each coordinate.
    - `radius`: a positive number, else `ValueError`.

    ```python
    sg.pinn.Sphere([0, 0, 0], radius=2).sample(jax.random.key(0), 10)
    ```
    """

    centre: Float[Array, " d"]
    radius: Float[Array, ""]

    def __init__(self, centre: Given[ArrayLike | Sequence[float], " d"], radius: Given[ArrayLike, ""] = 1.0):
        self.centre = real_array("centre", np.atleast_1d(centre), ndim=1)
        self.radius = _radius(radius)

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.centre.shape[0]

    @property
    def unit_dim(self) -> int:
        """How many uniform numbers place a point: one for each coordinate, which becomes a normal one."""
        return self.dim

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Returns points in the directions of normal vectors, at the distance of the radius from
        the centre.
        """
        return self.centre[None] + self.radius * _directions(unit)

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Returns the corners of the smallest box around the sphere."""
        return self.centre - self.radius, self.centre + self.radius

    @property
    def area(self) -> Float[Array, ""]:
        """The area, 2 π^{d/2} r^{d−1} / Γ(d/2); in two dimensions the circumference."""
        return self.dim * _unit_ball(self.dim) * self.radius ** (self.dim - 1)

    def level(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Returns the signed distance of one point from the sphere: negative inside, positive outside."""
        return jnp.linalg.norm(x - self.centre) - self.radius

    def normal(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Returns the unit vector that points away from the centre."""
        away = x - self.centre
        return away / jnp.maximum(jnp.linalg.norm(away), jnp.finfo(away.dtype).tiny)


class Ball(AbstractShape):
    """A ball in any number of dimensions; in two it is a disc.

    **Arguments:**

    - `centre`: one number for each coordinate.
    - `radius`: a positive number, else `ValueError`.

    ```python
    disc = sg.pinn.Ball([0, 0], radius=1)
    disc.sample(jax.random.key(0), 10)
    disc.boundary()                             # the circle around it
    ```
    """

    surface: Sphere

    def __init__(self, centre: Given[ArrayLike | Sequence[float], " d"], radius: Given[ArrayLike, ""] = 1.0):
        self.surface = Sphere(centre, radius)

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.surface.dim

    @property
    def unit_dim(self) -> int:
        """How many uniform numbers place a point: one for each coordinate, and one for the distance from the
        centre.
        """
        return self.dim + 1

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Returns points at random directions and distances from the centre."""
        distance = self.surface.radius * unit[:, :1] ** (1 / self.dim)
        return self.surface.centre[None] + distance * _directions(unit[:, 1:])

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Returns the corners of the smallest box around the ball."""
        return self.surface.bounds()

    @property
    def volume(self) -> Float[Array, ""]:
        """The volume, π^{d/2} r^d / Γ(d/2 + 1)."""
        return _unit_ball(self.dim) * self.surface.radius**self.dim

    def inside(self, x: Float[Array, " d"]) -> Bool[Array, ""]:
        """Returns whether one point is in the ball; its surface belongs to it."""
        return self.surface.level(x) <= 0

    def surfaces(self, low: Float[Array, " d"], high: Float[Array, " d"]) -> tuple[AbstractSurface, ...]:
        """Returns the sphere around the ball."""
        del low, high
        return (self.surface,)

    def whole_boundary(self) -> Sphere:
        """Returns the sphere around the ball."""
        return self.surface


class SpaceTime(AbstractDomain):
    """All times from `start` to `end` at all points of a domain of space, for equations that evolve in time.

    A point is `(t, x₁, …)`: time is its first coordinate.

    **Arguments:**

    - `space`: the domain of space, such as `sg.pinn.Box([0], [1])`; `TypeError` if it is not a domain.
    - `start`, `end`: the first and the last time; `ValueError` if `end` is before `start`.

    ```python
    domain = sg.pinn.SpaceTime(sg.pinn.Box([0], [1]), start=0, end=2)
    domain.sample(jax.random.key(0), 10)        # rows (t, x)
    domain.initial()                            # all of space at the start
    domain.boundary()                           # the boundary of space at all times
    ```
    """

    space: AbstractDomain
    start: Float[Array, ""]
    end: Float[Array, ""]

    def __init__(self, space: AbstractDomain, start: Given[ArrayLike, ""], end: Given[ArrayLike, ""]):
        if not isinstance(space, AbstractDomain):
            raise TypeError(f"`space` must be a domain such as sg.pinn.Box, got {type(space).__name__}.")
        self.space = space
        self.start = real_scalar("start", start, low=-np.inf)
        self.end = real_scalar("end", end, low=-np.inf)
        if float(self.start) > float(self.end):
            raise ValueError(f"`end` must not be before `start`, got {start!r} to {end!r}.")

    @property
    def dim(self) -> int:
        """How many coordinates a point has, time included."""
        return self.space.dim + 1

    @property
    def unit_dim(self) -> int:
        """How many uniform numbers place a point: as many as in space, and one for time."""
        return self.space.unit_dim + 1

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Returns points (t, x₁, …): time comes first, then the place in space."""
        time = self.start + (self.end - self.start) * unit[:, :1]
        return jnp.concatenate([time, self.space.place(unit[:, 1:])], axis=1)

    @property
    def periods(self) -> dict[int, float]:
        """The coordinates in which space is periodic, each with its period; those of space are 1, 2, …"""
        return {axis + 1: length for axis, length in self.space.periods.items()}

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Returns the first time and the lower corner of space, and the last time and the upper corner."""
        low, high = self.space.bounds()
        return jnp.append(self.start, low), jnp.append(self.end, high)

    @property
    def share(self) -> float | None:
        """The share of candidates that belong to the domain, which is that of space; None where all do."""
        return self.space.share

    def accepts(self, unit: Float[Array, "N q"], points: Float[Array, "N d"]) -> Bool[Array, " N"]:
        """Returns which candidates belong to the domain: those whose place belongs to the domain of space."""
        return self.space.accepts(unit[:, 1:], points[:, 1:])

    def normals(self, points: Float[Array, "N d"]) -> Float[Array, "N d"] | None:
        """Returns the outward normals of space with a zero for time in front, or None where space
        has none.
        """
        found = self.space.normals(points[:, 1:])
        return None if found is None else jnp.pad(found, ((0, 0), (1, 0)))

    def initial(self) -> "SpaceTime":
        """Returns all of space at the first time, the domain for a block with the initial condition."""
        return SpaceTime(self.space, self.start, self.start)

    def boundary(self, *, normals: bool = False, where: Callable | None = None) -> "SpaceTime":
        """Returns the boundary of space at all times; the options are those of the boundary of space.

        `where` sees points of space, without time; a `normal` has a zero for time in front, so that
        `sg.pinn.directional(u, x, normal)` is the derivative across the boundary.
        """
        if not isinstance(self.space, AbstractShape):
            raise TypeError(f"`space` must have a boundary, as Box and Ball have; got {self.space!r}.")
        return SpaceTime(self.space.boundary(normals=normals, where=where), self.start, self.end)


class Points(eqx.Module):
    """Points that you give, such as places of measurements or the nodes of a mesh.

    **Arguments:**

    - `rows`: the points, an array `[N, d]`. A residual sees them one by one. A tree of arrays that share
      their first axis may stand in their place; the residual then receives one entry of each.
    - `columns`: what belongs to each point, as further keywords: arrays with N entries, such as measured
      values or normals. A residual that names one of them as an argument receives its entry for the point.

    `ValueError` if the arrays differ in the length of their first axis.

    ```python
    x, measured = np.linspace(0, 1, 20)[:, None], np.linspace(0, 1, 20) ** 2
    sg.pinn.Block("data", lambda u, x, value: u(x) - value, sg.pinn.Points(x, value=measured))

    angle = np.linspace(0, 6, 50)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)         # from a mesh, with its normals
    wall = sg.pinn.Points(circle, normal=circle)
    sg.pinn.Block("wall", lambda u, x, normal: sg.pinn.directional(u, x, normal), wall)
    ```
    """

    rows: Any

    def __init__(
        self, rows: Given[ArrayLike | Sequence[ArrayLike], "N d"], **columns: Given[ArrayLike, "N ..."]
    ):
        leaves = jax.tree.leaves(rows)
        if not leaves:
            raise ValueError("`rows` must hold at least one array, got an empty tree.")
        self.rows = jax.tree.map(lambda leaf: real_array("rows", leaf, ndim=np.ndim(leaf)), rows)
        if columns:
            x = real_array("rows", rows, ndim=2)
            self.rows = Sites(
                x,
                {
                    name: real_array(name, value, ndim=np.ndim(value), rows=x.shape[0])
                    for name, value in columns.items()
                },
            )
        counts = {leaf.shape[:1] for leaf in jax.tree.leaves(self.rows)}
        if len(counts) != 1 or () in counts:
            raise ValueError(f"`rows` must share the length of their first axis, got {sorted(counts)}.")

    @property
    def count(self) -> int:
        """How many points there are."""
        return jax.tree.leaves(self.rows)[0].shape[0]

    def subset(self, key: PRNGKeyArray, count: int) -> Any:
        """Returns all points where `count` is their number, else so many of them, chosen
        uniformly at random.
        """
        if count == self.count:
            return self.rows
        chosen = random_subset(key, self.count, count)
        return jax.tree.map(lambda leaf: leaf[chosen], self.rows)


def _radius(radius: Any) -> Float[Array, ""]:
    value = real_scalar("radius", radius, low=0)
    if not bool(value > 0):
        raise ValueError(f"`radius` must be above 0, or the ball is empty; got {radius!r}.")
    return value


def _unit_ball(dim: int) -> float:
    """The volume of the unit ball."""
    return math.pi ** (dim / 2) / math.gamma(dim / 2 + 1)


def _directions(unit: Float[Array, "N d"]) -> Float[Array, "N d"]:
    edge = jnp.finfo(unit.dtype).eps
    normal = ndtri(jnp.clip(unit, edge, 1 - edge))
    if unit.shape[1] == 1:
        return jnp.where(unit < 0.5, -1.0, 1.0)
    length = jnp.linalg.norm(normal, axis=1, keepdims=True)
    # The middle of the cube has no direction.
    return jnp.where(length > 0, normal, 1.0) / jnp.where(length > 0, length, np.sqrt(unit.shape[1]))
