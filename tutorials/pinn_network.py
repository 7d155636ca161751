"""A network of your own, from equinox, in a PINN.

Anything that turns a point into numbers will do: an equinox module, a flax module, or an object with
`init(key)` and `network(params, x)`. The kernel of the residuals is still found by its structure.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from snapgrad import pinn

jax.config.update("jax_enable_x64", True)


# %% The module
# Two gates look at the point itself, and every layer mixes them: a design known from the literature, in a few
# lines of equinox.
class Gated(eqx.Module):
    """Layers whose output chooses between two views of the point."""

    views: list[eqx.nn.Linear]
    layers: list[eqx.nn.Linear]
    last: eqx.nn.Linear

    def __init__(self, width, depth, key):
        keys = jax.random.split(key, depth + 3)
        self.views = [eqx.nn.Linear(2, width, key=k) for k in keys[:2]]
        sizes = [2] + [width] * (depth - 1)
        self.layers = [eqx.nn.Linear(n, width, key=k) for n, k in zip(sizes, keys[2:-1], strict=True)]
        self.last = eqx.nn.Linear(width, 1, key=keys[-1])

    def __call__(self, x):
        """The network at one point."""
        first, second = (jnp.tanh(view(x)) for view in self.views)
        for layer in self.layers:
            gate = jnp.tanh(layer(x))
            x = gate * first + (1 - gate) * second
        return self.last(x)


# %% The problem
# −Δu = 2π² sin(πx) sin(πy) on the unit square. `Hard` makes the boundary condition hold exactly: u is a
# distance times the network, so that only the equation is left.
square = pinn.Box([0, 0], [1, 1])


def exact(x):
    """sin(πx) sin(πy)."""
    return jnp.prod(jnp.sin(jnp.pi * x))


def equation(u, x):
    """Δu + 2π² sin(πx) sin(πy)."""
    return pinn.laplacian(u, x) + 2 * jnp.pi**2 * exact(x)


network = pinn.Equinox(lambda key: Gated(8, 2, key))
problem = pinn.PINN(
    pinn.Hard.box(network, square),
    [
        pinn.Block(
            "interior", lambda u, x: pinn.laplacian(u, x) + 2 * jnp.pi**2 * exact(x), square, points=200
        )
    ],
    exact=exact,
)
solution = pinn.solve(problem, jax.random.key(0), steps=60)
print(f"relative L2 error {solution.history['relative_l2'][-1]:.1e}")
print(
    f"on the boundary {float(jnp.abs(solution(square.boundary().sample(jax.random.key(1), 50))).max()):.1e}"
)

# %% To a file and back
# The weights are stored; the problem is made again by its code.
solution.save("gated.snap")
again = pinn.load("gated.snap", problem)
print("the same numbers:", bool(again(jnp.array([0.3, 0.4])) == solution(jnp.array([0.3, 0.4]))))
solution.plot("gated.png")
