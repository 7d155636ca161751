"""Inverse problems with noisy data: coefficients, and a field."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._domains import Box, Points, SpaceTime
from ._features import network
from ._operators import derivatives
from ._problem import PINN, Block
from ._references import burgers_grid, cole_hopf
from ._zoo_entry import Record, ZooEntry

PI = np.pi
Sizes = tuple[int, ...]
EXACT = 100.0
"""The weight of what holds exactly beside data with noise, which a network follows where physics lets it."""


def _burgers(hidden: Sizes, points: Sizes) -> PINN:
    """u_t + λ₁ u u_x = λ₂ u_xx with both coefficients unknown, from values with 1 % noise."""
    domain = SpaceTime(Box([-1], [1]), 0, 1)
    rng = np.random.default_rng(0)
    t, x = np.repeat(np.linspace(0.01, 0.99, 40), -(-points[1] // 40)), rng.uniform(-1, 1, size=points[1])
    t = t[: points[1]]
    clean = np.empty_like(x)
    for time in np.unique(t):
        clean[t == time] = cole_hopf(0.01 / PI, time, x[t == time])
    noisy = clean + 0.01 * clean.std() * rng.standard_normal(x.size)

    def equation(u: Callable, x: Array, convection: Array, viscosity: Array) -> Array:
        value, (u_t, u_x), u_xx = derivatives(u, x, 1)
        return u_t + convection * value * u_x - viscosity * u_xx

    blocks = [
        Block("interior", equation, domain, points[0]),
        Block(
            "data",
            lambda u, row, convection, viscosity: u(row[0]) - row[1],
            Points((np.stack([t, x], axis=1), noisy)),
        ),
    ]
    inner = network(domain, hidden, activation="tanh")
    return PINN(inner, blocks, burgers_grid(0.01 / PI), unknowns={"convection": 0.0, "viscosity": 0.05})


def _poisson(hidden: Sizes, points: Sizes) -> PINN:
    """−∇·(a∇u) = f with the field a unknown, from values of u with noise of size 0.1.

    Errors are those of a, which is known on the boundary. It is a network of its own, with the last of the
    hidden sizes: the smaller it is, the less it can follow the noise.
    """
    box = Box([0, 0], [1, 1])

    def field(x: Array) -> Array:
        return 1 / (1 + jnp.sum(x**2) + jnp.sum((x - 1) ** 2))

    def source(x: Array) -> Array:
        s, c = jnp.sin(PI * x), jnp.cos(PI * x)
        slopes = PI * jnp.stack([c[0] * s[1], s[0] * c[1]])
        return 2 * PI**2 * field(x) * s[0] * s[1] + field(x) ** 2 * jnp.dot(4 * x - 2, slopes)

    def equation(u: Callable, x: Array, a: Callable) -> Array:
        _, slope, laplace = derivatives(u, x)
        value, change, _ = derivatives(a, x)
        return value * laplace + jnp.dot(slope, change) + source(x)

    rng = np.random.default_rng(0)
    where = rng.uniform(size=(points[1], 2))
    noisy = np.prod(np.sin(PI * where), axis=1) + 0.1 * rng.standard_normal(len(where))
    blocks = [
        Block("interior", equation, box, points[0], weight=EXACT),
        Block("data", lambda u, row: u(row[0]) - row[1], Points((where, noisy))),
        Block("boundary", lambda u, x, a: a(x) - field(x), box.boundary(), points[2], weight=EXACT),
    ]
    inner, coefficient = (network(box, sizes, activation="tanh") for sizes in (hidden[:-1], hidden[-1:]))
    return PINN(inner, blocks, field, measured=lambda u, x, a: a(x), fields={"a": coefficient})


INVERSE: dict[str, ZooEntry] = {
    "inverse-burgers": ZooEntry(
        _burgers,
        (20, 20, 20),
        (2000, 2000),
        "u_t + λ₁ u u_x = λ₂ u_xx, λ₁ and λ₂ unknown (1 and 0.01/π)",
        "−1 < x < 1, 0 < t < 1, u known at 2000 scattered points with noise of 1 %",
        "tanh",
    ),
    "inverse-poisson": ZooEntry(
        _poisson,
        (10, 10, 6),
        (1500, 2500, 200),
        "−∇·(a∇u) = f, the field a unknown (1/(1 + ‖x‖² + ‖x − 1‖²))",
        "unit square, u = sin(πx) sin(πy) known at 2500 scattered points with noise of size 0.1, "
        "a known on the boundary; errors are those of a",
        "tanh, the last layer for a",
        Record(2.5e-2, "vPINN (PINNacle)"),
    ),
}
