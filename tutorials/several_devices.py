"""Several devices.

Rows are shared out among devices, parameters are not. One argument, `mesh=`, does it for training, and one
call, `jac.shard(mesh)`, for a Jacobian of your own. Results are those of one device, to rounding. Here four
CPU devices stand for four GPUs.
"""

import os

# Devices must be counted before JAX starts; on a machine with GPUs leave this out.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp

import snapgrad as sg

jax.config.update("jax_enable_x64", True)

# %% Training
# A mesh of one axis holds the devices. The number of rows need not be a multiple of theirs.
mesh = jax.make_mesh((jax.device_count(),), ("rows",))
print(f"{mesh.size} devices")

x = jnp.linspace(-3, 3, 203)
data = (x, jnp.sin(x) - 0.4 * jnp.sin(3 * x))
start = {"a": jnp.array([1.2, -0.5]), "b": jnp.array([1.1, 2.9])}


def residual(params, row):
    """A sum of two waves, minus the data."""
    x, y = row
    return jnp.sum(params["a"] * jnp.sin(params["b"] * x)) - y


one = sg.least_squares(residual, start, data, steps=20)
four = sg.least_squares(residual, start, data, steps=20, mesh=mesh)
for name in start:
    difference = float(jnp.abs(one.params[name] - four.params[name]).max())
    print(name, four.params[name], f"largest difference {difference:.1e}")

# %%
# `sg.pinn.solve`, `sg.molecules.solve`, `sg.fit` and `sg.run` take the same argument. A checkpoint that was
# written on four devices goes on with one, or with eight.

# %% A Jacobian of your own
# In a loop of your own the Jacobian is what is shared out. The kernel comes out by rows.


def model(params, x):
    """A perceptron with one hidden layer."""
    return jnp.tanh(x @ params["W"] + params["b"]) @ params["v"]


keys = jax.random.split(jax.random.key(0), 3)
params = {
    "W": jax.random.normal(keys[0], (3, 64)),
    "b": jnp.zeros(64),
    "v": jax.random.normal(keys[1], (64,)) / 8,
}
points = jax.random.normal(keys[2], (256, 3))
jac = sg.jacobian(model, params, points)
K, K_shared = jac.gram(), jac.shard(mesh).gram()
print(f"largest difference {float(jnp.abs(K - K_shared).max()):.1e}")
print("rows of the kernel on each device:", [shard.data.shape[0] for shard in K_shared.addressable_shards])

# %%
# A method asks a Jacobian for kernels and products and does not know where they come from, so a step has one
# more call: `sg.Linearisation(lin.residual, lin.jacobian.shard(mesh))` in place of `lin`.
#
# Across hosts, call `jax.distributed.initialize()` first: a mesh may then span all of their devices.
# [Several devices, several hosts](../docs/scaling.md) shows it, with a script for SLURM.
