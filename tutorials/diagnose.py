"""Diagnose your model.

A model that trains slowly has reasons. `sg.diagnose` looks at the kernel JJᵀ of a pool of rows, asks how
far the theory of linear problems applies, times real steps, rehearses settings, and says which method,
sample size, damping, step size and momentum to use, and how sure it is.
"""

import jax
import jax.numpy as jnp

import snapgrad as sg

jax.config.update("jax_enable_x64", True)

# %% A model of random features
# Linear in its parameters, so that theory applies; ill-conditioned, so that the choice matters.
points = jax.random.normal(jax.random.key(0), (400, 3))
weights = jax.random.normal(jax.random.key(1), (3, 40))


def model(params, x):
    """Random waves, weighted."""
    return jnp.cos(x @ weights) @ params


target = jax.vmap(model, (None, 0))(jnp.linspace(-1, 1, 40), points)
problem = sg.LeastSquares(lambda p, row: model(p, row[0]) - row[1], (points, target), jnp.zeros(40))

# %% The report
# The spectrum of the kernel, whether the model is linear enough, and the recommended settings with their
# reasons.
report = sg.diagnose(problem, jax.random.key(2), sample_sizes=[5, 20], seconds=4)
print(report)

# %% Its picture
report.plot("diagnosis.svg")

# %% Taking the advice
# `report.method()`, `.sampler()` and `.optimizer()` are what it recommends, ready to run.
result = sg.run(
    problem,
    jax.random.key(3),
    method=report.method(),
    sampler=report.sampler(),
    optimizer=report.optimizer(),
    steps=1000,
    record_every=250,
)
print("loss:", ", ".join(f"{float(loss):.1e}" for loss in result.history["loss"]))

# %%
# [Advice for a model of your own](../docs/diagnose.md) says what each part measures, and where it does not
# help.
