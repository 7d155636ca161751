"""A plate with two holes: shapes that combine, and conditions of three kinds on parts of their boundary.

Heat flows through a plate in equilibrium, Δu = 0. Its left and right ends are held at given temperatures, the
long sides and the round hole let a given flux through, and the square hole is in contact with a medium.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

from snapgrad import pinn

jax.config.update("jax_enable_x64", True)

# %% The shape
# Shapes add (`|`), cut (`-`) and meet (`&`). Points are drawn inside, and on the true boundary.
plate = pinn.Box([0, 0], [2, 1])
disc, square = pinn.Ball([0.5, 0.5], radius=0.25), pinn.Box([1.3, 0.3], [1.7, 0.7])
shape = plate - disc - square
print(f"area {float(shape.volume):.3f}, boundary {float(shape.boundary().area):.3f}")

# %% The conditions
# To have something to compare with, temperatures and fluxes are those of u = eˣ sin y, whose Laplacian
# vanishes. A part of a boundary is chosen by where it lies, and a residual that names `normal` is given the
# outward normal. (Where these do not depend on the normal, `pinn.Neumann` and `pinn.Robin` are shorter.)


def exact(x):
    """The temperature."""
    return jnp.exp(x[0]) * jnp.sin(x[1])


def end(x):
    """Whether a place is at the left or the right end."""
    return (x[0] < 1e-9) | (x[0] > 2 - 1e-9)


def contact(x):
    """Whether a place is on the square hole."""
    return (jnp.abs(x[0] - 1.5) < 0.2 + 1e-9) & (jnp.abs(x[1] - 0.5) < 0.2 + 1e-9)


def flux(u, x, normal):
    """The derivative of u along the normal, less what it should be."""
    return pinn.directional(u, x, normal) - pinn.directional(exact, x, normal)


sides = shape.boundary(normals=True, where=lambda x: ~end(x) & ~contact(x))
rim = shape.boundary(normals=True, where=contact)
problem = pinn.PINN(
    pinn.network(plate, hidden=(16, 16), activation="tanh"),
    [
        pinn.Block("interior", pinn.laplacian, shape, points=600),
        pinn.Dirichlet(shape, exact, where=end, points=60),
        pinn.Block("flux", flux, sides, points=150),
        pinn.Block("contact", lambda u, x, normal: u(x) - exact(x) + flux(u, x, normal), rim, points=60),
    ],
    exact=exact,
)
solution = pinn.solve(problem, jax.random.key(0), steps=150)
print(f"relative error {solution.history['relative_l2'][-1]:.1e}, {solution.reason}")

# %% The temperature
# Nothing is drawn in the holes.
solution.plot("temperature.png")
plt.close("all")
