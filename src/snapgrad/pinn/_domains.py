"""Where points come from: each domain is the image of a unit cube, so that any sequence on it will do."""

import abc
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import positive_int, real_array, real_scalar
from ..linalg import random_subset


class AbstractDomain(eqx.Module):
    """A set of points with a uniform distribution, described as the image of a unit cube.

    A domain of your own says how many coordinates its points have (`dim`), how many uniform numbers place one
    (`unit_dim`), and where they place it (`place`):

    ```python
    class Triangle(sg.pinn.AbstractDomain):
        dim: int = 2
        unit_dim: int = 2

        def place(self, unit):                  # fold the square along its diagonal
            return jnp.where(unit.sum(axis=1, keepdims=True) > 1, 1 - unit, unit)

    Triangle().spread(jax.random.key(0), 100)   # 100 evenly spread points, an array of shape (100, 2)
    ```
    """

    dim: eqx.AbstractVar[int]
    """How many coordinates a point has."""
    unit_dim: eqx.AbstractVar[int]
    """How many uniform numbers place a point."""

    @property
    def periods(self) -> dict[int, float]:
        """The coordinates in which the domain is periodic, and the length of a period: none of them."""
        return {}

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """The corners of a box around the domain: here around a few thousand of its points."""
        points = self.spread(jax.random.key(0), 4096)
        return jnp.min(points, axis=0), jnp.max(points, axis=0)

    @abc.abstractmethod
    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Points of the domain from points of the unit cube, uniform from uniform."""

    def sample(self, key: PRNGKeyArray, count: int) -> Float[Array, "N d"]:
        """Independent uniform points."""
        return self.place(jax.random.uniform(key, (positive_int("count", count), self.unit_dim)))

    def spread(self, key: PRNGKeyArray, count: int) -> Float[Array, "N d"]:
        """Evenly spread points: a Sobol sequence, shifted at random around the unit cube."""
        shift = jax.random.uniform(key, (1, self.unit_dim))
        levels = jnp.asarray(sobol(self.unit_dim, positive_int("count", count)), shift.dtype)
        return self.place((levels + shift) % 1)


@lru_cache(maxsize=32)
def sobol(dim: int, count: int) -> Float[np.ndarray, "N q"]:
    """The first points of a scrambled Sobol sequence, always the same ones, on `count` levels per axis.

    Levels keep every axis evenly filled whatever the count, so that two points on the boundary of an
    interval are its two ends.
    """
    from scipy.stats import qmc  # takes seconds to import, and many uses of the library never come here

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is less even for counts that are no power of two
        points = qmc.Sobol(dim, scramble=True, rng=0).random(count)
    return points.argsort(axis=0).argsort(axis=0) / count


class Box(AbstractDomain):
    """The box of points between `low` and `high`, which hold one number for each coordinate.

    `periodic` says in which coordinates the two ends are the same place, for all of them at once or one by
    one. Such a coordinate has no boundary, and `sg.pinn.network(box)` is periodic in it.

    Raises `ValueError` if the box is empty.

    ```python
    box = sg.pinn.Box([0, -1], [2, 1])
    box.sample(jax.random.key(0), 100)          # 100 independent points, an array of shape (100, 2)
    box.spread(jax.random.key(0), 100)          # the same, evenly spread
    box.boundary()                              # its four sides
    sg.pinn.Box([0, -1], [2, 1], periodic=[True, False]).boundary()      # the lower and the upper one
    ```
    """

    low: Float[Array, " d"]
    high: Float[Array, " d"]
    periodic: tuple[bool, ...] = eqx.field(static=True)

    def __init__(self, low: Any, high: Any, periodic: bool | Sequence[bool] = False):
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
        """The periodic coordinates and their lengths."""
        lengths = np.asarray(self.high - self.low).tolist()
        return {i: length for i, length in enumerate(lengths) if self.periodic[i]}

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """`low` and `high`."""
        return self.low, self.high

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.low.shape[0]

    @property
    def unit_dim(self) -> int:
        """One number for each coordinate."""
        return self.dim

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Scaled and shifted."""
        return self.low[None] + (self.high - self.low)[None] * unit

    def boundary(self) -> "BoxBoundary":
        """Its faces, but for those of periodic coordinates; `ValueError` where none is left."""
        return BoxBoundary(self)


class BoxBoundary(AbstractDomain):
    """The faces of a box, each visited in proportion to its area; `Box.boundary()` makes it.

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
        """One number for each coordinate, and one that chooses the face."""
        return self.box.dim + 1

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """A point of the box, moved along one coordinate to a face."""
        lengths = self.box.high - self.box.low
        walls = jnp.array([i for i, periodic in enumerate(self.box.periodic) if not periodic])
        areas = jnp.exp(jnp.sum(jnp.log(lengths)) - jnp.log(lengths))[walls]
        edges = jnp.cumsum(jnp.repeat(areas / 2, 2)) / jnp.sum(areas)
        face = jnp.clip(
            jnp.searchsorted(edges, unit[:, 0], side="right", method="compare_all"), 0, edges.shape[0] - 1
        )
        axis = walls[face // 2]
        ends = jnp.where(face % 2 == 0, self.box.low[axis], self.box.high[axis])
        inside = self.box.place(unit[:, 1:])
        return jnp.where(jnp.arange(self.dim)[None] == axis[:, None], ends[:, None], inside)


class Sphere(AbstractDomain):
    """The surface of a ball, a circle in two dimensions; `Ball.boundary()` makes it.

    ```python
    sg.pinn.Sphere([0, 0, 0], radius=2).sample(jax.random.key(0), 10)
    ```
    """

    centre: Float[Array, " d"]
    radius: Float[Array, ""]

    def __init__(self, centre: Any, radius: Any = 1.0):
        self.centre = real_array("centre", np.atleast_1d(centre), ndim=1)
        self.radius = _radius(radius)

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.centre.shape[0]

    @property
    def unit_dim(self) -> int:
        """One number for each coordinate, which becomes a normal one."""
        return self.dim

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Directions of normal vectors."""
        return self.centre[None] + self.radius * _directions(unit)

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """The corners of the cube around it."""
        return self.centre - self.radius, self.centre + self.radius


class Ball(AbstractDomain):
    """The points within `radius` of `centre`, in any dimension.

    ```python
    disc = sg.pinn.Ball([0, 0], radius=1)
    disc.sample(jax.random.key(0), 10)
    disc.boundary()                             # the circle around it
    ```
    """

    surface: Sphere

    def __init__(self, centre: Any, radius: Any = 1.0):
        self.surface = Sphere(centre, radius)

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.surface.dim

    @property
    def unit_dim(self) -> int:
        """One number for each coordinate, and one for the distance from the centre."""
        return self.dim + 1

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """A direction and a distance."""
        distance = self.surface.radius * unit[:, :1] ** (1 / self.dim)
        return self.surface.centre[None] + distance * _directions(unit[:, 1:])

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """The corners of the cube around it."""
        return self.surface.bounds()

    def boundary(self) -> Sphere:
        """Its surface."""
        return self.surface


class SpaceTime(AbstractDomain):
    """All times from `start` to `end` at all points of a domain of space; time is the first coordinate.

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

    def __init__(self, space: AbstractDomain, start: Any, end: Any):
        if not isinstance(space, AbstractDomain):
            raise TypeError(f"`space` must be a domain such as sg.pinn.Box, got {type(space).__name__}.")
        self.space = space
        self.start = real_scalar("start", start, low=-np.inf)
        self.end = real_scalar("end", end, low=-np.inf)
        if float(self.start) > float(self.end):
            raise ValueError(f"`end` must not be before `start`, got {start!r} to {end!r}.")

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.space.dim + 1

    @property
    def unit_dim(self) -> int:
        """Those of space, and one for time."""
        return self.space.unit_dim + 1

    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Time, then space."""
        time = self.start + (self.end - self.start) * unit[:, :1]
        return jnp.concatenate([time, self.space.place(unit[:, 1:])], axis=1)

    @property
    def periods(self) -> dict[int, float]:
        """Those of space."""
        return {axis + 1: length for axis, length in self.space.periods.items()}

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Those of time and of space."""
        low, high = self.space.bounds()
        return jnp.append(self.start, low), jnp.append(self.end, high)

    def initial(self) -> "SpaceTime":
        """The domain of space at the start."""
        return SpaceTime(self.space, self.start, self.start)

    def boundary(self) -> "SpaceTime":
        """The boundary of space at all times."""
        if not isinstance(self.space, Box | Ball):
            raise TypeError(f"`space` must have a boundary, as Box and Ball have; got {self.space!r}.")
        return SpaceTime(self.space.boundary(), self.start, self.end)


class Points(eqx.Module):
    """Points that you give: an array `[N, d]`, or a tree of arrays, whose rows a residual sees one by one.

    Raises `ValueError` if the arrays differ in the length of their first axis.

    ```python
    x, measured = np.linspace(0, 1, 20)[:, None], np.linspace(0, 1, 20) ** 2
    sg.pinn.Block("data", lambda u, row: u(row[0]) - row[1], sg.pinn.Points((x, measured)))
    ```
    """

    rows: Any

    def __init__(self, rows: Any):
        leaves = jax.tree.leaves(rows)
        if not leaves:
            raise ValueError("`rows` must hold at least one array, got an empty tree.")
        self.rows = jax.tree.map(lambda leaf: real_array("rows", leaf, ndim=np.ndim(leaf)), rows)
        counts = {leaf.shape[:1] for leaf in jax.tree.leaves(self.rows)}
        if len(counts) != 1 or () in counts:
            raise ValueError(f"`rows` must share the length of their first axis, got {sorted(counts)}.")

    @property
    def count(self) -> int:
        """How many there are."""
        return jax.tree.leaves(self.rows)[0].shape[0]

    def subset(self, key: PRNGKeyArray, count: int) -> Any:
        """All rows, or a uniform subset of them."""
        if count == self.count:
            return self.rows
        chosen = random_subset(key, self.count, count)
        return jax.tree.map(lambda leaf: leaf[chosen], self.rows)


def _radius(radius: Any) -> Float[Array, ""]:
    value = real_scalar("radius", radius, low=0)
    if not bool(value > 0):
        raise ValueError(f"`radius` must be above 0, or the ball is empty; got {radius!r}.")
    return value


def _directions(unit: Float[Array, "N d"]) -> Float[Array, "N d"]:
    edge = jnp.finfo(unit.dtype).eps
    normal = ndtri(jnp.clip(unit, edge, 1 - edge))
    if unit.shape[1] == 1:
        return jnp.where(unit < 0.5, -1.0, 1.0)
    length = jnp.linalg.norm(normal, axis=1, keepdims=True)
    # The middle of the cube has no direction.
    return jnp.where(length > 0, normal, 1.0) / jnp.where(length > 0, length, np.sqrt(unit.shape[1]))
