"""Several devices.

Points are shared out among devices, parameters are not. One call, `jac.shard(mesh)`, does it; kernels,
products and steps are the same to rounding. Here four CPU devices stand for four GPUs.
"""

import os

# Devices must be counted before JAX starts; on a machine with GPUs leave this out.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp

import snapgrad as sg

jax.config.update("jax_enable_x64", True)

# %% A model and its points
# The number of points must be a multiple of the number of devices.
print(f"{jax.device_count()} devices")


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

# %% The kernel, on one device and on four
mesh = jax.make_mesh((jax.device_count(),), ("points",))
one = sg.jacobian(model, params, points)
four = one.shard(mesh)
K, K_shared = one.gram(), four.gram()
print(f"largest difference {float(jnp.abs(K - K_shared).max()):.1e}")
print("rows of the kernel on each device:", [shard.data.shape[0] for shard in K_shared.addressable_shards])

# %% Training with it
# A method asks a Jacobian for kernels and products and does not know where they come from. So a loop of
# your own has one more call. The target is a function that the network can follow.
target = jnp.sin(points[:, 0]) * points[:, 1]
method = sg.Spring(damping=1e-3, momentum=0.8)


@jax.jit
def step(params, state):
    """One step of SPRING on all points, shared out."""
    lin = sg.linearise(lambda p, row: model(p, row[0]) - row[1], params, (points, target))
    lin = sg.Linearisation(lin.residual, lin.jacobian.shard(mesh))
    direction, state = method.direction(lin, state)
    loss = jnp.mean(lin.residual**2)
    return jax.tree.map(lambda p, d: p - 0.5 * d, params, direction), state, loss


state, losses = method.init(params), []
for _ in range(30):
    params, state, loss = step(params, state)
    losses.append(float(loss))
print("mean squared error:", ", ".join(f"{loss:.1e}" for loss in losses[::10]), f"… {losses[-1]:.1e}")

# %%
# Across hosts, call `jax.distributed.initialize()` first: a mesh may then span all of their devices.
# [Kernels without J](../docs/jacobians.md#several-devices) says what travels between them.
