"""Problems with known solutions, by name: `sg.pinn.zoo("poisson-2d")`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._domains import Box, Points, SpaceTime
from ._network import MLP
from ._operators import derivatives, laplacian
from ._problem import PINN, Block
from ._references import allen_cahn_grid, burgers_grid

PI = np.pi


def zoo(name: str, *, hidden: Sequence[int] | None = None, points: Sequence[int] | None = None) -> PINN:
    """The problem of that name, with the published network and number of points unless you give others.

    **Arguments:**

    - `name`: one of `sg.pinn.NAMES`.
    - `hidden`: widths of the hidden layers.
    - `points`: points a step for each block.
    """
    if name not in _ZOO:
        raise ValueError(f"`name` must be one of {', '.join(NAMES)}; got {name!r}.")
    make, default_hidden, default_points = _ZOO[name]
    counts = tuple(default_points if points is None else points)
    if len(counts) != len(default_points):
        raise ValueError(
            f"`points` must have {len(default_points)} entries for {name}, one for each block; got {counts}."
        )
    return make(tuple(default_hidden if hidden is None else hidden), counts)


def _sin_product(x: Float[Array, " d"]) -> Float[Array, ""]:
    return jnp.prod(jnp.sin(PI * x))


def _cos_sum(x: Float[Array, " d"]) -> Float[Array, ""]:
    return jnp.sum(jnp.cos(PI * x))


def _pair_products(x: Float[Array, " d"]) -> Float[Array, ""]:
    return jnp.sum(x[::2] * x[1::2]) / 1.34  # of about unit norm in ten dimensions


def _square_norm(x: Float[Array, " d"]) -> Float[Array, ""]:
    return jnp.sum(x**2) / 33.47  # of about unit norm in a hundred dimensions


def _poisson(
    dim: int, exact: Callable, source: Callable, hidden: tuple[int, ...], points: tuple[int, ...]
) -> PINN:
    """−Δu = f on the unit cube, u given on its boundary."""
    box = Box(np.zeros(dim), np.ones(dim))
    blocks = [
        Block("interior", lambda u, x: laplacian(u, x) + source(x), box, points[0]),
        Block("boundary", lambda u, x: u(x) - exact(x), box.boundary(), points[1]),
    ]
    return PINN(MLP([dim, *hidden, 1]), blocks, exact)


def _heat(dim: int, exact: Callable, hidden: tuple[int, ...], points: tuple[int, ...]) -> PINN:
    """∂u/∂t = Δu/4 on the unit cube for unit time."""
    domain = SpaceTime(Box(np.zeros(dim), np.ones(dim)), 0, 1)

    def equation(u: Callable, x: Array) -> Array:
        _, gradient, spatial = derivatives(u, x, slice(1, None))
        return gradient[0] - spatial / 4

    blocks = [
        Block("interior", equation, domain, points[0]),
        Block("boundary", lambda u, x: u(x) - exact(x), domain.boundary(), points[1]),
        Block("initial", lambda u, x: u(x) - exact(x), domain.initial(), points[2]),
    ]
    return PINN(MLP([dim + 1, *hidden, 1]), blocks, exact)


def _heat_sin(x: Float[Array, " d"]) -> Float[Array, ""]:
    return jnp.exp(-(PI**2) * (x.shape[0] - 1) / 4 * x[0]) * jnp.prod(jnp.sin(PI * x[1:]))


def _heat_sum(x: Float[Array, " d"]) -> Float[Array, ""]:
    return jnp.exp(-x[0]) * jnp.sum(jnp.sin(2 * x[1:]))


def _helmholtz(hidden: tuple[int, ...], points: tuple[int, ...]) -> PINN:
    """Δu + k²u = f on the unit square, k = 5, u = sin(2πx) sin(πy)."""
    box, wave = Box([0, 0], [1, 1]), 5.0

    def exact(x: Array) -> Array:
        return jnp.sin(2 * PI * x[0]) * jnp.sin(PI * x[1])

    def equation(u: Callable, x: Array) -> Array:
        value, _, laplace = derivatives(u, x)
        return laplace + wave**2 * value - (wave**2 - 5 * PI**2) * exact(x)

    blocks = [
        Block("interior", equation, box, points[0]),
        Block("boundary", lambda u, x: u(x), box.boundary(), points[1]),
    ]
    return PINN(MLP([2, *hidden, 1]), blocks, exact)


def _nonlinear(hidden: tuple[int, ...], points: tuple[int, ...]) -> PINN:
    """−Δu + u³ = f on the unit square, u = sin(πx) sin(πy)."""
    box = Box([0, 0], [1, 1])

    def equation(u: Callable, x: Array) -> Array:
        value, _, laplace = derivatives(u, x)
        exact = _sin_product(x)
        return -laplace + value**3 - 2 * PI**2 * exact - exact**3

    blocks = [
        Block("interior", equation, box, points[0]),
        Block("boundary", lambda u, x: u(x), box.boundary(), points[1]),
    ]
    return PINN(MLP([2, *hidden, 1]), blocks, _sin_product)


def _periodic_in_time(
    equation: Callable, start: Callable, edge: float, grid: tuple[Any, Any], hidden: Any, points: Any
) -> PINN:
    """A reaction or transport equation on −1 ≤ x ≤ 1, 0 ≤ t ≤ 1 with u given at t = 0 and at both ends."""
    domain = SpaceTime(Box([-1], [1]), 0, 1)
    blocks = [
        Block("interior", equation, domain, points[0]),
        Block("boundary", lambda u, x: u(x) - edge, domain.boundary(), points[1]),
        Block("initial", lambda u, x: u(x) - start(x[1]), domain.initial(), points[2]),
    ]
    return PINN(MLP([2, *hidden, 1]), blocks, grid)


def _burgers(hidden: tuple[int, ...], points: tuple[int, ...]) -> PINN:
    """u_t + u u_x = ν u_xx with ν = 0.1/π and u = −sin(πx) at t = 0."""
    viscosity = 0.1 / PI

    def equation(u: Callable, x: Array) -> Array:
        value, (u_t, u_x), u_xx = derivatives(u, x, 1)
        return u_t + value * u_x - viscosity * u_xx

    grid = burgers_grid(viscosity)
    return _periodic_in_time(equation, lambda y: -jnp.sin(PI * y), 0.0, grid, hidden, points)


def _allen_cahn(hidden: tuple[int, ...], points: tuple[int, ...]) -> PINN:
    """u_t = 0.01 u_xx + 2(u − u³), u = −1 at both ends, x² cos(πx) at t = 0."""

    def equation(u: Callable, x: Array) -> Array:
        value, (u_t, _), u_xx = derivatives(u, x, 1)
        return u_t - 0.01 * u_xx - 2 * (value - value**3)

    grid = allen_cahn_grid(0.01, 2.0)
    return _periodic_in_time(equation, lambda y: y**2 * jnp.cos(PI * y), -1.0, grid, hidden, points)


def _fokker_planck(hidden: tuple[int, ...], points: tuple[int, ...]) -> PINN:
    """The log density u of ∂q/∂t = ∇·(xq)/2 + Δq in nine dimensions: a Gaussian of growing width."""
    dim = 9
    domain = SpaceTime(Box(-5 * np.ones(dim), 5 * np.ones(dim)), 0, 1)

    def exact(x: Array) -> Array:
        width = 2 - jnp.exp(-x[0])
        return -jnp.sum(x[1:] ** 2) / (2 * width) - dim / 2 * jnp.log(2 * PI * width)

    def equation(u: Callable, x: Array) -> Array:
        _, gradient, spatial = derivatives(u, x, slice(1, None))
        drift = dim / 2 + jnp.dot(x[1:], gradient[1:]) / 2
        return gradient[0] - drift - spatial - jnp.sum(gradient[1:] ** 2)

    blocks = [
        Block("interior", equation, domain, points[0]),
        Block("initial", lambda u, x: u(x) - exact(x), domain.initial(), points[1]),
    ]
    return PINN(MLP([dim + 1, *hidden, 1]), blocks, exact)


def _inverse(hidden: tuple[int, ...], points: tuple[int, ...]) -> PINN:
    """u_t = κ u_xx with κ = 0.3 unknown, from values of u at scattered points."""
    domain = SpaceTime(Box([0], [1]), 0, 1)
    kappa = 0.3

    def exact(x: Array) -> Array:
        return jnp.exp(-kappa * PI**2 * x[0]) * jnp.sin(PI * x[1])

    def equation(u: Callable, x: Array, diffusivity: Array) -> Array:
        _, gradient, spatial = derivatives(u, x, 1)
        return gradient[0] - diffusivity * spatial

    where = np.random.default_rng(0).uniform(size=(points[1], 2))
    data = Points((where, np.exp(-kappa * PI**2 * where[:, 0]) * np.sin(PI * where[:, 1])))
    blocks = [
        Block("interior", equation, domain, points[0]),
        Block("data", lambda u, row, diffusivity: u(row[0]) - row[1], data),
    ]
    return PINN(MLP([2, *hidden, 1]), blocks, exact, unknowns={"diffusivity": 1.0})


_ZOO: dict[str, tuple[Callable[..., PINN], tuple[int, ...], tuple[int, ...]]] = {
    "poisson-1d": (partial(_poisson, 1, _sin_product, lambda x: PI**2 * _sin_product(x)), (32,), (200, 2)),
    "poisson-2d": (
        partial(_poisson, 2, _sin_product, lambda x: 2 * PI**2 * _sin_product(x)),
        (64,),
        (900, 120),
    ),
    "poisson-5d": (
        partial(_poisson, 5, _cos_sum, lambda x: PI**2 * _cos_sum(x)),
        (64, 64, 48, 48),
        (3000, 500),
    ),
    "poisson-10d": (
        partial(_poisson, 10, _pair_products, lambda x: 0.0 * x[0]),
        (256, 256, 128, 128),
        (100, 50),
    ),
    "poisson-100d": (
        partial(_poisson, 100, _square_norm, lambda x: -200 / 33.47 + 0.0 * x[0]),
        (768, 768, 512, 512),
        (100, 50),
    ),
    "heat-1d": (partial(_heat, 1, _heat_sin), (64,), (900, 60, 60)),
    "heat-4d": (partial(_heat, 4, _heat_sum), (64,), (3000, 250, 250)),
    "burgers-1d": (_burgers, (32, 32), (2000, 100, 200)),
    "allen-cahn-1d": (_allen_cahn, (32, 32), (2000, 100, 200)),
    "helmholtz-2d": (_helmholtz, (64,), (900, 120)),
    "nonlinear-2d": (_nonlinear, (64,), (900, 120)),
    "fokker-planck-9d": (_fokker_planck, (64, 64), (1000, 500)),
    "inverse-heat-1d": (_inverse, (32,), (600, 100)),
}
NAMES = tuple(_ZOO)
"""The problems that `sg.pinn.zoo` knows."""
