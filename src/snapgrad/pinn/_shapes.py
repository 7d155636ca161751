"""Polygons and half-spaces."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from .._checks import Given, real_array
from ._drawing import LEAST_SHARE
from ._geometry import AbstractShape, AbstractSurface


class HalfSpace(AbstractShape):
    """All points on one side of a plane (in two dimensions, of a line), to cut other shapes with.

    **Arguments:**

    - `point`: any point of the plane.
    - `normal`: a vector at right angles to the plane, which points out of the half-space.

    It has no bounds, so that drawing points from it alone raises `ValueError`; combine it with a shape that
    has.

    ```python
    disc = sg.pinn.Ball([0, 0], 1)
    half = disc & sg.pinn.HalfSpace([0, 0], normal=[0, 1])            # the lower half of the disc
    half.volume                                                       # about π/2
    ```
    """

    point: Float[Array, " d"]
    direction: Float[Array, " d"]

    def __init__(
        self,
        point: Given[ArrayLike | Sequence[float], " d"],
        normal: Given[ArrayLike | Sequence[float], " d"],
    ):
        self.point = real_array("point", np.atleast_1d(point), ndim=1)
        normal = real_array("normal", np.atleast_1d(normal), ndim=1, rows=self.point.shape[0])
        length = float(np.linalg.norm(np.asarray(normal)))
        if length == 0:
            raise ValueError("`normal` must have a direction, got zeros.")
        self.direction = normal / length

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.point.shape[0]

    @property
    def unit_dim(self) -> int:
        """How many uniform numbers would place a point: one for each coordinate."""
        return self.dim

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Returns the bounds, which are infinite but for a plane across one coordinate."""
        across = jnp.abs(self.direction) == 1
        high = jnp.where(across & (self.direction > 0), self.point, jnp.inf)
        return jnp.where(across & (self.direction < 0), self.point, -jnp.inf), high

    @property
    def volume(self) -> Float[Array, ""]:
        """The volume, which is infinite."""
        return jnp.asarray(jnp.inf)

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Raises `ValueError`: a half-space has no end, so that no point of it can be uniform."""
        raise _unbounded()

    def inside(self, x: Float[Array, " d"]) -> Bool[Array, ""]:
        """Returns whether one point is on the inner side of the plane, or on it."""
        return self.direction @ (x - self.point) <= 0

    def surfaces(self, low: Float[Array, " d"], high: Float[Array, " d"]) -> tuple[AbstractSurface, ...]:
        """Returns a piece of the plane that covers the box from `low` to `high`."""
        return (Plane(self, low, high),)

    def whole_boundary(self) -> "Plane":
        """Raises `ValueError`: a plane has no end, so that no point of it can be uniform."""
        raise _unbounded()


class Plane(AbstractSurface):
    """A square piece of a half-space's plane."""

    half: HalfSpace
    centre: Float[Array, " d"]
    basis: Float[Array, "p d"]

    def __init__(self, half: HalfSpace, low: Float[Array, " d"], high: Float[Array, " d"]):
        self.half = half
        middle = (low + high) / 2
        self.centre = middle - (half.direction @ (middle - half.point)) * half.direction
        # The other rows of V are orthogonal to the normal; the square covers the ball around the box.
        along = np.linalg.svd(np.asarray(half.direction)[None])[2][1:]
        self.basis = jnp.asarray(along * np.linalg.norm(np.asarray(high - low)), half.direction.dtype)

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.half.dim

    @property
    def unit_dim(self) -> int:
        """One number less than coordinates; a point of a line needs none."""
        return self.dim - 1

    @property
    def area(self) -> Float[Array, ""]:
        """That of the square."""
        return jnp.prod(jnp.linalg.norm(self.basis, axis=1))

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """A combination of its sides."""
        return self.centre[None] + (unit - 0.5) @ self.basis

    def level(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The signed distance."""
        return self.half.direction @ (x - self.half.point)

    def normal(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The same everywhere."""
        del x
        return self.half.direction


class Polygon(AbstractShape):
    """The inside of a polygon.

    **Arguments:**

    - `vertices`: the corners `[n, 2]` in the order in which the edges connect them; the last is connected
      with the first.

    `ValueError` if edges cross or touch each other, or two vertices in a row coincide.

    ```python
    wedge = sg.pinn.Polygon([[0, 0], [2, 0], [2, 1], [1, 1], [0, 2]])
    wedge.sample(jax.random.key(0), 100)
    wedge.volume, wedge.boundary().area                               # its area and its circumference
    ```
    """

    edges: "PolygonBoundary"
    filled: float = eqx.field(static=True)

    def __init__(self, vertices: Given[ArrayLike | Sequence[Sequence[float]], "V 2"]):
        vertices = real_array("vertices", vertices, ndim=2)
        if vertices.shape[1] != 2 or vertices.shape[0] < 3:
            raise ValueError(f"`vertices` must be an array [n, 2] with n ≥ 3, got shape {vertices.shape}.")
        corners = np.asarray(vertices)
        _check_simple(corners)
        area = _shoelace(corners)
        if area < 0:  # clockwise
            vertices, area = vertices[::-1], -area
        self.edges = PolygonBoundary(vertices)
        self.filled = area / float(np.prod(np.ptp(corners, axis=0)))
        if self.filled < LEAST_SHARE:
            raise ValueError(
                f"`vertices` describe a polygon that covers less than {LEAST_SHARE:.1%} of the box around "
                f"it; turn it along an axis, or describe it by smaller parts."
            )

    @property
    def dim(self) -> int:
        """How many coordinates a point has: two."""
        return 2

    @property
    def unit_dim(self) -> int:
        """How many uniform numbers place a candidate: one for each coordinate."""
        return 2

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Returns the corners of the smallest box around the polygon."""
        return jnp.min(self.edges.vertices, axis=0), jnp.max(self.edges.vertices, axis=0)

    @property
    def volume(self) -> Float[Array, ""]:
        """The area of the polygon."""
        low, high = self.bounds()
        return self.filled * jnp.prod(high - low)

    @property
    def share(self) -> float:
        """The share of candidates that belong to the polygon: how much of the box around it it fills."""
        return self.filled

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Returns points of the box around the polygon, which are candidates for points of it."""
        low, high = self.bounds()
        return low[None] + (high - low)[None] * unit

    def accepts(self, unit: Float[Array, "N q"], points: Float[Array, "N d"]) -> Bool[Array, " N"]:
        """Returns which candidates are inside the polygon."""
        del unit
        return self.contains(points)

    def inside(self, x: Float[Array, " d"]) -> Bool[Array, ""]:
        """Returns whether one point is in the polygon: whether a ray from it crosses an odd
        number of edges.
        """
        return self.edges.encloses(x)

    def surfaces(self, low: Float[Array, " d"], high: Float[Array, " d"]) -> tuple[AbstractSurface, ...]:
        """Returns the edges of the polygon."""
        del low, high
        return (self.edges,)

    def whole_boundary(self) -> "PolygonBoundary":
        """Returns the edges of the polygon."""
        return self.edges


class PolygonBoundary(AbstractSurface):
    """The edges of a polygon; `Polygon.boundary()` makes it.

    **Arguments:**

    - `vertices`: the corners `[n, 2]` in anticlockwise order, which is not checked here; `sg.pinn.Polygon`
      takes them in either order.

    ```python
    sg.pinn.Polygon([[0, 0], [1, 0], [0, 1]]).boundary().sample(jax.random.key(0), 10)
    ```
    """

    vertices: Float[Array, "n 2"]

    def __init__(self, vertices: Float[Array, "n 2"]):
        self.vertices = vertices

    @property
    def dim(self) -> int:
        """How many coordinates a point has: two."""
        return 2

    @property
    def unit_dim(self) -> int:
        """How many uniform numbers place a point: one, which says how far along the edges it is."""
        return 1

    @property
    def area(self) -> Float[Array, ""]:
        """The length of all edges, the circumference of the polygon."""
        return jnp.sum(self._lengths)

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Returns the points at these distances along the edges."""
        ends = jnp.cumsum(self._lengths)
        distance = unit[:, 0] * ends[-1]
        edge = jnp.searchsorted(ends, distance, side="right", method="compare_all")
        edge = jnp.clip(edge, 0, ends.shape[0] - 1)
        along = (distance - ends[edge] + self._lengths[edge]) / self._lengths[edge]
        return self.vertices[edge] + along[:, None] * self._sides[edge]

    def level(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Returns the signed distance of one point from the edges: negative inside the polygon."""
        distance = jnp.min(self._distances(x))
        return jnp.where(self.encloses(x), -distance, distance)

    def normal(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Returns the unit vector that points outward from the edge nearest to a point."""
        nearest = jnp.argmin(self._distances(x))
        side = self._sides[nearest] / self._lengths[nearest]
        return jnp.stack([side[1], -side[0]])

    def encloses(self, x: Float[Array, " d"]) -> Bool[Array, ""]:
        """Returns whether a point is inside the polygon: whether a ray from it crosses an odd number of
        edges.
        """
        start, end = self.vertices, jnp.roll(self.vertices, -1, axis=0)
        spans = (start[:, 1] > x[1]) != (end[:, 1] > x[1])
        rise = jnp.where(spans, end[:, 1] - start[:, 1], 1.0)
        meets = start[:, 0] + (x[1] - start[:, 1]) / rise * (end[:, 0] - start[:, 0])
        return jnp.sum(spans & (x[0] < meets)) % 2 == 1

    def _distances(self, x: Float[Array, " d"]) -> Float[Array, " n"]:
        """From each edge."""
        away, sides = x[None] - self.vertices, self._sides
        along = jnp.clip(jnp.sum(away * sides, axis=1) / self._lengths**2, 0, 1)
        return jnp.linalg.norm(away - along[:, None] * sides, axis=1)

    @property
    def _sides(self) -> Float[Array, "n 2"]:
        return jnp.roll(self.vertices, -1, axis=0) - self.vertices

    @property
    def _lengths(self) -> Float[Array, " n"]:
        return jnp.linalg.norm(self._sides, axis=1)


def _shoelace(corners: Float[np.ndarray, "n 2"]) -> float:
    """The area, positive for corners in anticlockwise order."""
    corners = corners - corners[:1]
    following = np.roll(corners, -1, axis=0)
    return float(np.sum(corners[:, 0] * following[:, 1] - following[:, 0] * corners[:, 1]) / 2)


def _check_simple(corners: Float[np.ndarray, "n 2"]) -> None:
    """`ValueError` where edges meet other than at their common vertex."""
    following = np.roll(corners, -1, axis=0)
    short = np.flatnonzero(np.all(corners == following, axis=1))
    if short.size:
        raise ValueError(f"`vertices` must differ from one to the next, got {corners[short[0]]} twice.")

    def turn(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        first, second = b - a, c - a
        return np.sign(first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0])

    a, b, c, d = corners[:, None], following[:, None], corners[None], following[None]
    crossing = (turn(a, b, c) * turn(a, b, d) <= 0) & (turn(c, d, a) * turn(c, d, b) <= 0)
    for axis in (0, 1):  # edges on one line meet only if their shadows do
        lower, upper = np.minimum(a, b)[..., axis], np.maximum(a, b)[..., axis]
        crossing &= (lower <= np.maximum(c, d)[..., axis]) & (np.minimum(c, d)[..., axis] <= upper)
    index = np.arange(len(corners))
    apart = (index[:, None] - index[None]) % len(corners)
    first, second = np.nonzero(crossing & (apart > 1) & (apart < len(corners) - 1))
    if first.size:
        raise ValueError(
            f"`vertices` must describe edges that do not meet; edges {first[0]} and {second[0]}, from "
            f"{corners[first[0]]} and {corners[second[0]]}, do."
        )


def _unbounded() -> ValueError:
    return ValueError(
        "a half-space has no bounds, so no points can be drawn from it: intersect it with a shape that has "
        "some, as in sg.pinn.Ball([0, 0], 1) & sg.pinn.HalfSpace([0, 0], normal=[0, 1])."
    )
