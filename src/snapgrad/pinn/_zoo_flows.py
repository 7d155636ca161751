"""Incompressible flows in the plane: Kovasznay, Taylor–Green, the lid-driven cavity."""

import math
from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._cavity import SHARP, SMOOTH, Corner, corner_flow, corner_slopes
from ._domains import Box, SpaceTime
from ._features import Polynomial, network
from ._operators import derivatives, partials
from ._problem import PINN, Block
from ._references import cavity_grid
from ._weak import Weak
from ._zoo_entry import Record, ZooEntry, sizes_of

PI = np.pi
Sizes = tuple[int, ...]
WALLS = 100.0
"""The weight of the walls of a cavity, times Re²: the viscous part of the equation has a factor 1/Re."""


def navier_stokes(w: Callable, x: Array, viscosity: float, steady: bool) -> Array:
    """Momentum and continuity for w = (u, v, p) at one point (x, y), or (t, x, y) unless steady."""
    first = 0 if steady else 1
    value, gradient, laplace = derivatives(w, x, slice(first, None))
    (u, v, _), space = value, gradient[:, first:]
    transport = u * space[:2, 0] + v * space[:2, 1]
    if not steady:
        transport = transport + gradient[:2, 0]
    momentum = transport + space[2] - viscosity * laplace[:2]
    return jnp.append(momentum, space[0, 0] + space[1, 1])


def _kovasznay(hidden: Sizes, points: Sizes) -> PINN:
    """The flow behind a grid: u, v and p in closed form, Re = 40; u and v are given on the boundary."""
    box, reynolds = Box([-0.5, -0.5], [1, 1.5]), 40.0
    rate = reynolds / 2 - np.sqrt(reynolds**2 / 4 + 4 * PI**2)

    def exact(x: Array) -> Array:
        decay, angle = jnp.exp(rate * x[0]), 2 * PI * x[1]
        u, v = 1 - decay * jnp.cos(angle), rate / (2 * PI) * decay * jnp.sin(angle)
        return jnp.stack([u, v, (1 - decay**2) / 2])

    blocks = [
        Block("interior", lambda w, x: navier_stokes(w, x, 1 / reynolds, steady=True), box, points[0]),
        Block("boundary", lambda w, x: (w(x) - exact(x))[:2], box.boundary(), points[1]),
        Block("outflow", lambda w, x: (w(x) - exact(x))[2], Box([1 - 1e-6, -0.5], [1, 1.5]), points[2]),
    ]
    return PINN(network(box, hidden, outputs=3), blocks, exact)


def _taylor_green(hidden: Sizes, points: Sizes) -> PINN:
    """Decaying vortices, periodic, viscosity 0.01; the pressure is fixed at one place for all times."""
    domain, viscosity = SpaceTime(Box([0, 0], [2 * PI, 2 * PI], periodic=True), 0, 1), 0.01

    def exact(x: Array) -> Array:
        t, a, b = x
        decay = jnp.exp(-2 * viscosity * t)
        u, v = -jnp.cos(a) * jnp.sin(b) * decay, jnp.sin(a) * jnp.cos(b) * decay
        return jnp.stack([u, v, -(jnp.cos(2 * a) + jnp.cos(2 * b)) / 4 * decay**2])

    def gauge(w: Callable, x: Array) -> Array:
        place = x * jnp.array([1.0, 0.0, 0.0])
        return (w(place) - exact(place))[2]

    blocks = [
        Block("interior", lambda w, x: navier_stokes(w, x, viscosity, steady=False), domain, points[0]),
        Block("initial", lambda w, x: (w(x) - exact(x))[:2], domain.initial(), points[1]),
        Block("gauge", gauge, domain, points[2]),
    ]
    return PINN(network(domain, hidden, outputs=3), blocks, exact)


def _cavity(reynolds: int, corner: Corner, hidden: Sizes, points: Sizes) -> PINN:
    """The stream function of a steady flow, u = ψ_y and v = −ψ_x; errors are those of the velocity.

    The network is ψ less the singular flow in the upper corners, which is biharmonic and known. The equation
    is asked in its weak form: pointwise residuals are unbounded in the corners, and small for flows that are
    wrong.
    """
    box, (degree,) = Box([0, 0], [1, 1]), sizes_of(hidden, "(degree,)", 1)
    # The parts of the equation: first derivatives, those of the Laplacian, and the Laplacian of that.
    orders = [(0,), (1,), (0, 0, 0), (0, 1, 1), (0, 0, 1), (1, 1, 1)]
    orders += [(0, 0, 0, 0), (0, 0, 1, 1), (1, 1, 1, 1)]

    def equation(smooth: Callable, x: Array) -> Array:
        px, py, xxx, xyy, xxy, yyy, xxxx, xxyy, yyyy = partials(smooth, x, orders)
        singular, bent = (corner_slopes(corner, x[0], x[1], flag, jnp) for flag in (False, True))
        transport = (py + singular[1]) * (xxx + xyy + bent[0]) - (px + singular[0]) * (xxy + yyy + bent[1])
        return (xxxx + 2 * xxyy + yyyy) / reynolds - transport

    def velocity(smooth: Callable, x: Array) -> Array:
        px, py = partials(smooth, x, [(0,), (1,)])
        singular = corner_slopes(corner, x[0], x[1], False, jnp)
        return jnp.stack([py + singular[1], -px - singular[0]])

    def walls(smooth: Callable, x: Array) -> Array:
        lid = 1.0 if corner is SHARP else 4 * x[0] * (1 - x[0])
        moving = jnp.stack([jnp.where(x[1] == 1, lid, 0.0), 0.0])
        value = smooth(x) + corner_flow(corner, x[0], x[1], jnp)
        return jnp.append(velocity(smooth, x) - moving, value)

    blocks = [
        Block("interior", equation, box, weak=Weak(degree, order=2, nodes=math.isqrt(points[0]))),
        Block("walls", walls, box.boundary(), points[1], weight=WALLS / reynolds**2),
    ]
    name = f"cavity_{'sharp' if corner is SHARP else 'smooth'}_{reynolds}"
    inner = Polynomial(box.low, box.high, degree)
    return PINN(inner, blocks, cavity_grid(name, corner), measured=velocity)


def _cavity_entry(reynolds: int, corner: Corner, record: Record | None, goal: float | None) -> ZooEntry:
    return ZooEntry(
        partial(_cavity, reynolds, corner),
        (28,),
        (43**2, 400),
        f"ψ_y Δψ_x − ψ_x Δψ_y = Δ²ψ/{reynolds}, u = ψ_y, v = −ψ_x",
        f"unit square, u = {'1' if corner is SHARP else '4x(1 − x)'} on the lid y = 1, no slip on the walls; "
        "errors are those of u and v",
        "polynomial, for ψ less the singular flow in the upper corners, in its weak form",
        record,
        goal,
    )


FLOWS: dict[str, ZooEntry] = {
    "kovasznay": ZooEntry(
        _kovasznay,
        (32, 32),
        (1500, 200, 50),
        "u·∇u + ∇p = Δu/40, ∇·u = 0",
        "−0.5 < x < 1, −0.5 < y < 1.5, Kovasznay's flow: u and v given on the boundary, p at x = 1",
        "sin, outputs u, v and p",
    ),
    "taylor-green": ZooEntry(
        _taylor_green,
        (32, 32),
        (1500, 300, 20),
        "u_t + u·∇u + ∇p = 0.01 Δu, ∇·u = 0",
        "0 < x, y < 2π, periodic, 0 < t < 1, u = (−cos(x) sin(y), sin(x) cos(y)) at t = 0, "
        "p given at one place",
        "sin, periodic, outputs u, v and p",
    ),
    "cavity-smooth": _cavity_entry(100, SMOOTH, Record(1.1e-4, "DSGNAR", 403), 1e-4),
    "cavity-100": _cavity_entry(100, SHARP, None, None),
    "cavity-400": _cavity_entry(400, SHARP, None, None),
    "cavity-1000": _cavity_entry(1000, SHARP, Record(0.13, "jaxpi", 3540), None),
}
