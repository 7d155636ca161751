"""Networks that hold the start of an evolution exactly, and can be handed on from slab to slab of time."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import Given, positive_int
from .._contracts import Params
from ._domains import Box, SpaceTime
from ._drawing import AbstractDomain
from ._network import Network, check_network, evaluate

CELLS, DEGREE = 512, 12
"""Polynomials in so many cells are exact to 1e-13 for fronts as wide as a hundredth of the box."""
MODES = 256
"""So many waves are exact to 1e-13 for fronts four times as wide, and their derivatives round least."""
CHOPPED = 10.0
"""Waves below this many rounding errors of the largest are noise, which derivatives would magnify."""


class Cells(eqx.Module):
    """A function on an interval as one polynomial of Chebyshev in each of so many cells."""

    coefficients: Float[Array, "cells degree_and_one *o"]
    low: Float[Array, ""]
    width: Float[Array, ""]  # of a cell

    def __init__(self, fn: Callable, low: Float[Array, ""], high: Float[Array, ""], cells: int):
        self.low, self.width = low, (high - low) / cells
        angles = np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1)
        centres = low + self.width * (jnp.arange(cells) + 0.5)
        nodes = centres[:, None] + self.width / 2 * np.cos(angles)[None]
        values = _values(fn, nodes.reshape(-1))
        values = values.reshape(cells, DEGREE + 1, *values.shape[1:])
        weights = 2 / (DEGREE + 1) * np.cos(np.outer(np.arange(DEGREE + 1), angles))
        weights[0] /= 2
        self.coefficients = jnp.einsum("pq,cq...->cp...", weights, values, precision="highest")

    def __call__(self, y: Float[Array, ""]) -> Float[Array, "*o"]:
        """The value, by the recurrence of Clenshaw."""
        place = (y - self.low) / self.width
        cell = jnp.clip(jnp.floor(place).astype(int), 0, len(self.coefficients) - 1)
        c, s = self.coefficients[cell], 2 * place - (2 * cell + 1).astype(y.dtype)
        one = two = jnp.zeros_like(c[0])
        for j in range(DEGREE, 0, -1):
            one, two = c[j] + 2 * s * one - two, one
        return c[0] + s * one - two


class Waves(eqx.Module):
    """A periodic function as a sum of cosines and sines."""

    cosines: Float[Array, "modes *o"]
    sines: Float[Array, "modes *o"]
    low: Float[Array, ""]
    period: Float[Array, ""]

    def __init__(self, fn: Callable, low: Float[Array, ""], high: Float[Array, ""], modes: int):
        self.low, self.period = low, high - low
        count = 4 * modes
        nodes = low + self.period * jnp.arange(count) / count
        found = np.fft.rfft(np.asarray(_values(fn, nodes)), axis=0)[:modes] / (count / 2)
        found[0] /= 2
        least = CHOPPED * np.finfo(nodes.dtype).eps * np.max(np.abs(found), axis=0, keepdims=True)
        found = np.where(np.abs(found) > least, found, 0)
        self.cosines = jnp.asarray(np.real(found), nodes.dtype)
        self.sines = jnp.asarray(-np.imag(found), nodes.dtype)

    def __call__(self, y: Float[Array, ""]) -> Float[Array, "*o"]:
        """The value, for any y."""
        angles = 2 * np.pi * np.arange(len(self.cosines)) * ((y - self.low) / self.period)
        dot = partial(jnp.tensordot, axes=1, precision="highest")
        return dot(jnp.cos(angles), self.cosines) + dot(jnp.sin(angles), self.sines)


class Evolving(eqx.Module):
    """u(t, x) = u₀(x) + s N(t − t₀, x): at the start t₀ it is u₀ for any network N. Here s = (t − t₀)/T.

    With such a network an equation of evolution needs no block for its start, nor a weight for one, and
    `sg.pinn.march` hands it on: what a slab says at its end is the start of the next one, stored as waves or
    as polynomials in cells of space, so that slabs do not nest and share one compiled program.

    It is for one coordinate of space. Conditions at the ends of space belong into N and u₀, or into blocks.

    **Arguments:**

    - `network`: N, any network of (t, x), which sees the start as t = 0.
    - `domain`: a `sg.pinn.SpaceTime` on a `sg.pinn.Box` of one dimension; its start is t₀ and its length T.
    - `start`: u₀, a function of a point (t, x) at the start.
    - `velocity`: u̇₀ for equations of second order in time, another such function: u = u₀ + (t − t₀)u̇₀ + s²N.
    - `lift`: a function of a point that holds what is known of the solution and hard to learn, such as how a
      kink of u₀ spreads: u = lift(t, x) + (u₀ − lift at t₀) + s N. By default there is none.
    - `cells`: u₀ is stored as a polynomial of degree 12 in each of so many cells. By default they are 512,
      which follow a front as wide as a hundredth of the box; where the box is periodic it is stored as 256
      waves instead, with which derivatives of order three and four round least. Cells in a periodic box hold
      what twice as many waves can: what is rougher would grow from slab to slab.

    `ValueError` for more than one coordinate of space: use a block on `domain.initial()` there. A warning in
    float32, in which derivatives of what is stored are lost to rounding.

    ```python
    domain = sg.pinn.SpaceTime(sg.pinn.Box([-1], [1], periodic=True), 0, 1)
    network = sg.pinn.Evolving(sg.pinn.network(domain, (16,)), domain, lambda x: jnp.cos(jnp.pi * x[1]))
    network(network.init(jax.random.key(0)), jnp.array([0.0, 0.25]))              # cos π/4
    ```
    """

    network: Any
    held: Cells | Waves
    speed: Cells | Waves | None
    start: Float[Array, ""]
    duration: Float[Array, ""]
    lift: Callable | None = eqx.field(static=True)

    def __init__(
        self,
        network: Given[Network, ""],
        domain: AbstractDomain,
        start: Given[Callable, ""],
        *,
        velocity: Given[Callable | None, ""] = None,
        lift: Given[Callable | None, ""] = None,
        cells: int | None = None,
    ):
        if not isinstance(domain, SpaceTime) or not isinstance(domain.space, Box):
            raise TypeError(
                f"`domain` must be a sg.pinn.SpaceTime on a sg.pinn.Box, got {type(domain).__name__}"
                f"{f' on {type(domain.space).__name__}' if isinstance(domain, SpaceTime) else ''}."
            )
        if domain.space.dim != 1:
            raise ValueError(
                f"`domain` must have one coordinate of space, got {domain.space.dim}: use a block on "
                f"domain.initial() for the start."
            )
        for name, value in {"start": start, "velocity": velocity, "lift": lift}.items():
            if not callable(value) and (value is not None or name == "start"):
                raise TypeError(f"`{name}` must be a function of a point, got {type(value).__name__}.")
        if not float(domain.end) > float(domain.start):
            raise ValueError(f"`domain` must last some time, got from {domain.start} to {domain.end}.")
        if cells is not None or not domain.space.periods:
            cells = positive_int("cells", CELLS if cells is None else cells)
        modes = MODES if cells is None else 2 * cells
        (low,), (high,) = domain.space.bounds()

        def kept(value: Callable, derived: bool) -> Cells | Waves:
            fn = jax.tree_util.Partial(_rest, value, lift, derived, domain.start)
            if cells is None:
                return Waves(fn, low, high, modes)
            return Cells(Waves(fn, low, high, modes) if domain.space.periods else fn, low, high, cells)

        if jnp.result_type(float) == jnp.float32:
            warnings.warn(
                "sg.pinn.Evolving needs float64: in float32 the derivatives of what it stores are lost to "
                'rounding. Use jax.config.update("jax_enable_x64", True), or a block on domain.initial().',
                stacklevel=2,
            )
        self.network, self.lift = check_network(network), lift
        # With a dtype of their own: a weak type would be another program.
        self.start = jnp.asarray(domain.start, float)
        self.duration = jnp.asarray(domain.end - domain.start, float)
        self.held = kept(start, False)
        self.speed = None if velocity is None else kept(velocity, True)

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns random initial parameters of the network inside."""
        return self.network.init(key)

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The output at one point."""
        local = x[0] - self.start
        out = evaluate(self.network, params, jnp.stack([local, x[1]]), "sg.pinn.Evolving")
        known, s = self.held(x[1]), local / self.duration
        if self.lift is not None:
            known = known + self.lift(x)
        if self.speed is None:
            return known + s * out
        return known + local * self.speed(x[1]) + s**2 * out

    def after(self, before: Callable, domain: SpaceTime) -> "Evolving":
        """Returns the same network for a later domain; it starts where another solution, `before`, is at that
        time.
        """
        velocity = None if self.speed is None else jax.tree_util.Partial(_rate, before)
        cells = len(self.held.coefficients) if isinstance(self.held, Cells) else None
        return Evolving(self.network, domain, before, velocity=velocity, lift=self.lift, cells=cells)

    def until(self, end: float) -> "Evolving":
        """Returns the same network for a domain that ends at the time `end`."""
        duration = jnp.asarray(end, float) - self.start
        return eqx.tree_at(lambda network: network.duration, self, duration)


@eqx.filter_jit
def _values(fn: Callable, points: Float[Array, " N"]) -> Float[Array, "N *o"]:
    """Numbers alone tell one slab from the next, so that this is compiled once."""
    return jax.vmap(fn)(points)


def _rest(
    value: Callable, lift: Callable | None, derived: bool, time: Float[Array, ""], y: Float[Array, ""]
) -> Float[Array, "*o"]:
    """What the lift, or its derivative by time, leaves of a value at the start."""
    x = jnp.stack([time, y])
    found = jnp.asarray(value(x))
    if lift is None:
        return found
    return found - (_rate(lift, x) if derived else lift(x))


def _rate(u: Callable, x: Float[Array, " d"]) -> Float[Array, "*o"]:
    return jax.jvp(u, (x,), (jnp.zeros_like(x).at[0].set(1),))[1]
