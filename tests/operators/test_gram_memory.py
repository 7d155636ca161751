"""The memory contract: what XLA allocates for `gram` stays under the bound that `explain` states."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from models import M
from snapgrad.operators import jacobian

KEY = jax.random.key(0)


def layers(*sizes):
    return [jax.random.normal(KEY, shape) for shape in itertools.pairwise(sizes)]


def mlp(p, x):
    for W in p[:-1]:
        x = jnp.tanh(x @ W)
    return (x @ p[-1])[0]


def laplacian(p, x):  # seven directions through each weight
    directions = jnp.eye(x.size)
    h, slope, second = x, directions, jnp.zeros((1, x.size))
    for W in p[:-1]:
        both = jnp.concatenate([h[None], slope, second]) @ W
        t = jnp.tanh(both[0])
        d1 = 1 - t**2
        square = jnp.sum(both[1:-1] ** 2, axis=0)
        h, slope, second = t, d1[None] * both[1:-1], (d1 * both[-1] - 2 * t * d1 * square)[None]
    return (second[0] @ p[-1])[0]


def elementwise(p, x):  # nothing to factor: whole rows
    return jnp.sum(jnp.sin(p[0]) * jnp.tanh(x[:, None]))


def normal(*shape):
    return jax.random.normal(KEY, shape)


CASES = {
    "outer products": (mlp, layers(8, 128, 128, 1), normal(512, 8)),
    "several a row": (laplacian, layers(5, 96, 96, 1), normal(256, 5)),
    "formed in pieces": (laplacian, layers(5, 24, 24, 1), normal(256, 5)),
    "whole rows": (elementwise, layers(64, 48), normal(256, 64)),
    "a transformer": M.vit(24, 2, 256, heads=4, side=6),
    "convolutions": M.cnn(8, 1, 256, side=6),
}


def peak(jac, block):
    """Bytes of temporaries and output, by XLA's own account."""
    arrays, rebuild = jax.tree.flatten(jac)
    run = jax.jit(lambda *leaves: jax.tree.unflatten(rebuild, leaves).gram(block))
    analysis = run.lower(*arrays).compile().memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


@pytest.mark.parametrize("name", CASES)
def test_peak_stays_under_the_stated_bound(name):
    fn, params, x = CASES[name]
    k = x.shape[0]
    peaks = []
    for block in (k, k // 16):
        jac = jacobian(fn, params, x, block_size=block)
        stated = jac.explain().memory
        peaks.append(peak(jac, None))
        assert peaks[-1] <= stated, f"block {block}: {peaks[-1]} > {stated}"
        assert stated < 25 * peaks[-1]  # a bound that says something
    assert peaks[1] < peaks[0]  # smaller blocks do save memory


def test_memory_limit_chooses_the_block():
    fn, params, x = CASES["outer products"]
    k = x.shape[0]
    whole = jacobian(fn, params, x).explain()
    assert whole.block_size == k
    for share in (0.9, 0.7):
        limit = int(share * whole.memory)
        jac = jacobian(fn, params, x, memory_limit=limit)
        explained = jac.explain()
        assert 1 <= explained.block_size < k
        assert explained.memory <= limit
        assert peak(jac, None) <= limit
        assert "memory limit" in str(explained) and f"blocks of {explained.block_size} of {k}" in str(
            explained
        )
    assert jacobian(fn, params, x, memory_limit="2GiB").explain().block_size == k
    assert jacobian(fn, params, x, memory_limit="0.5 GB").explain().block_size == k


def test_jacobian_is_never_formed():
    """n = 4 million: the rows would take 16 GB, the kernel and its factors take a few MB."""
    params, k = layers(16, 2048, 2048, 1), 512
    jac = jacobian(mlp, params, jnp.zeros((k, 16)))
    assert jac.shape[1] > 4.2e6
    rows = 8 * k * jac.shape[1]
    assert peak(jac, None) < rows / 200
