"""Sweep by vmap.

Damping, momentum and step size are numbers in arrays, not in closures. So a grid of settings times a number
of seeds is one `jax.vmap`, and one compiled program.
"""

import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import snapgrad as sg

# %% One run
# A least-squares problem of 200 rows and 20 parameters; SPRING on batches of five rows. `sg.run` is a
# compiled loop that takes and returns arrays, so that it can be transformed like any JAX function.
problem = sg.problems.gaussian_llq(jax.random.key(0), 200, 20)
sampler = sg.sampling.Uniform(200, sample_size=5)


def error(damping, momentum, key):
    """The relative error after 300 steps."""
    method = sg.Spring(damping, momentum)
    result = sg.run(problem, key, method=method, sampler=sampler, optimizer=0.5, steps=300, record_every=300)
    return result.history["relative_error"][-1]


print(f"one run: {error(1e-3, 0.5, jax.random.key(1)):.2e}")

# %% All of them
# Eight dampings, five momenta, four seeds: 160 runs in one call.
dampings = jnp.logspace(-4, 1, 8)
momenta = jnp.array([0.0, 0.3, 0.6, 0.8, 0.9])
keys = jax.random.split(jax.random.key(1), 4)
over_keys = jax.vmap(error, (None, None, 0))
over_momenta = jax.vmap(over_keys, (None, 0, None))
sweep = jax.jit(jax.vmap(over_momenta, (0, None, None)))

begin = time.perf_counter()
errors = np.exp(np.mean(np.log(sweep(dampings, momenta, keys)), axis=-1))  # [8, 5]
print(f"160 runs in {time.perf_counter() - begin:.1f} s, compilation included")
i, j = np.unravel_index(np.argmin(errors), errors.shape)
print(f"best: damping {dampings[i]:.1e}, momentum {momenta[j]:.1f}, error {errors[i, j]:.1e}")

# %% What the sweep shows
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for column, momentum in enumerate(momenta):
    axes.loglog(dampings, errors[:, column], "o-", label=f"μ = {momentum:.1f}")
axes.set(xlabel="damping λ", ylabel="relative error after 300 steps")
axes.legend(frameon=False)
figure.savefig("sweep.png", dpi=120)

# %%
# The same by itself, without a sweep: `sg.Auto()` in place of `sg.Spring(...)`, with a unit learning rate.
auto = sg.run(problem, jax.random.key(1), method=sg.Auto(), sampler=sampler, steps=300, record_every=300)
print(f"sg.Auto: {auto.history['relative_error'][-1]:.1e}")
