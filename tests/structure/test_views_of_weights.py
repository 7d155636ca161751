"""How a weight reaches its product: views that are followed to it, and uses at which the search ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad.operators import jacobian

X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 6)))


def weight(*shape):
    return jnp.asarray(np.random.default_rng(shape).normal(size=shape))


VIEWED = {
    "split": weight(12, 6),
    "squeezed": weight(6, 6),
    "updated": weight(9, 6),
    "padded": weight(5, 6),
    "imaginary": weight(6, 6),
    "complex": weight(6, 8),
    "added": weight(6, 6),
}


def viewed(p, x):
    first, second = jnp.split(p["split"], 2)
    x = jnp.tanh(x @ first + x @ second)
    x = jnp.tanh((x[None] @ jax.lax.expand_dims(p["squeezed"], (0,)))[0, 0])
    x = jnp.tanh(x @ jax.lax.dynamic_slice(p["updated"], (2, 0), (6, 6)))
    x = jnp.tanh(x @ jnp.pad(p["padded"], ((1, 0), (0, 0))))
    x = jnp.tanh(x @ jnp.imag((0.5 + 1j) * p["imaginary"]))
    twice = lambda h, _: (jnp.tanh(h @ p["added"] + jnp.cos(h) @ p["added"]), None)  # noqa: E731
    x = jax.lax.scan(twice, x, None, length=2)[0]
    return jnp.sum(jnp.abs(((1 + 2j) * jnp.exp(1j * x)) @ p["complex"]) ** 2)


def test_views_are_followed_to_the_product():
    @jax.jit
    def both(p):
        rows = jax.vmap(jax.grad(viewed), (None, 0))(p, X)
        J = jnp.concatenate([leaf.reshape(3, -1) for leaf in jax.tree.leaves(rows)], axis=1)
        jac = jacobian(viewed, p, X)
        return J, jac.dense(), jac.gram()

    J, dense, K = both(VIEWED)
    np.testing.assert_allclose(dense, J, rtol=0, atol=1e-12 * float(jnp.abs(J).max()))
    np.testing.assert_allclose(K, J @ J.T, rtol=0, atol=1e-12 * float(jnp.abs(J @ J.T).max()))
    explained = jacobian(viewed, VIEWED, X).explain()
    assert set(explained.fallbacks) == {"['imaginary']", "['padded']"}, str(explained)


def grouped(p, x):
    out = jax.lax.conv_general_dilated(x.reshape(1, 2, 3), p, (1,), "SAME", feature_group_count=2)
    return jnp.sum(jnp.tanh(out))


ENDS = {  # where the search ends: the function of one weight, its shape, what is said
    "strided": (lambda p, x: jnp.sum(jnp.tanh(x @ p[::2])), (12, 5), "a strided or cropping pad"),
    "position": (
        lambda p, x: jnp.sum(jax.lax.dynamic_slice(p, (jnp.argmax(x), 0), (6, 5)).T @ x),
        (12, 5),
        "a slice at a computed position",
    ),
    "quotient": (lambda p, x: jnp.sum(jnp.tanh(p / jnp.exp(x)[:, None])), (6, 5), "an elementwise quotient"),
    "groups": (grouped, (2, 1, 3), "grouped convolution"),
    "carried": (
        lambda p, x: jnp.sum(x @ jax.lax.scan(lambda w, _: (jnp.sin(w), None), p, None, length=2)[0]),
        (6, 5),
        "",
    ),
    "reshaped": (lambda p, x: jnp.sum(jnp.tanh(x @ p.T.reshape(6, 5))), (6, 5), "a reshape that mixes axes"),
    "equal": (lambda p, x: jnp.sum(p) * jnp.sum(x), (6, 5), "the same number for several entries"),
    "gathered": (lambda p, x: jnp.sum(p[jnp.argsort(x)] * x[:, None]), (6, 5), "used by `scatter-add`"),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_search_says_where_it_ends(name):
    fn, shape, said = ENDS[name]
    (report,) = jacobian(fn, weight(*shape), X).explain().leaves
    assert report.how == "rows" and report.fallback
    assert report.why.startswith("no outer product found") and said in report.why
