"""A coefficient from noisy data, with error bars.

A rod cools: u_t = κ u_xx. Its temperature was measured at eighty places and times, each time with an error.
How large is κ, and how sure is that?
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from snapgrad import pinn

jax.config.update("jax_enable_x64", True)

# %% The measurements
# They are made up here, with κ = 0.3 and errors of 0.02, so that we can see what comes out.
rng = np.random.default_rng(0)
place = rng.uniform(size=(80, 2))  # rows (t, x)
value = np.exp(-0.3 * np.pi**2 * place[:, 0]) * np.sin(np.pi * place[:, 1]) + 0.02 * rng.standard_normal(80)

# %% The problem
# A residual names what it needs: `diffusivity` is an unknown number, `value` a column of the data. The
# equation is exact and the data are not, so it has ten times their weight.
rod = pinn.SpaceTime(pinn.Box([0], [1]), 0, 1)


def equation(u, x, diffusivity):
    """u_t − κ u_xx."""
    _, (u_t, _), u_xx = pinn.derivatives(u, x, axes=1)
    return u_t - diffusivity * u_xx


problem = pinn.PINN(
    pinn.MLP([2, 12, 1]),
    [
        pinn.Block("equation", equation, rod, points=200, weight=10),
        pinn.Dirichlet(rod, 0.0, points=20, weight=10),
        pinn.Block("data", lambda u, x, value: u(x) - value, pinn.Points(place, value=value)),
    ],
    unknowns={"diffusivity": 1.0},
)
solution = pinn.solve(problem, jax.random.key(0), steps=200)

# %% What was found
# The errors say how far the noise may have moved the coefficient and the temperature. The size of the noise
# is not given: it is estimated from what the fit leaves.
bars = solution.error_bars(level=0.9)
low, high = bars.intervals["diffusivity"]
print(f"κ = {solution.unknowns['diffusivity']:.4f} ± {bars.errors['diffusivity']:.4f}")
print(f"between {low:.4f} and {high:.4f} with probability 0.9; it was 0.3")
print(f"the noise is {bars.noise['data']:.4f}; it was 0.02")

# %% The temperature after half of the time
x = np.stack([np.full(101, 0.5), np.linspace(0, 1, 101)], axis=1)
mean, error = np.asarray(solution(x)), np.asarray(bars(x))
figure, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
ax.fill_between(x[:, 1], mean - 2 * error, mean + 2 * error, alpha=0.3, label="two standard errors")
ax.plot(x[:, 1], mean, label="found")
ax.plot(x[:, 1], np.exp(-0.15 * np.pi**2) * np.sin(np.pi * x[:, 1]), "--", label="exact")
ax.set(xlabel="x", ylabel="u at t = 0.5")
ax.legend()
figure.savefig("temperature.png", dpi=120)
covered = jnp.mean(jnp.abs(mean - np.exp(-0.15 * np.pi**2) * np.sin(np.pi * x[:, 1])) <= 2 * error)
print(f"the exact temperature is within the band at {covered:.0%} of the places")
