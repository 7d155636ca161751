"""A lid-driven cavity at Re = 400: an equation asked in its weak form.

A lid slides over a square full of fluid and drives a large vortex. In a steady flow the stream function ψ,
with velocity (ψ_y, −ψ_x), solves ψ_y Δψ_x − ψ_x Δψ_y = Δ²ψ/Re. Pointwise residuals of it are small for flows
that are wrong: those that hardly move but for a thin layer at the lid.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from snapgrad import pinn

jax.config.update("jax_enable_x64", True)

# %% The equation and the walls
# All fourth derivatives come from one pass. Fluid sticks to the walls, and to the lid at y = 1, which moves
# as 16x²(1 − x)² does, so that nothing is torn at its ends. (`pinn.zoo("cavity-1000")` has the lid of the
# textbooks, with two singular corners.)
REYNOLDS = 400.0
ORDERS = [(0,), (1,), (0, 0, 0), (0, 1, 1), (0, 0, 1), (1, 1, 1), (0, 0, 0, 0), (0, 0, 1, 1), (1, 1, 1, 1)]


def flow(psi, x):
    """What is left of the equation."""
    px, py, xxx, xyy, xxy, yyy, xxxx, xxyy, yyyy = pinn.partials(psi, x, ORDERS)
    return (xxxx + 2 * xxyy + yyyy) / REYNOLDS - py * (xxx + xyy) + px * (xxy + yyy)


def walls(psi, x):
    """ψ and its slopes, less what they must be."""
    px, py = pinn.gradient(psi, x)
    lid = jnp.where(x[1] == 1, 16 * x[0] ** 2 * (1 - x[0]) ** 2, 0)
    return jnp.stack([psi(x), px, py - lid])


box = pinn.Box([0, 0], [1, 1])


def solved(degree, **how):
    """The flow as a polynomial, with the equation asked in some way."""
    blocks = [
        pinn.Block("flow", flow, box, **how),
        pinn.Block("walls", walls, box.boundary(), points=8 * degree, weight=100 / REYNOLDS**2),
    ]
    problem = pinn.PINN(pinn.Polynomial([0, 0], [1, 1], degree), blocks)
    return pinn.solve(problem, jax.random.key(0), steps=40)


# %% At points, and in its weak form
# The weak form asks that integrals of the residual against smooth test functions vanish, measured so that
# what training minimises is the error of the flow itself. `order=2` is half the order of the equation.
pointwise, weak = solved(12, grid=(19, 19)), solved(12, weak=pinn.Weak(12, order=2))
finer = solved(16, weak=pinn.Weak(16, order=2))
middle = jnp.stack([jnp.full(201, 0.5), jnp.linspace(0, 1, 201)], axis=1)


def speed(solution):
    """The velocity along x in the middle of the cavity, from the bottom to the lid."""
    return np.asarray(jax.vmap(lambda x: pinn.gradient(solution, x)[1])(middle))


for name, solution in (("at points", pointwise), ("weak", weak)):
    far = np.abs(speed(solution) - speed(finer)).max()
    print(f"{name}: from a finer solution at most {far:.1e}, loss {solution.history['loss'][-1]:.0e}")

# %% The flow
# Streamlines of the vortex, with a smaller one in a lower corner, and the velocity in the middle.
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
side = np.linspace(0, 1, 81)
grid = jnp.asarray(np.stack(np.meshgrid(side, side), axis=-1))
psi = np.asarray(finer(grid))
levels = np.concatenate([np.linspace(psi.min(), 0, 12)[:-1], np.linspace(0, psi.max(), 6)[1:]])
left.contour(side, side, psi, levels=levels, colors="C0", linewidths=1, linestyles="solid")
left.set(aspect="equal", xlabel="x", ylabel="y", title="streamlines")
right.plot(speed(finer), middle[:, 1], color="0.7", linewidth=4, label="weak, degree 16")
right.plot(speed(weak), middle[:, 1], label="weak, degree 12")
right.plot(speed(pointwise), middle[:, 1], "--", label="at points, degree 12")
right.set(xlabel="velocity along x, at x = 1/2", ylabel="y")
right.legend(frameon=False)
fig.savefig("cavity.png", dpi=120)
plt.close("all")
