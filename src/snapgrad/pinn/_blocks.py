"""One condition of a PINN: a residual on a sampled domain."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import positive_int, real_scalar
from .._contracts import Params
from ._domains import AbstractDomain, Points


class Block(eqx.Module):
    """One condition: `residual(u, x)` must vanish on a domain.

    **Arguments:**

    - `name`: what it is called in metrics and errors.
    - `residual`: of `u`, an ordinary function of a point, and a point `x`; a number, or a vector of them.
      Unknown coefficients of the problem arrive by keyword.
    - `domain`: such as `sg.pinn.Box`, its `boundary()`, or `sg.pinn.Points`.
    - `points`: how many a step; by default all of `Points`.
    - `weight`: of its mean square in the loss.

    ```python
    sg.pinn.Block("interior", lambda u, x: sg.pinn.laplacian(u, x) + f(x), box, points=900)
    ```
    """

    name: str = eqx.field(static=True)
    residual: Callable = eqx.field(static=True)
    domain: AbstractDomain | Points
    points: int = eqx.field(static=True)
    weight: Float[Array, ""]

    def __init__(
        self,
        name: str,
        residual: Callable,
        domain: AbstractDomain | Points,
        points: int | None = None,
        weight: Any = 1.0,
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
        most = domain.count if isinstance(domain, Points) else None
        if points is None:
            if most is None:
                raise ValueError(f"`points` is missing for block {name!r}: say how many to draw a step.")
            points = most
        self.name, self.residual, self.domain = name, residual, domain
        self.points = positive_int("points", points, most=most, most_name="the number of points given")
        self.weight = real_scalar("weight", weight, low=0)

    def draw(self, key: PRNGKeyArray, spread: bool = True) -> Any:
        """Points for one step: evenly spread, or independent."""
        if isinstance(self.domain, Points):
            return self.domain.subset(key, self.points)
        return (self.domain.spread if spread else self.domain.sample)(key, self.points)


def draw_points(blocks: tuple[Block, ...], key: PRNGKeyArray, spread: bool) -> dict[str, Any]:
    """Points for one step, `{block name: points}`."""
    keys = jax.random.split(key, len(blocks))
    return {block.name: block.draw(keys[i], spread) for i, block in enumerate(blocks)}


class Row(eqx.Module):
    """A block's residual as a function of all parameters and one point."""

    network: Any
    residual: Callable = eqx.field(static=True)

    def __call__(self, params: Params, x: Any) -> Float[Array, "*o"]:
        """The residual at x."""

        def u(y: Float[Array, " d"]) -> Float[Array, "*o"]:
            return self.network(params["network"], y)

        return jnp.asarray(self.residual(u, x, **params["unknowns"]))
