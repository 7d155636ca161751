"""A zoo of models: structured gram, mv, rmv and dense equal the dense ones; dense layers never fall back."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from snapgrad.operators import jacobian, realify
from snapgrad.structure import _peel
from snapgrad.structure._views import UnstructuredError

KEY = jax.random.key(0)


def weight(i, *shape, dtype=jnp.float64):
    """By NumPy: jax.random would compile for each shape."""
    return jnp.asarray(normal(i, shape, dtype) / max(1, shape[0]) ** 0.5, dtype)


def normal(i, shape, dtype):
    rng = np.random.default_rng([i, *shape])
    real = rng.normal(size=shape)
    return (real + 1j * rng.normal(size=shape)) / 2**0.5 if jnp.issubdtype(dtype, complex) else real


def points(k, *shape):
    return weight(99, k, *shape) * k**0.5


def mlp_params(sizes, dtype=jnp.float64):
    return [
        {"W": weight(2 * i, a, b, dtype=dtype), "b": weight(2 * i + 1, b, dtype=dtype)}
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    ]


def mlp(p, x):
    for layer in p[:-1]:
        x = jnp.tanh(x @ layer["W"] + layer["b"])
    return (x @ p[-1]["W"] + p[-1]["b"])[0]


def resnet(p, x):
    x = x @ p["in"]
    for layer in p["layers"]:
        x = x + jnp.tanh(x @ layer["W"] + layer["b"])
    return (x @ p["out"])[0]


def tied(p, x):  # an autoencoder whose decoder is the encoder, transposed
    return jnp.sum(jnp.tanh(jnp.tanh(x @ p["W"]) @ p["W"].T) ** 2)


def attention(p, x):  # x: [tokens, d]; one fused projection, heads by reshape
    q, k, v = jnp.split(x @ p["qkv"], 3, axis=-1)
    split = lambda a: a.reshape(a.shape[0], 2, -1).swapaxes(0, 1)  # noqa: E731
    q, k, v = split(q), split(k), split(v)
    scores = jax.nn.softmax(q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5)
    mixed = (scores @ v).swapaxes(0, 1).reshape(x.shape)
    return jnp.mean(jnp.einsum("td,de->te", mixed, p["out"]) ** 2)


def headed(p, x):  # a separate weight for each head: a batch axis on the leaf
    return jnp.sum(jnp.tanh(jnp.einsum("td,hde->hte", x, p["W"])) ** 2)


def convnet(p, x):
    conv = lambda x, w: jax.lax.conv_general_dilated(x[None], w, (2, 2), "SAME")[0]  # noqa: E731
    x = jnp.tanh(conv(x, p["one"]) + p["b"][:, None, None])
    return jnp.sum(jnp.tanh(conv(x, p["two"])).reshape(-1) @ p["out"])


def rbm(p, x):
    return x @ p["a"] + jnp.sum(jnp.logaddexp(x @ p["W"] + p["b"], -(x @ p["W"] + p["b"])))


def complex_rbm(p, x):
    return x @ p["a"] + jnp.sum(jnp.log(jnp.cosh(x @ p["W"] + p["b"])))


def not_holomorphic(p, x):
    return complex_rbm(p, x) + 0.3j * jnp.sum(jnp.abs(x @ p["W"] + p["b"]) ** 2)


def mixed_tree(p, x):  # a real layer below a complex one
    return jnp.sum(jnp.log(jnp.cosh(jnp.tanh(x @ p["real"]) @ p["complex"])))


def fourier(p, x):
    z = x @ p["B"]
    return jnp.concatenate([jnp.cos(z), jnp.sin(z)]) @ p["out"]


def layer_norm(p, x):
    y = x @ p["W"]
    y = (y - y.mean()) / jnp.sqrt(y.var() + 1e-5)
    return jnp.tanh(y * p["gain"] + p["shift"]) @ p["out"]


def gating(p, x):
    return jnp.sum(jax.nn.silu(x @ p["gate"]) * (x @ p["up"]) @ p["down"])


def vector_output(p, x):
    return jnp.tanh(jnp.tanh(x @ p["W"] + p["b"]) @ p["V"])


def einsum_weights(p, x):  # two contracted axes, two free ones, and a weight scaled by a number
    return jnp.sum(jnp.tanh(jnp.einsum("ab,abcd->cd", x, p["T"] * 0.7) / p["T"].size) ** 2)


def through_wrappers(p, x):  # jit, checkpoint, a cast, a transpose and a reshape between weight and use
    W = jax.jit(lambda w: w.astype(jnp.float64).T.reshape(4, 18))(p["W"])
    return jax.checkpoint(lambda x: jnp.sum(jnp.tanh(jax.jit(jnp.matmul)(W, x)) ** 2))(x)


def broadcast_product(p, x):  # a matrix product spelt out
    return jnp.sum(jnp.tanh(jnp.sum(x[:, None] * p["W"], axis=0)))


@jax.custom_vjp
def doubled(W, x):
    return x @ W


doubled.defvjp(lambda W, x: (x @ W, (W, x)), lambda res, g: (2 * jnp.outer(res[1], g), res[0] @ g))


def custom_backward(p, x):  # the rule is not the true derivative, and the rows must follow the rule
    return jnp.sum(doubled(p["W"], jnp.tanh(x @ p["V"])) ** 3)


@jax.custom_jvp
def linear(W, x):
    return x @ W


linear.defjvp(lambda p, t: (p[1] @ p[0], p[1] @ t[0] + t[1] @ p[0]))


def custom_forward(p, x):
    return jnp.sum(jnp.tanh(linear(p["W"], jnp.tanh(linear(p["V"], x)))))


def stacked_scan(p, x):
    return jnp.sum(jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w["W"] + w["b"]), None), x, p)[0])


def repeated_layers(p, x):  # two layers share a weight, three have their own, all in one loop
    weights = jnp.concatenate([jnp.broadcast_to(p["V"], (2, *p["V"].shape)), p["W"]])
    return jnp.sum(jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0])


def promoting_rule(p, x):  # the rule gives the gradient of a float32 weight in float64
    hidden = jnp.tanh(doubled(p["W"], x))
    return jnp.sum(jax.lax.map(lambda h: jnp.tanh(h @ p["V"]), hidden[None]))


def recurrent(p, x):  # x: [time, d]; the same weight at every step
    step = lambda h, x: (jnp.tanh(h @ p["W"] + x @ p["U"]), None)  # noqa: E731
    return jnp.sum(jax.lax.scan(step, jnp.zeros(p["W"].shape[0]), x)[0] ** 2)


def stacked_loop(p, x):  # the same in a Python loop: slices of one leaf
    for i in range(p["W"].shape[0]):
        x = jnp.tanh(x @ p["W"][i])
    return jnp.sum(x)


def concatenated(p, x):
    q, k = jnp.split(x @ jnp.concatenate([p["A"], p["B"]], axis=1), 2)
    return q @ k


def laplacian_hvp(p, x):
    gradient = jax.grad(mlp, argnums=1)
    along = lambda v: v @ jax.jvp(lambda x: gradient(p, x), (x,), (v,))[1]  # noqa: E731
    return jnp.sum(jax.vmap(along)(jnp.eye(x.size)))


def laplacian_loop(p, x):  # the same, one direction after the other
    gradient = jax.grad(mlp, argnums=1)
    add = lambda a, v: (a + v @ jax.jvp(lambda x: gradient(p, x), (x,), (v,))[1], None)  # noqa: E731
    return jax.lax.scan(add, 0.0, jnp.eye(x.size))[0]


def laplacian_hessian(p, x):
    return jnp.trace(jax.hessian(mlp, argnums=1)(p, x))


def laplacian_forward(p, x):
    """(u, ∇u, Δu) pushed through each layer at once: d + 2 directions a weight."""
    d = x.size
    h = jnp.concatenate([x[None], jnp.eye(d), jnp.zeros((1, d))])
    for i, layer in enumerate(p):
        h = h @ layer["W"]
        value, slope, second = h[:1] + layer["b"][None], h[1:-1], h[-1:]
        if i < len(p) - 1:
            t = jnp.tanh(value)
            d1, d2 = 1 - t**2, -2 * t * (1 - t**2)
            second = d1 * second + d2 * jnp.sum(slope**2, axis=0, keepdims=True)
            value, slope = t, d1 * slope
        h = jnp.concatenate([value, slope, second])
    return h[-1, 0]


complex_params = {
    "a": weight(1, 6, dtype=jnp.complex128),
    "b": weight(2, 9, dtype=jnp.complex128),
    "W": weight(3, 6, 9, dtype=jnp.complex128),
}
norm = {"W": weight(1, 6, 9), "gain": weight(2, 9), "shift": weight(3, 9), "out": weight(4, 9)}
residual = {
    "in": weight(1, 3, 12),
    "layers": [{"W": weight(i, 12, 12), "b": weight(20 + i, 12)} for i in range(5)],
    "out": weight(9, 12, 1),
}
image = {"one": weight(1, 4, 2, 3, 3), "b": weight(2, 4), "two": weight(3, 5, 4, 3, 3), "out": weight(4, 20)}
layers = {"W": weight(1, 3, 8, 8), "b": weight(2, 3, 8)}

# name: (fn, params, batch, leaves that are not dense layers)
ZOO = {
    "mlp": (mlp, mlp_params([5, 16, 16, 1]), points(9, 5), ()),
    "resnet": (resnet, residual, points(9, 3), ()),
    "weight tying": (tied, {"W": weight(1, 8, 9)}, points(9, 8), ()),
    "attention": (attention, {"qkv": weight(1, 16, 48), "out": weight(2, 16, 16)}, points(5, 3, 16), ()),
    "heads": (headed, {"W": weight(1, 2, 12, 10)}, points(5, 2, 12), ()),
    "convnet": (convnet, image, points(5, 2, 7, 7), ()),
    "rbm": (rbm, {"a": weight(1, 6), "b": weight(2, 9), "W": weight(3, 6, 9)}, points(9, 6), ()),
    "holomorphic rbm": (realify(complex_rbm, holomorphic=True), complex_params, points(7, 6), ()),
    "not holomorphic": (realify(not_holomorphic), complex_params, points(7, 6), ()),
    "mixed tree": (
        realify(mixed_tree),
        {"real": weight(1, 6, 9), "complex": weight(2, 9, 7, dtype=jnp.complex128)},
        points(7, 6),
        (),
    ),
    "fourier features": (fourier, {"B": weight(1, 4, 10), "out": weight(2, 20)}, points(9, 4), ()),
    "layer norm": (layer_norm, norm, points(9, 6), ()),
    "gating": (
        gating,
        {"gate": weight(1, 8, 10), "up": weight(2, 8, 10), "down": weight(3, 10, 5)},
        points(9, 8),
        (),
    ),
    "vector output": (
        vector_output,
        {"W": weight(1, 6, 9), "b": weight(2, 9), "V": weight(3, 9, 4)},
        points(6, 6),
        (),
    ),
    "einsum": (einsum_weights, {"T": weight(1, 3, 4, 5, 2)}, points(6, 3, 4), ()),
    "wrappers": (through_wrappers, {"W": weight(1, 6, 12, dtype=jnp.float32)}, points(6, 18), ()),
    "broadcast product": (broadcast_product, {"W": weight(1, 8, 9)}, points(6, 8), ()),
    "custom vjp": (custom_backward, {"W": weight(1, 8, 9), "V": weight(2, 6, 8)}, points(6, 6), ()),
    "custom jvp": (custom_forward, {"W": weight(1, 8, 9), "V": weight(2, 6, 8)}, points(6, 6), ()),
    "scan over layers": (stacked_scan, layers, points(6, 8), ("['b']",)),
    "repeated layers": (
        repeated_layers,
        {"V": weight(1, 12, 12), "W": weight(2, 3, 12, 12)},
        points(3, 12),
        (),
    ),
    "promoting rule": (
        promoting_rule,
        {"W": weight(1, 6, 8, dtype=jnp.float32), "V": weight(2, 8, 5)},
        points(6, 6),
        (),
    ),
    "recurrent": (recurrent, {"W": weight(1, 12, 12), "U": weight(2, 10, 12)}, points(6, 3, 10), ()),
    "stacked leaf": (stacked_loop, {"W": weight(1, 3, 8, 8)}, points(6, 8), ()),
    "concatenated": (concatenated, {"A": weight(1, 8, 6), "B": weight(2, 8, 6)}, points(6, 8), ()),
    "laplacian hvp": (laplacian_hvp, mlp_params([5, 30, 30, 1]), points(7, 5), ()),
    "laplacian loop": (laplacian_loop, mlp_params([3, 20, 1]), points(5, 3), ()),
    "laplacian hessian": (laplacian_hessian, mlp_params([3, 20, 20, 1]), points(5, 3), ()),
    "laplacian forward": (laplacian_forward, mlp_params([5, 20, 20, 1]), points(7, 5), ()),
}


def dense_rows(fn, params, batch):
    """J by JAX's reverse mode, one row at a time; complex leaves as (Re, Im) columns."""
    rows = jax.vmap(jax.jacrev(fn), (None, 0))(params, batch)
    k = jax.eval_shape(jax.vmap(fn, (None, 0)), params, batch).size
    columns = []
    for row in jax.tree.leaves(rows):
        row = row.reshape(k, -1)
        # JAX's gradient of a real function of a + ib is ∂/∂a − i ∂/∂b
        columns += [row.real, -row.imag] if jnp.iscomplexobj(row) else [row.astype(jnp.float64)]
    return jnp.concatenate(columns, axis=1)


def flat_real(tree):
    parts = []
    for leaf in jax.tree.leaves(tree):
        parts += [leaf.real.ravel(), leaf.imag.ravel()] if jnp.iscomplexobj(leaf) else [leaf.ravel()]
    return jnp.concatenate([p.astype(jnp.float64) for p in parts])


def close(a, b, scale=None, tolerance=1e-12):
    scale = jnp.abs(b).max() if scale is None else scale
    assert a.shape == b.shape
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=float(tolerance * scale))


# The programs are small and run once: compile quickly rather than well.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def check_against_dense(fn, params, batch, tolerance=1e-12, **options):
    tangent = jax.tree.map(lambda p: jnp.asarray(normal(7, p.shape, p.dtype), p.dtype), params)
    u = jnp.asarray(normal(8, jacobian(fn, params, batch).shape[:1], float))

    @quick_jit
    def everything(params, batch, tangent, u):
        jac = jacobian(fn, params, batch, **options)
        products = jac.gram(), jac.mv(tangent), flat_real(jac.rmv(u)), jac.dense()
        return dense_rows(fn, params, batch), products

    J, products = everything(params, batch, tangent, u)
    for found, wanted in zip(products, (J @ J.T, J @ flat_real(tangent), J.T @ u, J), strict=True):
        close(found, wanted, tolerance=tolerance)


def tolerance_for(params):
    """A float32 leaf limits what its rows can be compared to."""
    return 2e-6 if any(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params)) else 1e-12


@pytest.mark.parametrize("name", ZOO)
def test_zoo(name):
    fn, params, batch, _ = ZOO[name]
    check_against_dense(fn, params, batch, tolerance_for(params))


BLOCKED = [
    "mlp",
    "promoting rule",
    "custom vjp",
    "not holomorphic",
    "vector output",
    "recurrent",
    "laplacian forward",
]


@pytest.mark.parametrize("name", BLOCKED)
def test_blocks_of_rows(name):
    # Three blocks, the last of them overlapping; mv and rmv are then one jvp and one vjp.
    fn, params, batch, _ = ZOO[name]
    check_against_dense(fn, params, batch, tolerance_for(params), block_size=3)


@pytest.mark.parametrize("name", ZOO)
def test_dense_layers_do_not_fall_back(name):
    fn, params, batch, others = ZOO[name]
    explanation = jacobian(fn, params, batch).explain()
    assert set(explanation.fallbacks) <= set(others), str(explanation)


def how(fn, params, batch):
    return {report.leaf: report.how for report in jacobian(fn, params, batch).explain().leaves}


def test_products_are_used_where_they_are_smaller():
    params = mlp_params([5, 64, 64, 1])
    for fn, count in ((mlp, 1), (laplacian_forward, 7), (laplacian_hvp, 12)):
        report = jacobian(fn, params, points(64, 5)).explain().leaves[2]
        assert report.how == ("outer" if count < 12 else "formed"), str(report)
        assert report.why.startswith(f"{count} outer product")
    used = how(stacked_scan, {"W": weight(1, 3, 32, 32), "b": weight(2, 3, 32)}, points(6, 32))
    assert used["['W']"] == "outer"
    assert how(recurrent, {"W": weight(1, 32, 32), "U": weight(2, 32, 32)}, points(6, 3, 32)) == {
        "['U']": "outer",
        "['W']": "outer",
    }


def test_convolution_as_patches_when_few_positions_are_left():
    params = {"W": weight(1, 16, 8, 3, 3)}
    conv = lambda x, w: jax.lax.conv_general_dilated(x[None], w, (1, 1), "VALID")[0]  # noqa: E731
    fn = lambda p, x: jnp.sum(jnp.tanh(conv(x, p["W"])) ** 2)  # noqa: E731
    small, large = points(5, 8, 3, 4), points(5, 8, 9, 9)
    assert how(fn, params, small)["['W']"] == "outer"
    assert how(fn, params, large)["['W']"] == "rows"
    check_against_dense(fn, params, small)  # rows of a convolution are those of "convnet"


def test_unused_leaves_cost_nothing():
    params = {"W": weight(1, 5, 8), "idle": weight(2, 1000, 1000)}
    fn = lambda p, x: jnp.sum(jnp.tanh(x @ p["W"])) + 0 * jax.lax.stop_gradient(p["idle"][0, 0])  # noqa: E731
    jac = jacobian(fn, params, points(6, 5))
    report = {r.leaf: r for r in jac.explain().leaves}["['idle']"]
    assert (report.how, report.flops, report.memory) == ("unused", 0, 0)
    W = points(6, 5)
    J = jax.vmap(jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w))), (None, 0))(params["W"], W).reshape(6, -1)
    close(jac.gram(), J @ J.T)
    assert not jnp.any(jac.rmv(jnp.ones(6))["idle"])


def test_elementwise_weights_fall_back_and_say_so():
    params = {"W": weight(1, 6, 7)}
    fn = lambda p, x: jnp.sum(jnp.tanh(jnp.sin(p["W"]) * x))  # noqa: E731
    batch = points(5, 6, 7)
    jac = jacobian(fn, params, batch)
    assert jac.explain().fallbacks == ("['W']",)
    assert "elementwise" in str(jac.explain())
    check_against_dense(fn, params, batch)


def test_equinox_model():
    model = eqx.nn.MLP(4, "scalar", 12, 2, activation=jnp.tanh, key=KEY)
    model = jax.tree.map(lambda x: x.astype(jnp.float64) if eqx.is_inexact_array(x) else x, model)
    params, static = eqx.partition(model, eqx.is_inexact_array)
    fn = lambda p, x: eqx.combine(p, static)(x)  # noqa: E731
    jac = jacobian(fn, params, points(6, 4))
    check_against_dense(fn, params, points(6, 4))
    assert not jac.explain().fallbacks


def test_equinox_module_as_the_function():
    class Model(eqx.Module):
        shift: jax.Array

        def __call__(self, p, x):
            return jnp.sum(jnp.tanh(x @ p + self.shift))

    fn, p, x = Model(jnp.arange(5.0)), weight(1, 4, 5), points(6, 4)
    check_against_dense(fn, p, x)


def test_flax_linen_model():
    pytest.importorskip("flax", reason="flax is not installed")
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.LayerNorm(param_dtype=jnp.float64)(nn.tanh(nn.Dense(12, param_dtype=jnp.float64)(x)))
            x = nn.tanh(nn.Dense(12, param_dtype=jnp.float64)(x))
            return nn.Dense(1, param_dtype=jnp.float64)(x)[0]

    net, x = Net(), points(6, 4)
    params = net.init(KEY, x[0])
    jac = jacobian(net.apply, params, x)
    check_against_dense(net.apply, params, x)
    assert not jac.explain().fallbacks


def test_flax_nnx_model():
    pytest.importorskip("flax", reason="flax is not installed")
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.one = nnx.Linear(4, 12, param_dtype=jnp.float64, rngs=rngs)
            self.two = nnx.Linear(12, 1, param_dtype=jnp.float64, rngs=rngs)

        def __call__(self, x):
            return self.two(jnp.tanh(self.one(x)))[0]

    graph, params = nnx.split(Net(nnx.Rngs(0)), nnx.Param)
    fn = lambda p, x: nnx.merge(graph, p)(x)  # noqa: E731
    x = points(6, 4)
    jac = jacobian(fn, params, x)
    check_against_dense(fn, params, x)
    assert not jac.explain().fallbacks


def test_batch_may_be_any_tree():
    params = {"W": weight(1, 4, 6)}
    fn = lambda p, b: jnp.sum(jnp.tanh(b["x"] @ p["W"]) * b["w"][1])  # noqa: E731
    batch = {"x": points(5, 4), "w": (jnp.arange(5), jnp.arange(5.0))}
    check_against_dense(fn, params, batch)


def test_params_may_be_one_array():
    J = dense_rows(lambda w, x: jnp.sum(x * w), weight(1, 7), points(4, 7))
    jac = jacobian(lambda w, x: jnp.sum(x * w), weight(1, 7), points(4, 7))
    close(jac.gram(), J @ J.T)
    close(jac.mv(jnp.ones(7)), J @ jnp.ones(7))
    np.testing.assert_allclose(ravel_pytree(jac.rmv(jnp.ones(4)))[0], J.T @ jnp.ones(4), atol=1e-12)


def test_products_of_a_few_steps_of_a_loop():
    """The weight that two of five steps share gives two outer products, not five."""
    fn, params, batch, _ = ZOO["repeated layers"]
    reports = jacobian(fn, params, batch).explain().leaves
    assert [r.why for r in reports] == ["2 outer products per row", "1 outer product per row"]


def test_sums_of_shared_values_are_bounded(monkeypatch):
    """2³⁰ paths lead to this weight; rows are kept instead of walking them."""

    def symmetrised(p, x):
        for _ in range(30):
            p = p + p.T
        return jnp.sum(jnp.tanh(x @ p))

    W, batch = weight(1, 5, 5), points(3, 5)
    assert "a sum along more than" in str(jacobian(symmetrised, W, batch).explain())
    monkeypatch.setattr(_peel, "MOST_TERMS", 2)
    twice = jacobian(lambda p, x: jnp.sum(jnp.tanh(x @ p) @ p @ p), W, batch)
    assert "3 sums of outer products" in str(twice.explain())


def test_operands_that_do_not_fit_are_not_used():
    """Whatever a misread program claims, rows are kept where the claim cannot be true."""
    plan = jacobian(mlp, mlp_params([4, 16, 16, 1]), points(2, 4)).plan()
    term = plan.leaves[2].regions[0].terms[0]
    term.check()
    for role in range(2):
        roles = list(term.roles)
        axes = roles[role].dim._replace(pieces=((7, 1),))
        roles[role] = roles[role]._replace(dim=axes)
        with pytest.raises(UnstructuredError, match="do not fit"):
            term._replace(roles=tuple(roles)).check()
        with pytest.raises(UnstructuredError, match="do not fit"):
            term._replace(roles=tuple(r for i, r in enumerate(term.roles) if i != role)).check()
