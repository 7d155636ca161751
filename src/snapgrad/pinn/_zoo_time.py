"""Problems in time with the settings that the field compares itself on: Burgers to Gray–Scott."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._contracts import Params
from ._domains import Box, SpaceTime
from ._evolving import Evolving
from ._features import Polynomial, Series, network
from ._hard import Hard
from ._operators import derivative, derivatives, partials
from ._problem import PINN, Block
from ._references import (
    allen_cahn_grid,
    burgers_grid,
    gray_scott_grid,
    korteweg_de_vries_grid,
    kuramoto_sivashinsky_grid,
)
from ._zoo_entry import Record, ZooEntry, sizes_of

PI = np.pi
Sizes = tuple[int, ...]


REACTING = (0.0, *(0.01 * 2.0 ** np.arange(-6, 0)).tolist(), *np.linspace(0.01, 2, 200).tolist())
"""The times between slabs of Gray–Scott: where both species meet at first, they react within 0.001."""
SLABS = {
    "burgers": 10,
    "allen-cahn": 10,
    "kdv": 80,
    "kuramoto-sivashinsky": 200,
    "advection": 10,
    "gray-scott": len(REACTING) - 1,
}
"""Into how many slabs of time problems are cut: as many as make the solution change little within one."""
WAVES = "polynomials of time × waves of space, exact at the start, linear in its parameters"
"""The networks of smooth periodic problems that take many digits; their two sizes are degree and waves."""
FRONT = 15.0
"""A front of Burgers' equation with viscosity ν lies within so many ν of its middle, tails included."""
FIRST = 100.0
"""The weight of the start, relative to what a residual does in the time of one slab: it is easily met, and
what is missed there every later slab inherits."""


def _evolution(
    name: str, domain: SpaceTime, inner: Any, equation: Callable, start: Callable, points: Sizes, exact: Any
) -> PINN:
    """An equation and values at the start: two blocks; the network takes care of what happens at the ends.

    A residual r moves the solution by about r times the length of a slab.
    """
    weight = FIRST * (SLABS[name] / float(domain.end)) ** 2
    blocks = [
        Block("interior", equation, domain, points[0]),
        Block("initial", lambda u, x: u(x) - start(x), domain.initial(), points[1], weight=weight),
    ]
    return PINN(inner, blocks, exact)


def _for_slab(name: str, domain: SpaceTime, hidden: Sizes, **options: Any) -> Any:
    """The network for one slab of time: local time is scaled to [−1, 1]."""
    return network(SpaceTime(domain.space, 0, float(domain.end) / SLABS[name]), hidden, **options)


def _spectral(
    name: str,
    domain: SpaceTime,
    sizes: Sizes,
    points: Sizes,
    equation: Callable,
    start: Callable,
    exact: Any,
    outputs: int = 1,
) -> PINN:
    """Polynomials of local time, of that degree, times so many waves of space, on a grid; exact at the
    start.
    """
    degree, modes = sizes_of(sizes, "(degree, waves)", 2)
    axes, waves = domain.dim - 1, Series.outputs(modes)
    inner: Any = Polynomial([0], [float(domain.end) / SLABS[name]], degree, outputs * waves**axes)
    for axis in range(1, axes + 1):
        inner = Series(inner, axis, domain.periods[axis], modes, outputs * waves ** (axes - axis))
    side = round((points[0] / (degree + 2)) ** (1 / axes))
    grid = degree + 2, *[side] * axes
    held = Evolving(inner, domain, start)
    return PINN(held, [Block("interior", equation, domain, grid=grid)], exact)


class Mirrored(eqx.Module):
    """A network of (t, cos πx): even in x, and of period two."""

    network: Any

    def init(self, key: PRNGKeyArray) -> Params:
        """Those of the network inside."""
        return self.network.init(key)

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The output at one point."""
        return self.network(params, jnp.stack([x[0], jnp.cos(PI * x[1])]))


def _burgers(viscosity: float, hidden: Sizes, points: Sizes) -> PINN:
    """u_t + u u_x = ν u_xx; ends and start hold exactly, points are dense where the front forms."""
    domain = SpaceTime(Box([-1], [1]), 0, 1)
    inner = Hard.box(_for_slab("burgers", domain, hidden, activation="tanh"), domain)

    def equation(u: Callable, x: Array) -> Array:
        value, (u_t, u_x), u_xx = derivatives(u, x, 1)
        return u_t + value * u_x - viscosity * u_xx

    front = SpaceTime(Box([-FRONT * viscosity], [FRONT * viscosity]), 0, 1)
    blocks = [Block("interior", equation, domain, points[0]), Block("front", equation, front, points[1])]
    held = Evolving(inner, domain, lambda x: -jnp.sin(PI * x[1]))
    return PINN(held, blocks, burgers_grid(viscosity))


def _allen_cahn(hidden: Sizes, points: Sizes) -> PINN:
    """u_t = 1e-4 u_xx + 5(u − u³), periodic.

    The slope of x² cos πx jumps at the ends. How that kink spreads is known: u = −1 + v there, where to first
    order v_t = 1e-4 v_xx − 10 v, so that 2|y| decays like exp −10t and diffuses as heat does. With this as a
    lift, a network without a kink is left to find.
    """
    diffusion = 1e-4
    domain = SpaceTime(Box([-1], [1], periodic=True), 0, 1)

    def equation(u: Callable, x: Array) -> Array:
        value, (u_t, _), u_xx = derivatives(u, x, 1)
        return u_t - diffusion * u_xx - 5 * (value - value**3)

    def kink(x: Array) -> Array:
        width = jnp.sqrt(4 * diffusion * (x[0] + 1e-14))  # never zero
        y = 2 / PI * jnp.cos(PI / 2 * x[1])  # the distance to the ends, near them
        q = y / width
        spread = y * jax.lax.erf(q) + width / np.sqrt(PI) * jnp.exp(-(q**2))
        return 2 * jnp.exp(-10 * x[0]) * spread

    # The solution is even; late in time its fronts stand at ±1/2.
    inner = Mirrored(_for_slab("allen-cahn", SpaceTime(Box([-1], [1]), 0, 1), hidden, activation="tanh"))
    front = SpaceTime(Box([0.4], [0.6]), 0, 1)
    blocks = [Block("interior", equation, domain, points[0]), Block("front", equation, front, points[1])]
    start = lambda x: x[1] ** 2 * jnp.cos(PI * x[1])  # noqa: E731
    held = Evolving(inner, domain, start, lift=kink)
    return PINN(held, blocks, allen_cahn_grid())


def _korteweg_de_vries(hidden: Sizes, points: Sizes) -> PINN:
    """u_t + u u_x + 0.022² u_xxx = 0, periodic."""
    domain = SpaceTime(Box([-1], [1], periodic=True), 0, 1)

    def equation(u: Callable, x: Array) -> Array:
        value, u_t, u_x, u_xxx = partials(u, x, [(), (0,), (1,), (1, 1, 1)])
        return u_t + value * u_x + 0.022**2 * u_xxx

    start = lambda x: jnp.cos(PI * x[1])  # noqa: E731
    return _spectral("kdv", domain, hidden, points, equation, start, korteweg_de_vries_grid())


def _kuramoto_sivashinsky(hidden: Sizes, points: Sizes) -> PINN:
    """u_t + αu u_x + βu_xx + γu_xxxx = 0 with α = 100/16, β = 100/16², γ = 100/16⁴, periodic."""
    domain = SpaceTime(Box([0], [2 * PI], periodic=True), 0, 1)

    def equation(u: Callable, x: Array) -> Array:
        value, u_t, u_x, u_xx, u_xxxx = partials(u, x, [(), (0,), (1,), (1, 1), (1, 1, 1, 1)])
        return u_t + 100 / 16 * value * u_x + 100 / 16**2 * u_xx + 100 / 16**4 * u_xxxx

    start = lambda x: jnp.cos(x[1]) * (1 + jnp.sin(x[1]))  # noqa: E731
    known = kuramoto_sivashinsky_grid()
    return _spectral("kuramoto-sivashinsky", domain, hidden, points, equation, start, known)


def _wave(hidden: Sizes, points: Sizes) -> PINN:
    """u_tt = 4 u_xx, u = 0 at both ends, with a start at rest.

    A single layer of sines holds standing waves exactly, as sums of two that travel: what Levenberg–Marquardt
    then reaches is round-off. Exact conditions would take that from it, since they multiply the network.
    """
    domain = SpaceTime(Box([0], [1]), 0, 1)

    def start(x: Array) -> Array:
        return jnp.sin(PI * x[1]) + jnp.sin(4 * PI * x[1]) / 2

    def exact(x: Array) -> Array:
        t, y = x
        return jnp.cos(2 * PI * t) * jnp.sin(PI * y) + jnp.cos(8 * PI * t) * jnp.sin(4 * PI * y) / 2

    def equation(u: Callable, x: Array) -> Array:
        u_tt, u_xx = partials(u, x, [(0, 0), (1, 1)])
        return u_tt - 4 * u_xx

    # u_tt is about a hundred times u, and u_t ten times.
    blocks = [
        Block("interior", equation, domain, points[0]),
        Block("ends", lambda u, x: u(x), domain.boundary(), points[1], weight=1000),
        Block("initial", lambda u, x: u(x) - start(x), domain.initial(), points[1], weight=1000),
        Block("velocity", lambda u, x: derivative(u, x, (0,)), domain.initial(), points[1], weight=100),
    ]
    return PINN(network(domain, hidden), blocks, exact)


def _advection(hidden: Sizes, points: Sizes) -> PINN:
    """u_t + 80 u_x = 0, periodic."""
    domain = SpaceTime(Box([0], [2 * PI], periodic=True), 0, 1)

    def equation(u: Callable, x: Array) -> Array:
        _, (u_t, u_x), _ = derivatives(u, x, 1)
        return u_t + 80 * u_x

    inner = _for_slab("advection", domain, hidden)
    exact = lambda x: jnp.sin(x[1] - 80 * x[0])  # noqa: E731
    return _evolution("advection", domain, inner, equation, lambda x: jnp.sin(x[1]), points, exact)


def _gray_scott(hidden: Sizes, points: Sizes) -> PINN:
    """u_t = 0.2Δu + 40(1 − u) − 1000uv², v_t = 0.1Δv − 100v + 1000uv², periodic in a square."""
    domain = SpaceTime(Box([-1, -1], [1, 1], periodic=True), 0, 2)

    def equation(u: Callable, x: Array) -> Array:
        (a, b), gradient, laplace = derivatives(u, x, (1, 2))
        reaction = 1000 * a * b**2
        rates = jnp.stack([40 * (1 - a) - reaction, reaction - 100 * b])
        return gradient[:, 0] - jnp.array([0.2, 0.1]) * laplace - rates

    def start(x: Array) -> Array:
        _, y, z = x
        first = 1 - jnp.exp(-10 * ((y + 0.05) ** 2 + (z + 0.02) ** 2))
        return jnp.stack([first, jnp.exp(-10 * ((y - 0.05) ** 2 + (z - 0.02) ** 2))])

    known = gray_scott_grid()
    return _spectral("gray-scott", domain, hidden, points, equation, start, known, outputs=2)


TIME: dict[str, ZooEntry] = {
    "burgers": ZooEntry(
        partial(_burgers, 0.01 / PI),
        (24, 24, 24),
        (2500, 1500),
        "u_t + u u_x = (0.01/π) u_xx",
        "−1 < x < 1, 0 < t < 1, u = 0 at both ends, u = −sin(πx) at t = 0",
        "tanh, exact at both ends and at the start",
        Record(1.6e-8, "SSBroyden, tanh 8×20", 2878),
        1e-7,
        SLABS["burgers"],
    ),
    "burgers-0.01": ZooEntry(
        partial(_burgers, 0.01),
        (24, 24, 24),
        (2500, 1500),
        "u_t + u u_x = 0.01 u_xx",
        "−1 < x < 1, 0 < t < 1, u = 0 at both ends, u = −sin(πx) at t = 0",
        "tanh, exact at both ends and at the start",
        Record(8.0e-14, "DSGNAR, 11,285 parameters", 346, "4.8e-7 in 9.8 s in float32"),
        None,
        SLABS["burgers"],
    ),
    "allen-cahn": ZooEntry(
        _allen_cahn,
        (24, 24),
        (1500, 600),
        "u_t = 1e-4 u_xx + 5(u − u³)",
        "−1 < x < 1, periodic, 0 < t < 1, u = x² cos(πx) at t = 0",
        "tanh, periodic and even, exact at the start, whose kink diffuses",
        Record(9.4e-7, "SSBroyden, tanh 3×30", None, "3.5e-6 by SOAP on PirateNet"),
        3e-6,
        SLABS["allen-cahn"],
    ),
    "kdv": ZooEntry(
        _korteweg_de_vries,
        (8, 136),
        (10 * 340,),
        "u_t + u u_x + 0.022² u_xxx = 0",
        "−1 < x < 1, periodic, 0 < t < 1, u = cos(πx) at t = 0",
        WAVES,
        Record(8.2e-11, "DSGNAR, 4 slabs", 1210, "1.5e-4 by jaxpi2"),
        1e-8,
        SLABS["kdv"],
    ),
    "kuramoto-sivashinsky": ZooEntry(
        _kuramoto_sivashinsky,
        (8, 112),
        (10 * 280,),
        "u_t + (100/16) u u_x + (100/16²) u_xx + (100/16⁴) u_xxxx = 0",
        "0 < x < 2π, periodic, 0 < t < 1, u = cos(x)(1 + sin(x)) at t = 0; chaotic",
        WAVES,
        Record(5.1e-7, "DSGNAR, 8 slabs", 5227, "6.5e-4 by SSBroyden in 20 windows, 130,222 s"),
        1e-5,
        SLABS["kuramoto-sivashinsky"],
    ),
    "wave": ZooEntry(
        _wave,
        (24,),
        (600, 40),
        "u_tt = 4 u_xx",
        "0 < x < 1, 0 < t < 1, u = 0 at both ends, u = sin(πx) + sin(4πx)/2 and u_t = 0 at t = 0",
        "one layer of sin, which holds waves exactly",
        Record(1.2e-15, "DSGNAR", 635),
        1e-10,
    ),
    "advection": ZooEntry(
        _advection,
        (24, 24),
        (2000, 200),
        "u_t + 80 u_x = 0",
        "0 < x < 2π, periodic, 0 < t < 1, u = sin(x) at t = 0",
        "sin, periodic",
        Record(6.9e-4, "jaxpi", 540),
        None,
        SLABS["advection"],
    ),
    "gray-scott": ZooEntry(
        _gray_scott,
        (1, 28),
        (3 * 57**2,),  # as many nodes as coefficients: with more of them fewer waves are right
        "u_t = 0.2 Δu + 40(1 − u) − 1000 u v², v_t = 0.1 Δv − 100 v + 1000 u v²",
        "−1 < x, y < 1, periodic, 0 < t < 2, u = 1 − exp(−10((x + 0.05)² + (y + 0.02)²)), "
        "v = exp(−10((x − 0.05)² + (y − 0.02)²)) at t = 0",
        WAVES,
        Record(3.6e-3, "PirateNet"),
        None,
        REACTING,
    ),
}
