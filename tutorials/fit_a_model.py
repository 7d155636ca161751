"""Fit your own equinox or flax model.

A model is any JAX function of parameters and a row of the data. Here is the same noisy curve, fitted three
times: by an equinox network, by a flax one, and in an optax loop of our own.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from flax import linen

import snapgrad as sg

# %% The data
# Two hundred noisy points of a function that a small network can follow.
x = jnp.linspace(-1, 1, 200)[:, None]
truth = jnp.sin(6 * x) * jnp.exp(-x)
y = truth + 0.05 * jax.random.normal(jax.random.key(0), x.shape)


# %% An equinox model
# The residual says what is wrong with one row. `sg.fit` needs nothing else: it uses all rows at each step
# while they fit in memory, and `sg.Auto` chooses damping, step size and momentum. `result.params` is a
# model again.
def residual(model, row):
    """Model minus target, for one row."""
    return model(row[0]) - row[1]


model = eqx.nn.MLP(1, 1, 16, 2, activation=jnp.tanh, key=jax.random.key(1))
result = sg.fit(sg.LeastSquares(residual, (x, y), model), jax.random.key(2), steps=60)
fitted = jax.vmap(result.params)(x)


def distance(values):
    """How far a curve is from the truth, on average."""
    return float(jnp.sqrt(jnp.mean((values - truth) ** 2)))


print(f"equinox: stopped by {result.reason!r} after {int(result.history['step'][-1])} steps")
print(f"from the truth: {distance(fitted):.3f}; the noise was 0.05")

# %% A flax model
# Parameters are a tree of arrays and the model is a function of them; nothing else changes.
network = linen.Sequential([linen.Dense(16), jnp.tanh, linen.Dense(16), jnp.tanh, linen.Dense(1)])
params = network.init(jax.random.key(1), x[0])
flax = sg.least_squares(lambda p, row: network.apply(p, row[0]) - row[1], params, (x, y), steps=60)
print(f"flax: from the truth {distance(network.apply(flax.params, x)):.3f}")

# %% A loop of your own
# Any method is an optax transformation. What it needs is the linearisation of the batch, residual and
# Jacobian, which takes the place of the gradient. Batches of 50 rows and 321 parameters: here `sg.Auto` is
# SPRING.
tx = sg.as_optax(sg.Auto())
trained, rest = eqx.partition(model, eqx.is_array)
state = tx.init(trained)
sampler = sg.sampling.Uniform(200, sample_size=50)


@jax.jit
def step(trained, state, rows):
    """One step on a batch."""
    lin = sg.linearise(lambda p, row: residual(eqx.combine(p, rest), row), trained, (x[rows], y[rows]))
    updates, state = tx.update(None, state, trained, linearisation=lin)
    return optax.apply_updates(trained, updates), state


for key in jax.random.split(jax.random.key(3), 150):
    trained, state = step(trained, state, sampler.sample(key))
looped = jax.vmap(eqx.combine(trained, rest))(x)
print(f"on batches: from the truth {distance(looped):.3f}; steps left out: {int(state.rejected)}")

# %% What they found
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
axes.plot(x, y, ".", color="0.7", markersize=3, label="data")
axes.plot(x, truth, "k--", linewidth=1, label="truth")
axes.plot(x, fitted, label="all rows")
axes.plot(x, looped, label="batches of 50")
axes.legend(frameon=False)
figure.savefig("fit.png", dpi=120)

# %%
# To save what was fitted, `sg.save(path, result.params)`; to go on later, `sg.fit(..., checkpoint=folder)`.
# [Training a model of your own](../docs/training.md) has the other losses, stop rules and error bars.
