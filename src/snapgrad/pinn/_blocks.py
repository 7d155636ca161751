"""One condition of a PINN: a residual on a sampled domain."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import Given, positive_int, real_scalar
from .._contracts import Params
from ._domains import Box, Points, SpaceTime
from ._drawing import AbstractDomain, Sites, unit_grid
from ._network import FULL_PRECISION, evaluate
from ._weak import Weak


class Block(eqx.Module):
    """One condition of a PINN: `residual(u, x)` must vanish at every point `x` of a domain.

    **Arguments:**

    - `name`: what the block is called in batches and error messages.
    - `residual`: a function of `u`, itself an ordinary function of a point, and of one point `x`. It returns
      one number, or a vector of them. It may name further arguments: the problem's unknown coefficients and
      fields, `normal` on a boundary with normals, and the columns of `sg.pinn.Points`. An equinox module may
      hold arrays, such as coefficients: others of the same shape need no new compilation.
    - `domain`: where the condition holds, such as `sg.pinn.Box`, its `boundary()`, or `sg.pinn.Points`.
    - `points`: how many points each step draws; by default all of `sg.pinn.Points`.
    - `weight`: the factor of the block's mean square in the loss.
    - `grid`: for a box, or a box in time: how many points along each coordinate. Then each step has a grid
      in place of scattered points, of Gauss–Legendre nodes, evenly spaced where the domain is periodic. For
      `sg.pinn.Series` and `sg.pinn.Polynomial` that is far more accurate: what they cannot represent does
      not spoil what they can. Take half as many again as waves, on both sides, or as the degree.
    - `weak`: a `sg.pinn.Weak`, with which the residual is asked against test functions instead of at points,
      which it chooses itself. For boxes.

    ```python
    box = sg.pinn.Box([0, 0], [1, 1])
    sg.pinn.Block("interior", lambda u, x: sg.pinn.laplacian(u, x) + jnp.sin(x[0]), box, points=900)
    sg.pinn.Block("boundary", lambda u, x: u(x), box.boundary(), points=120, weight=10)

    sides = box.boundary(normals=True, where=lambda x: x[1] < 1e-9)
    sg.pinn.Block("flux", lambda u, x, normal: sg.pinn.directional(u, x, normal) - x[0], sides, points=40)
    ```
    """

    name: str = eqx.field(static=True)
    residual: Callable
    domain: AbstractDomain | Points
    points: int = eqx.field(static=True)
    weight: Float[Array, ""]
    grid: tuple[int, ...] | None = eqx.field(static=True)
    weak: Weak | None  # with the matrix of its integrals

    def __init__(
        self,
        name: str,
        residual: Callable,
        domain: AbstractDomain | Points,
        points: int | None = None,
        weight: Given[ArrayLike, ""] = 1.0,
        grid: Sequence[int] | None = None,
        weak: Given[Weak | None, ""] = None,
    ):
        if not isinstance(name, str) or not name:
            raise TypeError(f"`name` must be a word such as 'interior', got {name!r}.")
        if not callable(residual):
            raise TypeError(f"`residual` must be a function of (u, x), got {type(residual).__name__}.")
        if not isinstance(domain, AbstractDomain | Points):
            raise TypeError(
                f"`domain` must be a domain such as sg.pinn.Box(low, high) or sg.pinn.Points(x), "
                f"got {type(domain).__name__}."
            )
        if weak is not None:
            if not isinstance(weak, Weak):
                raise TypeError(f"`weak` must be a sg.pinn.Weak, got {type(weak).__name__}.")
            weak = weak.over(domain)  # a Box, then
            nodes = (weak.nodes,) * cast(Box, domain).dim
            if grid not in (None, nodes):
                raise ValueError(f"`grid` must be left out where `weak` is given, got {grid!r}.")
            grid = nodes
        self.weak = weak
        self.grid = None if grid is None else _grid(grid, domain)
        if self.grid is not None:
            if points not in (None, math.prod(self.grid)):
                raise ValueError(
                    f"`points` must be left out where `grid` or `weak` is given, or be "
                    f"{math.prod(self.grid)} for {self.grid}; got {points!r}."
                )
            points = math.prod(self.grid)
        most = domain.count if isinstance(domain, Points) else None
        if points is None:
            if most is None:
                raise ValueError(
                    f"`points` is missing for block {name!r}: say how many to draw for each step."
                )
            points = most
        self.residual = as_tree(residual)
        self.name, self.domain = name, domain
        self.points = positive_int("points", points, most=most, most_name="the number of points given")
        self.weight = real_scalar("weight", weight, low=0)

    def draw(self, key: PRNGKeyArray, spread: bool = True, grid: bool = False) -> Any:
        """Returns points for one step, evenly spread or independent; the given ones where the domain is
        `Points`, with `grid` those of the block's grid where it has one, and always the nodes of a weak form.
        """
        if isinstance(self.domain, Points):
            return self.domain.subset(key, self.points)
        if self.grid is not None and ((grid and spread) or self.weak is not None):
            return self.domain.place(unit_grid(key, self.grid, _even_axes(self.domain)))
        return (self.domain.spread if spread else self.domain.sample)(key, self.points)


def _even_axes(domain: Any) -> tuple[bool, ...]:
    """Which coordinates of a box, or a box in time, have evenly spaced nodes."""
    if not isinstance(domain, SpaceTime):
        return domain.periodic
    space: Any = domain.space
    return False, *space.periodic


def _grid(grid: Any, domain: Any) -> tuple[int, ...]:
    """The numbers of points along each coordinate; `ValueError` where there can be no grid."""
    space: Any = domain.space if isinstance(domain, SpaceTime) else domain
    flat = isinstance(domain, SpaceTime) and not float(domain.end) > domain.start
    if flat or isinstance(domain, Points) or not isinstance(space, Box):
        raise ValueError(
            f"`grid` is for sg.pinn.Box and for sg.pinn.SpaceTime on one, got {type(domain).__name__}."
        )
    counts = tuple(positive_int(f"grid[{i}]", count) for i, count in enumerate(grid))
    if len(counts) != domain.dim:
        raise ValueError(f"`grid` must have one number for each of {domain.dim} coordinates, got {counts}.")
    return counts


def as_tree(fn: Callable | None) -> Any:
    """A tree without leaves for a plain function; the arrays of a module are its leaves."""
    return fn if fn is None or isinstance(fn, eqx.Module | Partial) else Partial(fn)


class Weighted(NamedTuple):
    """Points, and the weight of each in the mean over its block; plain points all have 1/N."""

    points: Any
    weight: Float[Array, " N"]


def weighted(entry: Any) -> Weighted:
    """A block's part of a batch with weights, all of them 1/N where it has none."""
    if isinstance(entry, Weighted):
        return entry
    count = jax.tree.leaves(entry)[0].shape[0]
    return Weighted(entry, jnp.full(count, 1 / count, float))


def points_of(entry: Any) -> Any:
    """The points of a block's part of a batch, weighted or not."""
    return entry.points if isinstance(entry, Weighted) else entry


@eqx.filter_jit  # a problem and its sampler draw alike, by one program
def draw_points(
    blocks: tuple[Block, ...], key: PRNGKeyArray, spread: bool, grid: bool = False
) -> dict[str, Any]:
    """Points for one step, `{block name: points}`."""
    keys = jax.random.split(key, len(blocks))
    return {block.name: block.draw(keys[i], spread, grid) for i, block in enumerate(blocks)}


class Row(eqx.Module):
    """A block's residual as a function of all parameters and one point."""

    network: Any
    fields: dict[str, Any]
    residual: Callable

    @FULL_PRECISION
    def __call__(self, params: Params, x: Any) -> Float[Array, "*o"]:
        """The residual at x."""
        known = self.functions(params)
        known |= params["unknowns"]
        x, columns = (x.x, x.columns) if isinstance(x, Sites) else (x, {})
        return jnp.asarray(self.residual(known.pop("u"), x, **columns, **taken(self.residual, known)))

    def functions(self, params: Params) -> dict[str, Any]:
        """U and the unknown fields as functions of a point."""

        def function(network: Any, weights: Params) -> Callable:
            return lambda y: evaluate(network, weights, y)

        found = {name: function(self.fields[name], params["fields"][name]) for name in self.fields}
        return {"u": function(self.network, params["network"])} | found


def taken(residual: Callable, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given arguments that a residual names; all of them if it takes any."""
    try:
        names = inspect.signature(residual).parameters
    except (TypeError, ValueError):  # some callables do not say
        return dict(given)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in names}
