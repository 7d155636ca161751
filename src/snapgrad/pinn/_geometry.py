"""Shapes that combine: union, intersection and difference, and where the boundary of the result lies."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from .._checks import Given
from ._drawing import AbstractDomain, surveyed


class AbstractBoundary(AbstractDomain):
    """A boundary: points with an area and an outward normal."""

    @property
    @abc.abstractmethod
    def area(self) -> Float[Array, ""]:
        """The area: a length in two dimensions, a number of points in one."""

    @abc.abstractmethod
    def normal(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Returns the unit vector that points outward at one point of the boundary."""


class AbstractSurface(AbstractBoundary):
    """The boundary of a simple shape, the image of a cube."""

    @abc.abstractmethod
    def level(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Returns a number that is negative inside the shape and positive outside; near the surface its size
        is the distance from it.
        """


class AbstractShape(AbstractDomain):
    """A region with a boundary, which combines with others: `a | b`, `a & b`, `a - b`."""

    @abc.abstractmethod
    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Returns the corners of a box around the shape, infinite where it has no bound."""

    @property
    @abc.abstractmethod
    def volume(self) -> Float[Array, ""]:
        """The volume of the shape: an area in two dimensions, a length in one."""

    @abc.abstractmethod
    def inside(self, x: Float[Array, " d"]) -> Bool[Array, ""]:
        """Returns whether one point is in the shape."""

    @abc.abstractmethod
    def surfaces(self, low: Float[Array, " d"], high: Float[Array, " d"]) -> tuple[AbstractSurface, ...]:
        """Returns the surfaces of the simple shapes it is made of, as far as they lie between `low` and
        `high`.
        """

    @abc.abstractmethod
    def whole_boundary(self) -> AbstractBoundary:
        """Returns all of the boundary."""

    def contains(
        self, x: Given[ArrayLike | Sequence[float] | Sequence[Sequence[float]], "*N d"]
    ) -> Bool[Array, "*N"]:
        """Returns whether points are in the shape: for one point `[d]`, or for each of an array `[..., d]`.

        `ValueError` if they have another number of coordinates.
        """
        x = jnp.asarray(x, float)
        if x.ndim == 0 or x.shape[-1] != self.dim:
            raise ValueError(f"`x` must hold points of {self.dim} coordinates, got shape {x.shape}.")
        return jax.vmap(self.inside)(x.reshape(-1, self.dim)).reshape(x.shape[:-1])

    def boundary(self, *, normals: bool = False, where: Callable | None = None) -> AbstractDomain:
        """Returns the boundary of the shape, or a part of it.

        - `normals`: whether residuals receive the outward normal at a point, by the keyword `normal`.
        - `where`: a function of a point that says whether it belongs to the part, such as
          `lambda x: x[0] < 1e-9` for the side on the left.
        """
        return part(self.whole_boundary(), normals, where)

    def __or__(self, other: "AbstractShape") -> "Combination":
        """All points of either."""
        return _combined("union", self, other)

    def __and__(self, other: "AbstractShape") -> "Combination":
        """All points of both."""
        return _combined("intersection", self, other)

    def __sub__(self, other: "AbstractShape") -> "Combination":
        """The points of this one that are not in the other."""
        return _combined("difference", self, other)


def _combined(kind: Any, first: AbstractShape, second: Any) -> Any:
    return Combination(kind, first, second) if isinstance(second, AbstractShape) else NotImplemented


class Combination(AbstractShape):
    """Two shapes combined: the operators `a | b`, `a & b` and `a - b` make it.

    **Arguments:**

    - `kind`: `"union"`, `"intersection"` or `"difference"`.
    - `first`, `second`: the two shapes, which may be combinations themselves.

    Points are sought in a box around the shape: `ValueError` if the shape fills less than 0.2 % of that box,
    since too few of them would be found. Parts of the boundary that two shapes share count once.

    ```python
    plate = sg.pinn.Box([0, 0], [2, 1]) - sg.pinn.Ball([1, 0.5], radius=0.2)
    plate.contains(jnp.array([1.0, 0.5]))                             # False
    plate.sample(jax.random.key(0), 100)                              # 100 points outside the hole
    plate.boundary().sample(jax.random.key(0), 100)                   # points of the sides and the circle
    plate.volume, plate.boundary().area                               # about 2 − 0.04π and 6 + 0.4π
    ```
    """

    kind: Literal["union", "intersection", "difference"] = eqx.field(static=True)
    first: AbstractShape
    second: AbstractShape
    low: Float[Array, " d"]
    high: Float[Array, " d"]
    filled: float = eqx.field(static=True)

    def __init__(
        self,
        kind: Literal["union", "intersection", "difference"],
        first: AbstractShape,
        second: AbstractShape,
    ):
        if first.dim != second.dim:
            raise ValueError(
                f"shapes must have the same number of coordinates to be combined, got {first.dim} and "
                f"{second.dim}."
            )
        self.kind, self.first, self.second = kind, first, second
        (low, high), (other_low, other_high) = first.bounds(), second.bounds()
        if kind == "union":
            low, high = jnp.minimum(low, other_low), jnp.maximum(high, other_high)
        elif kind == "intersection":
            low, high = jnp.maximum(low, other_low), jnp.minimum(high, other_high)
        self.low, self.high = low, high
        if np.any(np.asarray(low) >= np.asarray(high)):
            raise ValueError("the intersection of the two shapes is empty: the boxes around them are apart.")
        self.filled = 1.0
        if self._bounded:
            self.filled = surveyed(self, f"the {kind} of the two shapes")

    @property
    def _bounded(self) -> bool:
        # Whether bounds are finite is known when the shape is made; inside a trace it has been made already.
        ends = (self.low, self.high)
        return any(isinstance(end, Tracer) for end in ends) or bool(np.all(np.isfinite(ends)))

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.first.dim

    @property
    def unit_dim(self) -> int:
        """How many uniform numbers place a candidate: one for each coordinate."""
        return self.dim

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Returns the corners of a box around the shape, infinite where it has no bound."""
        return self.low, self.high

    @property
    def periods(self) -> dict[int, float]:
        """The coordinates in which the shape is periodic: those of both shapes; of a difference, those of the
        first.
        """
        first, second = self.first.periods, self.second.periods
        if self.kind == "difference":
            return first
        return {axis: length for axis, length in first.items() if second.get(axis) == length}

    @property
    def volume(self) -> Float[Array, ""]:
        """The volume, to about three digits."""
        return self.filled * jnp.prod(self.high - self.low)

    @property
    def share(self) -> float:
        """The share of candidates that belong to the shape: how much of the box around it it fills."""
        return self.filled

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Returns points of the box around the shape, the candidates; `ValueError` where there is no such
        box.
        """
        _check_bounded(self)
        return self.low[None] + (self.high - self.low)[None] * unit

    def accepts(self, unit: Float[Array, "N q"], points: Float[Array, "N d"]) -> Bool[Array, " N"]:
        """Returns which candidates are inside the shape."""
        del unit
        return jax.vmap(self.inside)(points)

    def inside(self, x: Float[Array, " d"]) -> Bool[Array, ""]:
        """Returns whether one point is in the combination of the two shapes."""
        first, second = self.first.inside(x), self.second.inside(x)
        if self.kind == "union":
            return first | second
        return first & (second if self.kind == "intersection" else ~second)

    def surfaces(self, low: Float[Array, " d"], high: Float[Array, " d"]) -> tuple[AbstractSurface, ...]:
        """Returns the surfaces of both shapes."""
        return (*self.first.surfaces(low, high), *self.second.surfaces(low, high))

    def whole_boundary(self) -> "Boundary":
        """Returns all of the boundary; `ValueError` where the shape has no bounds."""
        _check_bounded(self)
        return Boundary(self)


class Boundary(AbstractBoundary):
    """The boundary of combined shapes; their `boundary()` makes it.

    **Arguments:**

    - `shape`: the `sg.pinn.Combination` whose boundary it is.

    Candidates for points come from the surfaces of all shapes. One is on the boundary of the result if one
    side of its surface is inside and the other is not; where surfaces coincide, the first of them counts.

    ```python
    ring = sg.pinn.Ball([0, 0], 2) - sg.pinn.Ball([0, 0], 1)
    ring.boundary().sample(jax.random.key(0), 10)                     # points of both circles
    ring.boundary().normal(jnp.array([1.0, 0.0]))                     # [−1, 0]: into the hole
    ```
    """

    shape: Combination
    pieces: tuple[AbstractSurface, ...]
    found: float = eqx.field(static=True)

    def __init__(self, shape: Combination):
        self.shape = shape
        self.pieces = shape.surfaces(*shape.bounds())
        if not self.pieces:
            raise ValueError("the shape is periodic in every coordinate, and has no boundary.")
        self.found = surveyed(self, "the boundary of the shape")

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.shape.dim

    @property
    def unit_dim(self) -> int:
        """How many uniform numbers place a point: one chooses the surface, the others a point of it."""
        return 1 + max(piece.unit_dim for piece in self.pieces)

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Returns the corners of the box around the shape."""
        return self.shape.bounds()

    @property
    def share(self) -> float:
        """The share of candidates that belong to the boundary: how much of all surfaces is boundary."""
        return self.found

    @property
    def area(self) -> Float[Array, ""]:
        """The area, to about three digits."""
        return self.found * jnp.sum(jnp.stack([piece.area for piece in self.pieces]))

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Returns points, each of one of the surfaces; they are candidates for points of the boundary."""
        placed = jnp.stack([piece.place(unit[:, 1 : 1 + piece.unit_dim]) for piece in self.pieces])
        return placed[self._piece(unit), jnp.arange(unit.shape[0])]

    def accepts(self, unit: Float[Array, "N q"], points: Float[Array, "N d"]) -> Bool[Array, " N"]:
        """Returns which candidates are on the boundary.

        Where surfaces coincide, only those of the first are.
        """
        levels = jnp.stack([jax.vmap(piece.level)(points) for piece in self.pieces])
        owner = jnp.argmax(jnp.abs(levels) < self._tolerance, axis=0)
        below, above = jax.vmap(self._sides)(points)[1:]
        return (owner == self._piece(unit)) & (below != above)

    def normal(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Returns the unit vector that points outward at one point of the boundary."""
        normal, below, _ = self._sides(x)
        return jnp.where(below, normal, -normal)

    def _sides(self, x: Float[Array, " d"]) -> tuple[Array, Array, Array]:
        """The normal of the nearest surface, and whether the points just below and above it are inside."""
        nearest = jnp.argmin(jnp.abs(jnp.stack([piece.level(x) for piece in self.pieces])))
        normal = jnp.stack([piece.normal(x) for piece in self.pieces])[nearest]
        step = self._tolerance * normal
        return normal, self.shape.inside(x - step), self.shape.inside(x + step)

    def _piece(self, unit: Float[Array, "N q"]) -> Array:
        edges = jnp.cumsum(jnp.stack([piece.area for piece in self.pieces]))
        chosen = jnp.searchsorted(edges / edges[-1], unit[:, 0], side="right", method="compare_all")
        return jnp.clip(chosen, 0, len(self.pieces) - 1)

    @property
    def _tolerance(self) -> Float[Array, ""]:
        """Far above round-off, far below anything seen: 4e-11 of the size in float64."""
        low, high = self.shape.bounds()
        size = jnp.max(jnp.maximum(jnp.abs(low), jnp.abs(high)))
        return size * float(jnp.finfo(size.dtype).eps) ** (2 / 3)


class BoundaryPart(AbstractDomain):
    """A boundary with its normals, or a part of one; `boundary(normals=True, where=...)` makes it.

    **Arguments:**

    - `whole`: the boundary of which it is a part.
    - `where`: a function of a point that says whether it belongs to the part; None for the whole boundary.
    - `oriented`: whether points come with their outward normals, in a column `normal`.

    `ValueError` if `where` chooses nothing, or so little that no point of it is found.

    ```python
    channel = sg.pinn.Box([0, 0], [2, 1])
    inlet = channel.boundary(where=lambda x: x[0] < 1e-9, normals=True)
    inlet.sample(jax.random.key(0), 10).columns["normal"]             # ten times [−1, 0]
    inlet.area                                                        # about 1
    ```
    """

    whole: AbstractBoundary
    where: Callable | None = eqx.field(static=True)
    oriented: bool = eqx.field(static=True)
    found: float | None = eqx.field(static=True)

    def __init__(self, whole: AbstractBoundary, where: Callable | None, oriented: bool):
        self.whole, self.where, self.oriented = whole, where, oriented
        self.found = whole.share
        if where is not None:
            self.found = surveyed(self, "the part of the boundary that `where` chooses")

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.whole.dim

    @property
    def unit_dim(self) -> int:
        """How many uniform numbers place a point, which is as many as for all of the boundary."""
        return self.whole.unit_dim

    @property
    def share(self) -> float | None:
        """The share of candidates that belong to the part; None where all of them do."""
        return self.found

    @property
    def area(self) -> Float[Array, ""]:
        """The area of the part, to about three digits."""
        whole = 1.0 if self.whole.share is None else self.whole.share
        return self.whole.area * (1.0 if self.found is None else self.found) / whole

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Returns points of all of the boundary, which are candidates for points of the part."""
        return self.whole.place(unit)

    def accepts(self, unit: Float[Array, "N q"], points: Float[Array, "N d"]) -> Bool[Array, " N"]:
        """Returns which candidates are on the boundary and chosen by `where`."""
        found = self.whole.accepts(unit, points)
        if self.where is None:
            return found
        chosen = jnp.asarray(jax.vmap(self.where)(points))
        if chosen.shape != found.shape or chosen.dtype != bool:
            raise TypeError(
                f"`where` must return true or false for one point, got shape {chosen.shape[1:]} and dtype "
                f"{chosen.dtype}."
            )
        return found & chosen

    def normals(self, points: Float[Array, "N d"]) -> Float[Array, "N d"] | None:
        """Returns outward normals where residuals are to receive them, else None."""
        return jax.vmap(self.whole.normal)(points) if self.oriented else None


def part(whole: AbstractBoundary, normals: bool, where: Callable | None) -> AbstractDomain:
    """A boundary as it is, or with its normals, or a part of it."""
    return BoundaryPart(whole, where, normals) if normals or where is not None else whole


def _check_bounded(shape: Combination) -> None:
    if not shape._bounded:
        raise ValueError(
            "the shape has no bounds, so no points can be drawn from it: intersect it with a box, as in "
            "shape & sg.pinn.Box(low, high)."
        )
