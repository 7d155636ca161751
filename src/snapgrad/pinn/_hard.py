"""Networks that fulfil boundary and initial conditions exactly, whatever their weights."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import Given
from .._contracts import Params
from ._domains import AbstractDomain, Box, SpaceTime
from ._network import Network, check_network, evaluate

ENDS = ("low", "high")


class Hard(eqx.Module):
    """u(x) = lift(x) + distance(x) · N(x): where the distance vanishes, u is the lift for any network N.

    **Arguments:**

    - `network`: N, any network.
    - `distance`: a smooth function of a point that is zero where conditions hold, and nowhere else. It
      returns one number, or one for each output, with ones for outputs that are free.
    - `lift`: a smooth function of a point with the right values there; by default zero.

    `Hard.box` makes both for boxes and for initial conditions.

    ```python
    network = sg.pinn.Hard(                     # u = 1 on the unit circle
        sg.pinn.MLP([2, 16, 1]), distance=lambda x: 1 - x @ x, lift=lambda x: 1.0
    )
    network(network.init(jax.random.key(0)), jnp.array([0.6, 0.8]))              # 1
    ```
    """

    network: Any
    distance: Callable = eqx.field(static=True)
    lift: Callable = eqx.field(static=True)

    def __init__(self, network: Given[Network, ""], distance: Callable, lift: Callable | None = None):
        self.network = check_network(network)
        self.distance = _function("distance", distance)
        self.lift = _function("lift", _zero if lift is None else lift)

    @classmethod
    def box(
        cls,
        network: Given[Network, ""],
        domain: AbstractDomain,
        value: Given[Callable | float, ""] = 0.0,
        *,
        faces: Sequence[int | tuple[int, str]] | None = None,
        initial: Given[Callable | float, ""] | None = None,
        velocity: Given[Callable | float, ""] | None = None,
    ) -> "Hard":
        """Makes a network that is given on faces of a box, at the start of space–time, or on both.

        On faces the distance is Π 4(x − a)(b − x)/(b − a)²; at the start it is t, or t² where the velocity
        is given as well, with t from 0 to 1 over the domain's time.

        **Arguments:**

        - `network`: N, any network.
        - `domain`: a `sg.pinn.Box`, or a `sg.pinn.SpaceTime` on one (on any domain where `faces=()`).
        - `value`: what u is on the faces: a number, or a function of a point that has the right values there
          and is smooth everywhere.
        - `faces`: an axis stands for both of its faces, `(axis, "low")` or `(axis, "high")` for one. By
          default all that are not periodic; `()` for none. Axes count the coordinates of a point, so that
          those of space are 1, 2, … in space–time.
        - `initial`, `velocity`: what u and ∂u/∂t are at the start; numbers or functions of a point. They must
          agree with `value` where faces and start meet, or the faces are missed by the difference.

        ```python
        domain = sg.pinn.SpaceTime(sg.pinn.Box([0], [1]), 0, 1)
        network = sg.pinn.Hard.box(               # u = 0 at both ends, sin πx at the start
            sg.pinn.MLP([2, 16, 1]), domain, initial=lambda x: jnp.sin(jnp.pi * x[1])
        )
        network(network.init(jax.random.key(0)), jnp.array([0.0, 0.5]))           # 1
        ```
        """
        if velocity is not None and initial is None:
            raise ValueError("`initial` is missing: a `velocity` alone does not say where u starts.")
        if initial is not None and not isinstance(domain, SpaceTime):
            raise TypeError(f"`initial` needs a sg.pinn.SpaceTime for a domain, got {type(domain).__name__}.")
        space = domain.space if isinstance(domain, SpaceTime) else domain
        if not isinstance(space, Box) and (faces is None or len(faces)):
            raise TypeError(
                f"`domain` must be a box, or space–time on one, to have faces; got {type(space).__name__}. "
                f"Give sg.pinn.Hard a `distance` of your own, or `faces=()` for an initial condition alone."
            )
        ends = _ends(domain, faces)
        low, high = (np.asarray(corner) for corner in domain.bounds()) if ends else (np.zeros(0),) * 2
        border = _constant(value)
        if initial is None or not isinstance(domain, SpaceTime):
            if not ends:
                raise ValueError("`faces` must name at least one face, or `initial` be given; got neither.")
            return cls(network, lambda x: _product(x, low, high, ends), border)

        start, length = float(domain.start), float(domain.end - domain.start)
        if not length > 0:
            raise ValueError(f"`domain` must last some time for an initial condition, got {length}.")
        first = _constant(initial)
        speed = None if velocity is None else _constant(velocity)
        power = 1 if speed is None else 2

        def distance(x: Array) -> Array:
            return ((x[0] - start) / length) ** power * _product(x, low, high, ends)

        def lift(x: Array) -> Array:
            then = jnp.concatenate([jnp.full_like(x[:1], start), x[1:]])
            found = border(x) - border(then) + first(then)
            if speed is not None:
                along = jnp.zeros_like(x).at[0].set(1)
                found = found + (x[0] - start) * (speed(then) - jax.jvp(border, (then,), (along,))[1])
            return found

        return cls(network, distance, lift)

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns random initial parameters of the network inside."""
        return self.network.init(key)

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The output at one point."""
        out = evaluate(self.network, params, x, "sg.pinn.Hard")
        distance, lift = (
            _shaped(name, getattr(self, name)(x), jnp.shape(out)) for name in ("distance", "lift")
        )
        return lift + distance * out


def _product(x: Array, low: np.ndarray, high: np.ndarray, ends: dict[int, tuple[str, ...]]) -> Array:
    """One factor for each face, 1 in the middle of a pair of them."""
    found = jnp.ones((), x.dtype)
    for axis, chosen in ends.items():
        length = high[axis] - low[axis]
        if "low" in chosen:
            found = found * (x[axis] - low[axis]) / length
        if "high" in chosen:
            found = found * (high[axis] - x[axis]) / length
        if len(chosen) == 2:
            found = 4 * found
    return found


def _ends(domain: AbstractDomain, faces: Any) -> dict[int, tuple[str, ...]]:
    """`{axis: its ends}` for faces as the user names them."""
    first = 1 if isinstance(domain, SpaceTime) else 0
    free = [axis for axis in range(first, domain.dim) if axis not in domain.periods]
    if faces is None:
        return {axis: ENDS for axis in free}
    found: dict[int, tuple[str, ...]] = {}
    for face in faces:
        axis, chosen = (face, ENDS) if isinstance(face, int) else (face[0], (face[1],))
        if axis not in free or not set(chosen) <= set(ENDS):
            raise ValueError(
                f"`faces` must hold axes out of {free}, or pairs such as ({free[0] if free else 0}, 'low'); "
                f"got {face!r}. Periodic coordinates and time have no faces."
            )
        found[axis] = tuple(dict.fromkeys(found.get(axis, ()) + chosen))
    return found


def _function(name: str, fn: Any) -> Callable:
    if not callable(fn):
        raise TypeError(f"`{name}` must be a function of a point, got {type(fn).__name__}.")
    return fn


def _constant(value: Any) -> Callable:
    """A function of a point; numbers stand for constant ones."""
    if callable(value):
        return lambda x: jnp.asarray(value(x))
    return lambda x: jnp.asarray(value, x.dtype)


def _zero(x: Array) -> Array:
    return jnp.zeros((), x.dtype)


def _shaped(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    """One number for all outputs, or one for each of them."""
    value = jnp.asarray(value)
    if value.size == 1:
        return jnp.broadcast_to(value.reshape(()), shape)
    if value.shape != shape:
        raise ValueError(
            f"`{name}` must return one number, or one for each output of the network, {shape}; "
            f"got {value.shape}."
        )
    return value
