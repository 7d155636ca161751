"""Your own PDE in twenty lines: a reaction–diffusion equation on a disc.

    −Δu + u³ = f  on the unit disc,  u = 0 on the circle.

To have something to compare with, f is made from u* = (1 − |x|²) e^{x₁}.
"""

import sys

import jax
import jax.numpy as jnp

import snapgrad as sg
from snapgrad import pinn

jax.config.update("jax_enable_x64", True)
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300

# %% The equation
# A residual must vanish at every point x; u is an ordinary function, and so is u*.


def exact(x):
    """The solution u*."""
    return (1 - x @ x) * jnp.exp(x[0])


def equation(u, x):
    """What must vanish at every point of the disc."""
    source = -pinn.laplacian(exact, x) + exact(x) ** 3
    return -pinn.laplacian(u, x) + u(x) ** 3 - source


# %% The problem
# Each condition is a block: a name, a residual, a domain, and how many of its points a step sees.
# `pinn.advice` says whether these are enough.
disc = pinn.Ball([0, 0], radius=1)
problem = pinn.PINN(
    pinn.MLP([2, 32, 1]),
    [
        pinn.Block("interior", equation, disc, points=400),
        pinn.Block("boundary", lambda u, x: u(x), disc.boundary(), points=60),
    ],
    exact=exact,
)
print(pinn.advice(problem))

# %% The solution
# Nothing is to be set. The solution is a function; since u* is known, the history has the error.
solution = pinn.solve(problem, jax.random.key(0), steps=STEPS)
error, seconds = solution.history["relative_l2"][-1], solution.history["seconds"][-1]
print(f"relative L2 error {error:.1e} after {STEPS} steps, {seconds:.1f} s")
print(f"u(0, 0) = {float(solution(jnp.zeros(2))):.8f}, exactly {float(exact(jnp.zeros(2))):.8f}")

# %% By hand
# What trained it is an ordinary method: here for 20 more steps, on fixed points, in the loop of `sg.run`.
sampler = pinn.Collocation(problem, refresh_every=None)
result = sg.run(
    problem, jax.random.key(1), method=sg.Auto(), sampler=sampler, steps=20, params=solution.params
)
print(f"and {float(result.history['relative_l2'][-1]):.1e} after 20 more on other points")
