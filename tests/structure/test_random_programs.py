"""Random programs of products, views, sums and nonlinearities: the kernel equals the dense one, always."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from snapgrad.operators import jacobian

SHAPES = [(12,), (3, 4), (4, 3), (2, 6), (1, 12)]
VIEWS = ["plain", "transposed", "sliced", "reshaped", "scaled", "cast", "masked"]
KINDS = ["dot", "dot", "dot", "dot", "reshape", "bias", "tanh", "scan", "einsum", "outer", "broadcast"]

steps = st.lists(
    st.tuples(
        st.sampled_from(KINDS), st.integers(0, 1), st.sampled_from(VIEWS), st.integers(0, len(SHAPES) - 1)
    ),
    min_size=1,
    max_size=6,
)


def view_of(W, view, width):
    """Some `[width, width]` block of a `[12, 12]` weight."""
    if view == "transposed":
        W = W.T
    elif view == "scaled":
        W = -0.3 * W / 1.7
    elif view == "cast":
        W = W.astype(jnp.complex128).real
    elif view == "masked":
        W = jnp.where(jnp.arange(144).reshape(12, 12) % 3 == 0, W, 0)
    elif view == "reshaped":
        return W.reshape(width, 144 // width)[:, :width]
    elif view == "sliced":
        return W[12 - width :, 12 - width :]
    return W[:width, :width]


def build(program, outputs):
    def fn(params, x):
        h = x
        for kind, which, view, shape in program:
            W, b = params[f"W{which}"], params[f"b{which}"]
            width = h.shape[-1]
            if kind == "dot":
                h = h @ view_of(W, view, width)
            elif kind == "reshape":
                h = h.reshape(SHAPES[shape])
            elif kind == "bias":
                h = h + jnp.broadcast_to(b[:width], h.shape)
            elif kind == "tanh":
                h = jnp.tanh(h)
            elif kind == "scan":
                V = view_of(W, view, width)
                h = jax.lax.scan(lambda h, _: (jnp.sin(h @ V), None), h, None, length=2)[0]
            elif kind == "einsum":
                h = jnp.einsum("abc,bc->a", W.reshape(12, 3, 4), h.reshape(3, 4))
            elif kind == "outer":
                h = h + jnp.cos(h) * jnp.sum(b)
            else:
                h = jnp.sum(h.reshape(12)[:, None] * W, axis=0)
        h = jnp.sin(h).reshape(12)
        return jnp.sum(h) if outputs == 1 else h.reshape(outputs, -1).sum(axis=1)

    return fn


@settings(max_examples=14, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(program=steps, outputs=st.sampled_from([1, 1, 3]))
@example(program=[("dot", 0, "plain", 0), ("tanh", 0, "plain", 0), ("dot", 0, "transposed", 0)], outputs=1)
@example(program=[("dot", 0, "sliced", 0), ("reshape", 0, "plain", 1), ("dot", 0, "sliced", 0)], outputs=3)
def test_random_programs(program, outputs):
    rng = np.random.default_rng(1)
    shapes = {"W0": (12, 12), "W1": (12, 12), "b0": (12,), "b1": (12,)}
    params = {name: jnp.asarray(rng.normal(size=shape) / len(shape)) / 2 for name, shape in shapes.items()}
    batch = jnp.asarray(rng.normal(size=(4, 12)))
    fn = build(program, outputs)
    u = jnp.arange(1.0, 1.0 + 4 * outputs)

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def compare(params, batch):
        rows = jax.vmap(jax.jacrev(fn), (None, 0))(params, batch)
        J = jnp.concatenate([leaf.reshape(4 * outputs, -1) for leaf in jax.tree.leaves(rows)], axis=1)
        jac = jacobian(fn, params, batch)
        pulled = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(jac.rmv(u))])
        pairs = [(jac.gram(), J @ J.T), (pulled, J.T @ u), (jac.mv(params), J @ flat(params))]
        return pairs, jnp.abs(J).max()

    pairs, _ = compare(params, batch)
    for found, wanted in pairs:
        np.testing.assert_allclose(
            found, wanted, rtol=0, atol=1e-12 * max(1e-3, float(jnp.abs(wanted).max()))
        )


def flat(tree):
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])
