"""Rows over several devices: the same kernel and products as on one, to rounding."""

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import functools
import sys
sys.path.insert(0, {tests!r})
import conftest
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from models import M
from snapgrad.operators import jacobian, realify, stack

devices = 4
assert len(jax.devices()) == devices
mesh = jax.make_mesh((devices,), ("points",))
three = jax.sharding.Mesh(jax.devices()[:3], ("points",))
key = jax.random.key(0)
params = {{"W": jax.random.normal(key, (4, 16)), "b": jnp.ones(16), "v": jax.random.normal(key, (16,))}}
x, y = jax.random.normal(key, (4 * devices, 4)), jax.random.normal(key, (2 * devices, 4))
model = lambda p, x: jnp.tanh(x @ p["W"] + p["b"]) @ p["v"]
pair = lambda p, x: jnp.stack([model(p, x), jnp.sum(jnp.sin(x @ p["W"]))])


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-13 * float(jnp.abs(b).max()))


@functools.partial(jax.jit, compiler_options={{"xla_backend_optimization_level": 0}})
def products(jac, u, params):
    return jac.gram(), jac.mv(params), ravel_pytree(jac.rmv(u))[0], jac.dense()


def compare(one, many, params=params, even=True):
    u = jnp.linspace(-1, 1, one.shape[0])
    found = products(many, u, params)
    for a, b in zip(found, products(one, u, params), strict=True):
        close(a, b)
    assert not even or not found[0].sharding.is_fully_replicated


a, b = jacobian(model, params, x), jacobian(pair, params, y)
compare(a, a.shard(mesh))
compare(b, b.shard(mesh))
for net in (M.vit(6, 1, 8, heads=2, side=4), M.cnn(3, 1, 8, side=4)):
    rows = jacobian(net.fn, net.params, net.points)
    compare(rows, rows.shard(mesh), net.params)
    close(rows.shard(mesh).centre().gram(), rows.centre().gram())
odd = jacobian(pair, params, x[:6])
compare(odd, odd.shard(three))  # the ring differs between odd and even, what follows does not
w = jax.random.uniform(key, (4 * devices,))
one = stack([a.scale(w).centre(), b])
many = stack([a.shard(mesh).scale(w).centre(), b.shard(mesh)])
close(many.gram(), one.gram())
close(jax.jit(lambda p: jacobian(model, p, x).shard(mesh).gram())(params), a.gram())

single = jax.tree.map(lambda v: v.astype(jnp.float32), (params, 1 + 1e-4 * x))
near = jacobian(model, *single)
exact = jacobian(model, *jax.tree.map(lambda v: v.astype(jnp.float64), single)).centre().gram()
error = jnp.linalg.norm(near.shard(mesh).centre().gram() - exact) / jnp.linalg.norm(exact)
assert error < 5e-3, error

text = jax.jit(lambda p: a.shard(mesh).gram()).lower(params).compile().as_text()
assert "collective-permute" in text and "all-gather" not in text  # factors travel, rows do not

for count in (4 * devices - 1, 2):  # points that devices cannot share evenly
    uneven = jacobian(pair, params, x[:count])
    compare(uneven, uneven.shard(mesh), even=False)
    weights = jnp.linspace(1, 2, 2 * count)
    close(uneven.shard(mesh).scale(weights).centre().gram(), uneven.scale(weights).centre().gram())
    both = stack([uneven.centre(), b]).shard(mesh)
    compare(stack([uneven.centre(), b]), both, even=False)
try:
    a.shard(jax.make_mesh((2, 2), ("a", "b")))
except ValueError as e:
    assert "`mesh` must have one axis" in str(e)
else:
    raise AssertionError("a mesh of two axes was accepted")
print("same")
"""


def test_sharded_equals_one_device():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    env = dict(os.environ, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
    code = CODE.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "same" in done.stdout, done.stderr[-3000:]
