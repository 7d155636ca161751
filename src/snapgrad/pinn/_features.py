"""What a network sees of a point: scaled or periodic coordinates, Fourier features; networks for domains.

Each wrapper is itself a network, so that they nest around one another and around any other.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import Given, positive_int, real_array
from .._contracts import Params
from ._domains import AbstractDomain
from ._network import MLP, Network, check_network, evaluate, is_linear

SMALL = 0.01
"""The size of the functions that polynomials are at first."""


class Scaled(eqx.Module):
    """A network that sees coordinates scaled from [low, high] to [−1, 1], where networks learn best.

    **Arguments:**

    - `network`: any network, such as `sg.pinn.MLP`.
    - `low`, `high`: one number for each coordinate, such as the corners of a box; `ValueError` unless each
      `low` is below its `high`.

    ```python
    network = sg.pinn.Scaled(sg.pinn.MLP([2, 16, 1]), low=[0, -100], high=[1, 100])
    network(network.init(jax.random.key(0)), jnp.array([0.5, 20.0]))
    ```
    """

    network: Any
    low: Float[Array, " d"]
    high: Float[Array, " d"]

    def __init__(
        self,
        network: Given[Network, ""],
        low: Given[ArrayLike | Sequence[float], " d"],
        high: Given[ArrayLike | Sequence[float], " d"],
    ):
        self.network = check_network(network)
        self.low, self.high = _corners(low, high)

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns random initial parameters of the network inside."""
        return self.network.init(key)

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The output at one point."""
        scaled = (2 * x - (self.low + self.high)) / (self.high - self.low)
        return evaluate(self.network, params, scaled, "sg.pinn.Scaled")


class Periodic(eqx.Module):
    """A network that is exactly periodic in some coordinates, with all its derivatives.

    Coordinate `axis` is replaced by cos(2πjx/length) and sin(2πjx/length) for j = 1, …, `harmonics`; the
    others stay as they are. So a point of d coordinates, p of them periodic, has d + (2 · harmonics − 1) p
    features, which is how many inputs `network` must take: `features(d)`.

    **Arguments:**

    - `network`: any network with that many inputs.
    - `periods`: `{axis: length}`, the periodic coordinates.
    - `harmonics`: how many multiples of the base frequency. One is enough in principle; more of them help
      where the solution is sharp.

    ```python
    network = sg.pinn.Periodic(sg.pinn.MLP([3, 16, 1]), periods={1: 2.0})      # of (t, x), period 2 in x
    params = network.init(jax.random.key(0))
    network(params, jnp.array([0.3, -1.0])) - network(params, jnp.array([0.3, 1.0]))          # 0
    ```
    """

    network: Any
    periods: tuple[tuple[int, float], ...] = eqx.field(static=True)
    harmonics: int = eqx.field(static=True)

    def __init__(self, network: Given[Network, ""], periods: Mapping[int, float], harmonics: int = 1):
        self.network = check_network(network)
        if not isinstance(periods, Mapping) or not periods:
            raise TypeError(f"`periods` must be a dictionary {{axis: length}}, got {periods!r}.")
        for axis, length in periods.items():
            if isinstance(axis, bool) or not isinstance(axis, int) or axis < 0:
                raise ValueError(f"`periods` must have axes 0, 1, … as keys, got {axis!r}.")
            if not 0 < float(length) < np.inf:
                raise ValueError(f"`periods[{axis}]` must be a length above 0, got {length!r}.")
        self.periods = tuple((axis, float(periods[axis])) for axis in sorted(periods))
        self.harmonics = positive_int("harmonics", harmonics)

    def features(self, dim: int) -> int:
        """Returns how many inputs the network inside must take where a point has `dim` coordinates."""
        return dim + (2 * self.harmonics - 1) * len(self.periods)

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns random initial parameters of the network inside."""
        return self.network.init(key)

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The output at one point."""
        periods = dict(self.periods)
        if max(periods) >= x.shape[0]:
            raise ValueError(
                f"`periods` names axis {max(periods)}, but a point has {x.shape[0]} coordinates."
            )
        parts = []
        for axis in range(x.shape[0]):
            if axis in periods:
                angle = 2 * np.pi / periods[axis] * np.arange(1, self.harmonics + 1) * x[axis]
                parts += [jnp.cos(angle), jnp.sin(angle)]
            else:
                parts.append(x[axis][None])
        return evaluate(self.network, params, jnp.concatenate(parts), "sg.pinn.Periodic")


class Fourier(eqx.Module):
    """A network that sees Fourier features, cos(ω·x) and sin(ω·x), in place of the coordinates.

    They let it follow fine structure. `network` takes twice as many inputs as there are frequencies.

    **Arguments:**

    - `network`: any network with that many inputs.
    - `frequencies`: an array `[m, d]`, one wave vector ω for each feature, in radians per unit of length.
      `Fourier.random` draws them instead.
    - `trained`: whether the frequencies are parameters too. Then the parameters are
      `{"frequencies": ω, "network": those of the network inside}`.

    ```python
    waves = 2 * jnp.pi * jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    network = sg.pinn.Fourier(sg.pinn.MLP([6, 16, 1]), waves)
    network(network.init(jax.random.key(0)), jnp.zeros(2))
    ```
    """

    network: Any
    frequencies: Float[Array, "m d"]
    trained: bool = eqx.field(static=True)

    def __init__(
        self,
        network: Given[Network, ""],
        frequencies: Given[ArrayLike | Sequence[Sequence[float]], "F d"],
        trained: bool = False,
    ):
        self.network = check_network(network)
        self.frequencies = real_array("frequencies", frequencies, ndim=2)
        self.trained = bool(trained)

    @classmethod
    def random(
        cls,
        network: Given[Network, ""],
        inputs: int,
        count: int,
        scale: Given[ArrayLike | Sequence[float], "..."] = np.pi,
        *,
        seed: int = 0,
        trained: bool = False,
    ) -> "Fourier":
        """`count` normal frequencies of standard deviation `scale` for points of `inputs` coordinates.

        `scale` is one number, or one for each coordinate.
        """
        shape = positive_int("count", count), positive_int("inputs", inputs)
        size = np.asarray(scale, float)
        if size.shape not in ((), shape[1:]) or not np.all(size > 0):
            raise ValueError(f"`scale` must be a number above 0, or {inputs} of them; got {scale!r}.")
        normal = np.random.default_rng(seed).standard_normal(shape)
        return cls(network, np.broadcast_to(size, shape) * normal, trained)

    def features(self, dim: int) -> int:
        """Returns how many inputs the network inside must take: two for each frequency."""
        del dim
        return 2 * self.frequencies.shape[0]

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns random initial parameters of the network inside, and the frequencies where they are
        trained.
        """
        inner = self.network.init(key)
        return {"frequencies": self.frequencies, "network": inner} if self.trained else inner

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The output at one point."""
        frequencies, inner = (
            (params["frequencies"], params["network"])
            if self.trained
            else (jax.lax.stop_gradient(self.frequencies), params)
        )
        if x.shape[0] != frequencies.shape[1]:
            raise ValueError(
                f"`frequencies` are for points of {frequencies.shape[1]} coordinates, got {x.shape[0]}."
            )
        angle = frequencies @ x
        features = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)])
        return evaluate(self.network, inner, features, "sg.pinn.Fourier")


class Series(eqx.Module):
    """A Fourier series in one periodic coordinate, whose coefficients are a network of the others.

    u(t, x) = a₀(t) + Σ_k (a_k(t) cos 2πkx/p + b_k(t) sin 2πkx/p)/k² for k = 1, …, `modes`. Its error falls
    exponentially with the number of modes where the solution is smooth and periodic; a front that is sharper
    than the shortest wave it misses everywhere.

    **Arguments:**

    - `network`: any network of the other coordinates with `Series.outputs(modes)` outputs: a₀, all a_k, all
      b_k. For short times `sg.pinn.Polynomial` is by far the quickest to train. For several periodic
      coordinates it is another series.
    - `axis`, `period`: the periodic coordinate, and its period p.
    - `modes`: how many waves. The solution's own coefficients must have fallen to the accuracy that is
      wanted, and further where the equation takes high derivatives.
    - `count`: how many such functions there are, for which the network has `Series.outputs(modes, count)`
      outputs, those of the first one first; with one, the output is a number.

    ```python
    times = sg.pinn.Polynomial([0], [0.1], degree=8, outputs=sg.pinn.Series.outputs(16))
    network = sg.pinn.Series(times, axis=1, period=2.0, modes=16)                      # of (t, x)
    params = network.init(jax.random.key(0))
    network(params, jnp.array([0.03, -1.0])) - network(params, jnp.array([0.03, 1.0]))        # 0
    ```
    """

    network: Any
    axis: int = eqx.field(static=True)
    period: float = eqx.field(static=True)
    modes: int = eqx.field(static=True)
    count: int = eqx.field(static=True)

    def __init__(self, network: Given[Network, ""], axis: int, period: float, modes: int, count: int = 1):
        self.network = check_network(network)
        if isinstance(axis, bool) or not isinstance(axis, int) or axis < 0:
            raise ValueError(f"`axis` must be 0, 1, …, got {axis!r}.")
        if not 0 < float(period) < np.inf:
            raise ValueError(f"`period` must be a length above 0, got {period!r}.")
        self.axis, self.period, self.modes = axis, float(period), positive_int("modes", modes)
        self.count = positive_int("count", count)

    @staticmethod
    def outputs(modes: int, count: int = 1) -> int:
        """Returns how many outputs the network inside must have: two for each wave, and the mean."""
        return (2 * positive_int("modes", modes) + 1) * positive_int("count", count)

    @property
    def linear(self) -> bool:
        """Whether it is linear in its parameters, as the network inside may be."""
        return is_linear(self.network)

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns random initial parameters of the network inside."""
        return self.network.init(key)

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The output at one point."""
        if self.axis >= x.shape[0]:
            raise ValueError(f"`axis` is {self.axis}, but a point has {x.shape[0]} coordinates.")
        others = jnp.concatenate([x[: self.axis], x[self.axis + 1 :]])
        found = evaluate(self.network, params, others, "sg.pinn.Series")
        wanted = self.outputs(self.modes, self.count)
        if found.shape != (wanted,):
            raise ValueError(
                f"`network` inside sg.pinn.Series must have {wanted} outputs for {self.modes} modes"
                f"{f' of {self.count} functions' if self.count > 1 else ''}; got shape {found.shape}."
            )
        number = np.arange(1.0, self.modes + 1)
        angle = 2 * np.pi / self.period * number * x[self.axis]
        # So that random waves of any number weigh alike in second derivatives.
        waves = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)]) / np.tile(number**2, 2)
        parts = found.reshape(self.count, -1)
        out = parts[:, 0] + parts[:, 1:] @ waves
        return out[0] if self.count == 1 else out


class Polynomial(eqx.Module):
    """A polynomial, of products of Chebyshev's in each coordinate; there is no hidden layer.

    It is linear in its parameters: Levenberg–Marquardt solves a linear equation with it in a few steps, and
    others as Newton's method does. Where the solution is smooth the error falls exponentially with the
    degree, but the number of coefficients, (degree + 1)ᵈ for each output, is bearable in few dimensions only.

    **Arguments:**

    - `low`, `high`: the corners of the box that it is for, one number for each coordinate.
    - `degree`: in each coordinate.
    - `outputs`: how many; with one, the output is a number.

    ```python
    network = sg.pinn.Polynomial([0, 0], [1, 1], degree=10)
    params = network.init(jax.random.key(0))
    network(params, jnp.array([0.3, 0.5]))                                             # one number
    ```
    """

    low: Float[Array, " d"]
    high: Float[Array, " d"]
    degree: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)

    def __init__(
        self,
        low: Given[ArrayLike | Sequence[float], " d"],
        high: Given[ArrayLike | Sequence[float], " d"],
        degree: int,
        outputs: int = 1,
    ):
        self.low, self.high = _corners(low, high)
        self.degree, self.outputs = positive_int("degree", degree), positive_int("outputs", outputs)

    @property
    def linear(self) -> bool:
        """True: it is linear in its parameters."""
        return True

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns random coefficients of a small smooth function, `[(degree + 1)ᵈ, outputs]`: Newton's method
        is at home near zero.
        """
        fall = np.exp(-np.arange(self.degree + 1.0))
        size = np.full(1, SMALL)
        for _ in range(self.low.shape[0]):
            size = np.multiply.outer(size, fall).reshape(-1)
        return jax.random.normal(key, (len(size), self.outputs)) * size[:, None]

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The output at one point."""
        if x.shape != self.low.shape:
            raise ValueError(f"`low` and `high` have {self.low.shape[0]} coordinates, got {x.shape[0]}.")
        s = (2 * x - (self.low + self.high)) / (self.high - self.low)
        powers = jnp.stack([jnp.ones_like(s), s])
        while len(powers) <= self.degree:  # T_{m+j} = 2 T_m T_j − T_{m−j}: few large operations compile soon
            doubled = 2 * powers[-1:] * powers[1:] - powers[-2::-1]
            powers = jnp.concatenate([powers, doubled])[: self.degree + 1]
        product = jnp.ones(1)
        for i in range(s.shape[0]):
            product = (product[:, None] * powers[None, :, i]).reshape(-1)
        out = product @ params
        return out[0] if self.outputs == 1 else out


def _corners(low: Any, high: Any) -> tuple[Array, Array]:
    """Both as arrays; `ValueError` unless each `low` is below its `high`."""
    bottom = real_array("low", np.atleast_1d(low), ndim=1)
    top = real_array("high", np.atleast_1d(high), ndim=1, rows=bottom.shape[0])
    if np.any(np.asarray(bottom) >= np.asarray(top)):
        raise ValueError(f"`low` must be below `high` in every coordinate, got {low!r} and {high!r}.")
    return bottom, top


def network(
    domain: AbstractDomain,
    hidden: Sequence[int] = (32, 32),
    outputs: int = 1,
    activation: Callable | str | None = None,
    *,
    periodic: Mapping[int, float] | None = None,
    harmonics: int = 1,
) -> Any:
    """Returns a good network for a domain: its coordinates scaled to [−1, 1], periodic where the
    domain is.

    **Arguments:**

    - `domain`: where the equation holds, such as `sg.pinn.Box` or `sg.pinn.SpaceTime`.
    - `hidden`, `outputs`: the widths of the hidden layers, and the number of outputs.
    - `activation`: as in `sg.pinn.MLP`; by default the sine.
    - `periodic`: `{axis: length}` in place of what the domain says of itself.
    - `harmonics`: as in `sg.pinn.Periodic`.

    ```python
    domain = sg.pinn.SpaceTime(sg.pinn.Box([-1], [1], periodic=True), 0, 1)
    network = sg.pinn.network(domain, hidden=(16, 16))
    params = network.init(jax.random.key(0))
    network(params, jnp.array([0.3, -1.0])) - network(params, jnp.array([0.3, 1.0]))          # 0
    ```
    """
    if not isinstance(domain, AbstractDomain):
        raise TypeError(f"`domain` must be a domain such as sg.pinn.Box, got {type(domain).__name__}.")
    low, high = (np.asarray(corner) for corner in domain.bounds())
    half = np.where(high > low, (high - low) / 2, 1)  # a domain may be flat, as the start of space–time is
    centre = (low + high) / 2
    periods = domain.periods if periodic is None else periodic
    sizes = [domain.dim + (2 * harmonics - 1) * len(periods), *hidden, outputs]
    inner: Any = MLP(sizes, "sin" if activation is None else activation)
    if periods:
        inner = Periodic(
            inner, {axis: float(length / half[axis]) for axis, length in periods.items()}, harmonics
        )
    return Scaled(inner, centre - half, centre + half)
