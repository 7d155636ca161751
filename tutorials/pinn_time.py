"""A time-dependent equation: one network for all times, or slab after slab.

A wave is carried around a circle twice in a unit of time: u_t + 4π u_x = 0. On a periodic domain the
network is made periodic, and needs no boundary condition. Over many periods it pays to march.
"""

import jax
import jax.numpy as jnp

from snapgrad import pinn

jax.config.update("jax_enable_x64", True)

# %% The problem
# Time is the first coordinate. `pinn.network` makes a network that fits the domain: here one of sines and
# cosines of x, so that u(t, 0) = u(t, 2π) by construction. An error of the start is carried along for ever,
# so the start has a large weight.
circle = pinn.SpaceTime(pinn.Box([0], [2 * jnp.pi], periodic=True), 0, 1)
speed = 4 * jnp.pi


def exact(x):
    """The start, moved."""
    return jnp.sin(x[1] - speed * x[0])


def equation(u, x):
    """u_t + c u_x, in units of c."""
    _, (u_t, u_x), _ = pinn.derivatives(u, x)
    return u_t / speed + u_x


def made_for(domain):
    """The problem, with a network whose time is scaled to that of `domain`."""
    return pinn.PINN(
        pinn.network(domain, hidden=(10, 10)),
        [
            pinn.Block("interior", equation, circle, points=300),
            pinn.Block("initial", lambda u, x: u(x) - exact(x), circle.initial(), points=30, weight=1000),
        ],
        exact=exact,
    )


print(pinn.advice(made_for(circle)))

# %% All times at once
# A network of this size does not find two periods at once.
whole = pinn.solve(made_for(circle), jax.random.key(0), steps=60)
print(f"one network, 60 steps: relative error {whole.history['relative_l2'][-1]:.1e}")

# %% Slab after slab
# The end of one slab is the start of the next, and so are its weights. The network counts time from the start
# of its slab, so it is made for one. What comes back is one function of all times.
slab = pinn.SpaceTime(circle.space, 0, 1 / 4)
marched = pinn.march(made_for(slab), jax.random.key(0), slabs=4, steps=160)
print(f"four slabs, 40 steps each: relative error {float(marched.relative_l2):.1e}")
end = jnp.array([1.0, 1.0])
print(f"u(1, 1) = {float(marched(end)):.4f}, exactly {float(exact(end)):.4f}")
