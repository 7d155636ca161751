"""Poisson, heat, Helmholtz and others: problems that a small network solves in seconds, and large ones."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._domains import Box, Points, SpaceTime
from ._features import network
from ._hard import Hard
from ._network import MLP
from ._operators import derivatives, laplacian
from ._problem import PINN, Block
from ._references import burgers_grid, quiet_allen_cahn_grid
from ._zoo_entry import Record, ZooEntry

PI = np.pi


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


def _helmholtz_standard(hidden: tuple[int, ...], points: tuple[int, ...]) -> PINN:
    """Δu + u = f on [−1, 1]², u = sin(πx) sin(4πy); the network has period 2 and is exact on the boundary."""
    box = Box([-1, -1], [1, 1], periodic=True)

    def exact(x: Array) -> Array:
        return jnp.sin(PI * x[0]) * jnp.sin(4 * PI * x[1])

    def equation(u: Callable, x: Array) -> Array:
        value, _, laplace = derivatives(u, x)
        return laplace + value - (1 - 17 * PI**2) * exact(x)

    inner = Hard(network(box, hidden), lambda x: _sin_product(x))
    return PINN(inner, [Block("interior", equation, box, points[0])], exact)


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

    grid = quiet_allen_cahn_grid(0.01, 2.0)
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


BASIC: dict[str, ZooEntry] = {
    "poisson-1d": ZooEntry(
        partial(_poisson, 1, _sin_product, lambda x: PI**2 * _sin_product(x)),
        (32,),
        (200, 2),
        "−u″ = π² sin(πx)",
        "0 < x < 1, u = 0 at both ends",
    ),
    "poisson-2d": ZooEntry(
        partial(_poisson, 2, _sin_product, lambda x: 2 * PI**2 * _sin_product(x)),
        (64,),
        (900, 120),
        "−Δu = 2π² sin(πx) sin(πy)",
        "unit square, u = 0 on its boundary",
        record=Record(1.2e-7, "ENGD, tanh 64", 1000),
    ),
    "poisson-5d": ZooEntry(
        partial(_poisson, 5, _cos_sum, lambda x: PI**2 * _cos_sum(x)),
        (64, 64, 48, 48),
        (3000, 500),
        "−Δu = π² Σ cos(πxᵢ)",
        "unit cube in 5 dimensions, u = Σ cos(πxᵢ) on its boundary",
        record=Record(1.7e-7, "SPRING, tanh 64-64-48-48", 7000, "3.0e-16 by DSGNAR with Gabor features"),
    ),
    "poisson-10d": ZooEntry(
        partial(_poisson, 10, _pair_products, lambda x: 0.0 * x[0]),
        (256, 256, 128, 128),
        (100, 50),
        "Δu = 0",
        "unit cube in 10 dimensions, u = (x₁x₂ + x₃x₄ + … + x₉x₁₀)/1.34 on its boundary",
        record=Record(6.2e-5, "SPRING", None, "6.0e-12 by DSGNAR with a separable network"),
    ),
    "poisson-100d": ZooEntry(
        partial(_poisson, 100, _square_norm, lambda x: -200 / 33.47 + 0.0 * x[0]),
        (768, 768, 512, 512),
        (100, 50),
        "Δu = 200/33.47",
        "unit cube in 100 dimensions, u = ‖x‖²/33.47 on its boundary",
        record=Record(3.6e-3, "SPRING"),
    ),
    "heat-1d": ZooEntry(
        partial(_heat, 1, _heat_sin),
        (64,),
        (900, 60, 60),
        "u_t = u_xx/4",
        "0 < x < 1, 0 < t < 1, u = 0 at both ends, u = sin(πx) at t = 0",
        record=Record(8.8e-8, "ENGD, tanh 64"),
    ),
    "heat-4d": ZooEntry(
        partial(_heat, 4, _heat_sum),
        (64,),
        (3000, 250, 250),
        "u_t = Δu/4",
        "unit cube in 4 dimensions, 0 < t < 1, u = exp(−t) Σ sin(2xᵢ) on its boundary and at t = 0",
        record=Record(3.9e-7, "ENGD, tanh 64"),
    ),
    "burgers-1d": ZooEntry(
        _burgers,
        (32, 32),
        (2000, 100, 200),
        "u_t + u u_x = (0.1/π) u_xx",
        "−1 < x < 1, 0 < t < 1, u = 0 at both ends, u = −sin(πx) at t = 0",
    ),
    "allen-cahn-1d": ZooEntry(
        _allen_cahn,
        (32, 32),
        (2000, 100, 200),
        "u_t = 0.01 u_xx + 2(u − u³)",
        "−1 < x < 1, 0 < t < 1, u = −1 at both ends, u = x² cos(πx) at t = 0",
    ),
    "helmholtz-2d": ZooEntry(
        _helmholtz,
        (64,),
        (900, 120),
        "Δu + 25u = (25 − 5π²) sin(2πx) sin(πy)",
        "unit square, u = 0 on its boundary",
    ),
    "helmholtz": ZooEntry(
        _helmholtz_standard,
        (32, 32),
        (3000,),
        "Δu + u = (1 − 17π²) sin(πx) sin(4πy)",
        "−1 < x, y < 1, u = 0 on the boundary",
        "sin, period 2, exact on the boundary",
        Record(2.0e-9, "SPRING, periodic features, 2,971 parameters", 540),
        2e-9,
    ),
    "nonlinear-2d": ZooEntry(
        _nonlinear,
        (64,),
        (900, 120),
        "−Δu + u³ = 2π² s + s³ with s = sin(πx) sin(πy)",
        "unit square, u = 0 on its boundary",
    ),
    "fokker-planck-9d": ZooEntry(
        _fokker_planck,
        (64, 64),
        (1000, 500),
        "u_t = 9/2 + x·∇u/2 + Δu + ‖∇u‖²",
        "−5 < xᵢ < 5 in 9 dimensions, 0 < t < 1, exp(u) the standard normal density at t = 0",
    ),
    "inverse-heat-1d": ZooEntry(
        _inverse,
        (32,),
        (600, 100),
        "u_t = κ u_xx, κ unknown (0.3)",
        "0 < x < 1, 0 < t < 1, u known at 100 scattered points",
    ),
}
