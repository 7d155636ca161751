"""Your own PDE in twenty lines: a reaction–diffusion equation on a disc, solved to six digits.

    −Δu + u³ = f  on the unit disc,  u = 0 on the circle.

To have something to compare with, f is made from u* = (1 − |x|²) e^{x₁}.

    python tutorials/pinn.py [steps]
"""

import sys

import jax
import jax.numpy as jnp

import snapgrad as sg
from snapgrad import pinn


def exact(x):
    """The solution u*."""
    return (1 - x @ x) * jnp.exp(x[0])


def equation(u, x):
    """What must vanish at every point of the disc; u is an ordinary function."""
    source = -pinn.laplacian(exact, x) + exact(x) ** 3
    return -pinn.laplacian(u, x) + u(x) ** 3 - source


disc = pinn.Ball([0, 0], radius=1)
problem = pinn.PINN(
    pinn.MLP([2, 32, 1]),
    [
        pinn.Block("interior", equation, disc, points=400),
        pinn.Block("boundary", lambda u, x: u(x), disc.boundary(), points=60),
    ],
    exact=exact,
)


def main(steps: int = 300) -> pinn.Solution:
    """Train, and say how close it came."""
    print(pinn.advice(problem))
    solution = pinn.solve(problem, jax.random.key(0), steps=steps)
    error = solution.history["relative_l2"][-1]
    print(f"relative L2 error {error:.1e} after {steps} steps, {solution.history['seconds'][-1]:.1f} s")
    print(f"u(0, 0) = {float(solution(jnp.zeros(2))):.8f}, exactly {float(exact(jnp.zeros(2))):.8f}")

    # What trained it is an ordinary method: here for 20 more steps, by hand, in the library's own loop.
    sampler = pinn.Collocation(problem, refresh_every=None)
    result = sg.run(
        problem, jax.random.key(1), method=sg.Auto(), sampler=sampler, steps=20, params=solution.params
    )
    print(f"and {float(result.history['relative_l2'][-1]):.1e} after 20 more on other points")
    return solution


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main(*map(int, sys.argv[1:]))
