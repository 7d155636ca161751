"""What a solution looks like: a line in one dimension, else a plane through the middle of the domain."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import report
from .._files import write_atomic
from ._domains import Points, SpaceTime
from ._drawing import AbstractDomain
from ._geometry import AbstractShape
from ._problem import PINN

GRID = 101
"""Points on each side of a picture."""


def drawn(panels: Callable[[], list[report.Draw]], path: str | os.PathLike[str] | None) -> Any:
    """A figure of these panels, also stored at `path`."""
    kind = None if path is None else Path(path).suffix.removeprefix(".")
    if kind not in (None, "svg", "png", "pdf"):
        raise ValueError(f"`path` must end with .svg, .png or .pdf, got {str(path)!r}.")
    draws = panels()
    if not draws:
        raise ValueError("there is no domain to draw: the first block of the problem is on given points.")
    figure = report.figure(draws)
    if path is not None and kind is not None:
        write_atomic(Path(path), report.as_bytes(figure, kind))
    return figure


def pictures(
    problem: PINN, solution: Callable, domain: AbstractDomain | Points | None = None
) -> list[report.Draw]:
    """Panels with each component of a solution and, where the solution is known, its error.

    The domain is that of the first block; where that is on given points there are none.
    """
    domain = problem.blocks[0].domain if domain is None else domain
    if isinstance(domain, Points):
        return []
    low, high = (np.asarray(end) for end in domain.bounds())
    axes = [np.linspace(low[i], high[i], GRID) for i in range(min(2, len(low)))]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    middle = (low + high)[len(axes) :] / 2
    where = np.concatenate([grid, np.tile(middle, (len(grid), 1))], axis=1)
    hidden = ~_inside(domain, where)
    found = np.asarray(solution(jnp.asarray(where)), float)
    names = _names(domain)
    parts = {"u": found} if found.ndim == 1 else {f"u[{i}]": part for i, part in enumerate(found.T)}
    if problem.exact is not None and problem.measured is None:
        exact = np.asarray(jax.vmap(problem.exact)(where), float).reshape(found.shape)
        errors = found - exact
        parts |= (
            {"error": errors}
            if found.ndim == 1
            else {f"error of u[{i}]": part for i, part in enumerate(errors.T)}
        )
    return [_panel(axes, np.where(hidden, np.nan, part), name, names) for name, part in parts.items()]


@eqx.filter_jit  # of all its arguments: weights that are constants of a program are folded while it compiles
def everywhere(solution: Callable, where: Float[Array, "N d"]) -> Array:
    """A solution at many points."""
    return solution(where)


def _panel(axes: list[np.ndarray], values: np.ndarray, title: str, names: list[str]) -> report.Draw:
    def draw(ax: Any) -> None:
        if len(axes) == 1:
            ax.plot(axes[0], values, color=report.BLUE)
        else:
            shape = np.ma.masked_invalid(values.reshape(GRID, GRID))
            image = ax.pcolormesh(*axes, shape.T, shading="nearest", rasterized=True)
            ax.figure.colorbar(image, ax=ax)
            ax.set_ylabel(names[1])
            if names[0] != "t":  # in space, circles are round
                ax.set_aspect("equal")
        ax.grid(False)
        ax.set(title=title, xlabel=names[0])

    return draw


def _inside(domain: AbstractDomain, where: np.ndarray) -> np.ndarray:
    """Which points of a grid belong to a domain, if it can tell."""
    if isinstance(domain, SpaceTime):
        return _inside(domain.space, where[:, 1:])
    if isinstance(domain, AbstractShape):
        return np.asarray(eqx.filter_jit(domain.contains)(where))
    return np.ones(len(where), bool)


def _names(domain: AbstractDomain) -> list[str]:
    return ["t", "x"] if isinstance(domain, SpaceTime) else ["x", "y"]
