"""A linear system and its predicted rate.

Sketch-and-project solves A x = b by looking at k rows at a time. How fast it goes is a property of the
matrix, and can be computed before the first step.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import snapgrad as sg

jax.config.update("jax_enable_x64", True)

# %% A matrix with decaying singular values
# 100 equations, 15 unknowns, singular values 1, 1/2, 1/3, …
A = sg.problems.spectrum_matrix(jax.random.key(0), sg.problems.singular_values("power:1", 15), 100)
x = jnp.ones(15)
b = A @ x

# %% What theory says
# α is the share of the squared error that a step removes on average, in the direction where it removes
# least. Under *squared volume sampling*, where rows that span much are drawn together, it is known exactly
# from the singular values. With momentum the rate becomes √(α/β); β is estimated by draws, and the end of
# its interval that makes the rate safe is used.
sizes = (2, 6)
plain, accelerated = {}, {}
for k in sizes:
    alpha = sg.theory.alpha(A, sample_size=k)
    beta = sg.theory.beta(A, sample_size=k, key=jax.random.key(1), rtol=0.3)
    plain[k] = sg.theory.predicted_rate("sketch-and-project", alpha=alpha)
    accelerated[k] = sg.theory.predicted_rate("accelerated", alpha=alpha, beta=beta)
    print(f"k = {k}: rate {plain[k].rate:.2e} a step, {accelerated[k].rate:.2e} with momentum")

# %% What happens
# `sg.kaczmarz` with the same sampler, and with the step size and momentum that the theory names.
samplers = {k: sg.sampling.SquaredVolume.from_matrix(A, sample_size=k, damping=0.0) for k in sizes}
for k in sizes:
    steps = []
    for momentum, step_size in ((0.0, 1.0), (accelerated[k].momentum, accelerated[k].step_size)):
        result = sg.kaczmarz(
            A, b, sketch=samplers[k], momentum=momentum, step_size=step_size, tol=1e-6, steps=50_000
        )
        steps.append(int(result.history["step"][-1]))
    print(f"k = {k}: a residual of 1e-6 after {steps[0]} steps, and after {steps[1]} with momentum")

# %% Predicted and measured, step by step
# A rate ρ means that the squared error is multiplied by at most 1 − ρ in a step, on average, wherever the
# error points. Part of it points where a step removes more, so that the measured rate is better. With a flat
# spectrum all directions are alike, and the prediction is exact: ρ = k/n. Here are the means of a thousand
# runs with k = 2, in one `vmap` for each matrix.
k, at = 2, np.arange(3, 61, 3)
flat = sg.problems.spectrum_matrix(jax.random.key(3), sg.problems.singular_values("flat", 15), 100)
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
measured, predicted = {}, {}
for name, matrix in (("decaying", A), ("flat", flat)):
    predicted[name] = sg.theory.alpha(matrix, sample_size=k)
    sampler = sg.sampling.SquaredVolume.from_matrix(matrix, sample_size=k, damping=0.0)

    def residuals(key, matrix=matrix, sampler=sampler):
        """‖Ax − b‖/‖b‖ after 3, 6, … steps."""
        b = matrix @ jnp.ones(15)
        return sg.kaczmarz(matrix, b, key, sketch=sampler, steps=60, check_every=3, tol=0.0).history[
            "residual"
        ]

    squares = np.mean(np.square(jax.vmap(residuals)(jax.random.split(jax.random.key(2), 1000))), axis=0)
    measured[name] = 1 - np.exp(np.polyfit(at, np.log(squares), 1)[0])
    print(f"{name}: predicted rate {predicted[name]:.4f}, measured {measured[name]:.4f}")
    (line,) = axes.semilogy(at, squares, "o", markersize=3, label=f"{name}, mean of 1000 runs")
    first = squares[0] / (1 - predicted[name]) ** at[0]
    axes.semilogy(at, first * (1 - predicted[name]) ** at, "--", color=line.get_color(), label="(1 − ρ)ᵗ")
axes.set(xlabel="step", ylabel="squared residual, relative")
axes.legend(frameon=False)
figure.savefig("rate.png", dpi=120)

# %%
# [The theory, executable](../docs/theory.md) says what each number means and which statements are proved.
