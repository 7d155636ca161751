"""Networks that hold the start of an evolution exactly, and can be handed on from slab to slab of time."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._checks import Given
from .._contracts import Params
from ._blocks import as_tree
from ._domains import SpaceTime
from ._drawing import AbstractDomain
from ._network import Network, check_network, evaluate, is_linear

TOGETHER = 16
"""So many networks of earlier slabs are evaluated side by side; more would fill the memory."""


class Evolving(eqx.Module):
    """u(t, x) = u₀(x) + s N(t − t₀, x): at the start t₀ it is u₀ for any network N. Here s = (t − t₀)/T.

    With such a network an equation of evolution needs no block for its start, nor a weight for one, and
    `sg.pinn.march` hands it on: it keeps the networks of the slabs before, so that the start of slab k is
    u₀(x) + Σ_{j<k} N_j(T_j, x), exact to rounding with all its derivatives. All slabs share one compiled
    program, and the last one speaks for all times. Where slabs differ in length, N sees a time that takes as
    long in each of them as in the mean one. Where N is linear in its parameters (`sg.pinn.Polynomial`, and
    `sg.pinn.Series` of one) those of the slabs before are summed instead of their outputs.

    Conditions on the boundary of space belong into N and u₀, or into blocks.

    **Arguments:**

    - `network`: N, any network of (t, x), which sees the start of a slab as t = 0.
    - `domain`: a `sg.pinn.SpaceTime`; its start is t₀ and its length T.
    - `start`: u₀, a function of a point (t, x) at the start.
    - `velocity`: u̇₀ for equations of second order in time, another such function: u = u₀ + (t − t₀)u̇₀ + s²N.
    - `lift`: a function of a point that holds what is known of the solution and hard to learn, such as how a
      kink of u₀ spreads: u = lift(t, x) + (u₀ − lift at t₀) + s N. By default there is none.

    ```python
    domain = sg.pinn.SpaceTime(sg.pinn.Box([-1], [1], periodic=True), 0, 1)
    network = sg.pinn.Evolving(sg.pinn.network(domain, (16,)), domain, lambda x: jnp.cos(jnp.pi * x[1]))
    network(network.init(jax.random.key(0)), jnp.array([0.0, 0.25]))              # cos π/4
    ```
    """

    network: Any
    start: Callable
    velocity: Callable | None
    lift: Callable | None
    times: Float[Array, " slabs_and_one"]
    done: Int[Array, ""]  # how many slabs lie behind
    earlier: Params  # of their networks, one after the other; zeros for those to come
    length: Float[Array, ""]  # of a slab, on average

    def __init__(
        self,
        network: Given[Network, ""],
        domain: AbstractDomain,
        start: Given[Callable, ""],
        *,
        velocity: Given[Callable | None, ""] = None,
        lift: Given[Callable | None, ""] = None,
    ):
        if not isinstance(domain, SpaceTime):
            raise TypeError(f"`domain` must be a sg.pinn.SpaceTime, got {type(domain).__name__}.")
        for name, value in {"start": start, "velocity": velocity, "lift": lift}.items():
            if not callable(value) and (value is not None or name == "start"):
                raise TypeError(f"`{name}` must be a function of a point, got {type(value).__name__}.")
        if not float(domain.end) > float(domain.start):
            raise ValueError(f"`domain` must last some time, got from {domain.start} to {domain.end}.")
        self.network = check_network(network)
        self.start, self.velocity, self.lift = (as_tree(fn) for fn in (start, velocity, lift))
        # With a dtype of their own: a weak type would be another program.
        self.times = jnp.stack([jnp.asarray(domain.start, float), jnp.asarray(domain.end, float)])
        self.done, self.earlier, self.length = jnp.zeros((), int), None, self.times[1] - self.times[0]

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns random initial parameters of the network inside."""
        return self.network.init(key)

    def __call__(self, params: Params, x: Float[Array, " d"]) -> Float[Array, "*o"]:
        """The output at one point of this slab or an earlier one."""
        first = jnp.concatenate([self.times[:1], x[1:]])
        known, time = self.start(first), x[0]
        if self.velocity is not None:
            known = known + (time - self.times[0]) * self.velocity(first)
        if self.lift is not None:
            known = known + self.lift(x) - self.lift(first)
            if self.velocity is not None:
                known = known - (time - self.times[0]) * _rate(self.lift, first)
        begin = self.times[self.done]
        since = jnp.where(time >= begin, time - begin, 0)
        found = known + self._share(params, x, since, self.times[self.done + 1] - begin)
        if self.earlier is None:
            return found
        if self.velocity is None and is_linear(self.network):
            return found + self._summed(x, time)

        def share(slab: tuple[Params, Array, Array, Array]) -> Array:
            weights, begin, end, past = slab
            over, length = time >= end, end - begin  # the later slab speaks where two of them meet
            since = jnp.where(over, length, jnp.where(time >= begin, time - begin, 0))
            if self.velocity is None:
                return jnp.where(past, self._share(weights, x, since, length), 0)
            value, rate = jax.jvp(
                lambda t: self._share(weights, x, t, length), (since,), (jnp.ones_like(since),)
            )
            return jnp.where(past, value + jnp.where(over, time - end, 0) * rate, 0)

        past = jnp.arange(len(self.times) - 2) < self.done
        slabs = (self.earlier, self.times[:-2], self.times[1:-1], past)
        return found + jnp.sum(jax.lax.map(share, slabs, batch_size=TOGETHER), axis=0)

    def _summed(self, x: Float[Array, " d"], time: Array) -> Float[Array, "*o"]:
        """What the slabs before add where networks are linear: that of the sum of their weights."""
        slab = jnp.minimum(jnp.sum(time >= self.times[1:-1]), self.done)
        before = jax.tree.map(
            lambda room: jnp.concatenate([jnp.zeros_like(room[:1]), jnp.cumsum(room, axis=0)])[slab],
            self.earlier,
        )
        own = jax.tree.map(lambda room: room[jnp.minimum(slab, room.shape[0] - 1)], self.earlier)
        since = jnp.where(slab < self.done, time - self.times[slab], 0)
        past = self._share(own, x, since, self.times[slab + 1] - self.times[slab])
        return self._share(before, x, self.length, self.length) + past

    def _share(self, params: Params, x: Float[Array, " d"], since: Array, length: Array) -> Array:
        """What the network of a slab adds, so long after the start of that slab."""
        s = since / length
        local = jnp.concatenate([(s * self.length)[None], x[1:]])
        out = evaluate(self.network, params, local, "sg.pinn.Evolving")
        return (s if self.velocity is None else s**2) * out

    def over(self, times: Sequence[float]) -> "Evolving":
        """Returns the same for the first of the slabs between `times`, with room for the networks of all but
        the last.
        """
        count = len(times) - 2
        params = jax.eval_shape(self.init, jax.random.key(0)) if count else None

        def room(leaf: jax.ShapeDtypeStruct) -> Array:
            return jnp.zeros((count, *leaf.shape), leaf.dtype)

        length = jnp.asarray((times[-1] - times[0]) / (count + 1), float)
        return self._with(jnp.asarray(times, float), jnp.zeros((), int), jax.tree.map(room, params), length)

    def after(self, params: Params) -> "Evolving":
        """Returns the same for the next slab, where this one has ended with these parameters."""
        earlier = jax.tree.map(lambda room, leaf: room.at[self.done].set(leaf), self.earlier, params)
        return self._with(self.times, self.done + 1, earlier, self.length)

    def remembering(self, last: "Evolving | None") -> "Evolving":
        """Returns the same with the memory of a later slab, of which it knows its own past; with None it
        forgets everything but its own slab.
        """
        return self._with(self.times, self.done, None if last is None else last.earlier, self.length)

    def _with(self, times: Array, done: Array, earlier: Params, length: Array) -> "Evolving":
        return eqx.tree_at(
            lambda network: (network.times, network.done, network.earlier, network.length),
            self,
            (times, done, earlier, length),
            is_leaf=lambda leaf: leaf is None,
        )


def _rate(u: Callable, x: Float[Array, " d"]) -> Float[Array, "*o"]:
    return jax.jvp(u, (x,), (jnp.zeros_like(x).at[0].set(1),))[1]
