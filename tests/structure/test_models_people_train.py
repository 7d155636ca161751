"""Transformers, convolutions and electron networks: the kernel against stored rows, on every path."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import M
from snapgrad.linalg import _symmetric
from snapgrad.operators import jacobian, realify
from snapgrad.structure import _plan, contract, factors

quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


K = 6
MODELS = {
    "vit": M.vit(6, 2, K, heads=2, side=4),
    "softmax": M.vit(6, 1, K, heads=2, side=4, softmax=True),
    "complex": M.vit(6, 1, K, heads=2, side=4, complex_output=True),
    "cnn": M.cnn(3, 1, K, side=4),
    "ferminet": M.ferminet(4, K, "float64", width=8, pair_width=3, layers=2, determinants=2),
    "psiformer": M.psiformer(4, K, "float64", width=8, layers=1, heads=2, determinants=2),
    "pinn": M.laplacian(3, 16, 2, K),
}


def function(name):
    fn = MODELS[name].fn
    return realify(fn) if name == "complex" else fn


def stored(name, params=None):
    model, fn = MODELS[name], function(name)
    rows = jax.vmap(jax.jacrev(fn), (None, 0))(model.params if params is None else params, model.points)
    outputs = 2 if name == "complex" else 1
    return jnp.concatenate([leaf.reshape(K * outputs, -1) for leaf in jax.tree.leaves(rows)], axis=1)


def centred(J, outputs):
    grouped = J.reshape(-1, outputs, J.shape[1])
    return (grouped - grouped.mean(axis=0, keepdims=True)).reshape(J.shape)


def close(found, wanted, tolerance=1e-12):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * float(jnp.abs(wanted).max()))


@pytest.fixture(params=["cpu", "gpu"])
def backend(request, monkeypatch):
    """Either path; on that of a GPU everything is cut into pieces, and `syrk` is used wherever it may be."""
    gpu = request.param == "gpu"
    for room in (_symmetric, contract, factors, _plan):
        monkeypatch.setattr(room, "on_gpu", lambda: gpu)
    if gpu:
        monkeypatch.setattr(_symmetric, "SYRK_WORK", 1)
        monkeypatch.setattr(contract, "GPU_PIECE", 20 * K)
        monkeypatch.setattr(contract, "GPU_TERMS", 1)
        monkeypatch.setattr(factors, "SHARE_ROWS", 1)
    return request.param


@pytest.mark.parametrize("name", MODELS)
def test_kernel_and_products_are_those_of_stored_rows(name, backend):
    model = MODELS[name]
    outputs = 2 if name == "complex" else 1

    @quick_jit
    def everything(params, points):
        jac = jacobian(function(name), params, points)
        u = jnp.arange(1.0, 1.0 + jac.shape[0])
        return jac.gram(), jac.centre().gram(), jac.mv(params), jac.rmv(u), jac.dense(), stored(name), u

    K_, C, mv, rmv, dense, J, u = everything(model.params, model.points)
    flat = lambda tree: jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])  # noqa: E731
    close(K_, J @ J.T)
    D = centred(J, outputs)
    close(C, D @ D.T)
    close(mv, J @ flat(model.params))
    close(flat(rmv), J.T @ u)
    close(dense, J)


@pytest.mark.parametrize("name", ["vit", "cnn", "psiformer"])
def test_blocks_and_pieces_of_rows(name, monkeypatch):
    """Blocks of points, and on top of it columns a few at a time and rows in blocks."""
    monkeypatch.setattr(contract, "CPU_PIECE", 8 * K)
    monkeypatch.setattr(_symmetric, "CPU_BLOCK", 2)
    monkeypatch.setattr(contract, "SMALL", 4)
    model, J = MODELS[name], stored(name)
    D = centred(J, 1)

    @quick_jit
    def kernels(params, points):
        whole = jacobian(model.fn, params, points)
        blocked = jacobian(model.fn, params, points, block_size=4)
        return whole.gram(), whole.centre().gram(), blocked.gram(), blocked.centre().gram()

    for found, rows in zip(kernels(model.params, model.points), (J, D, J, D), strict=True):
        close(found, rows @ rows.T)


def test_under_vmap_and_grad():
    """A transformer alone: JAX itself does not differentiate every convolution under two vmaps."""
    model = MODELS["vit"]
    trace = lambda p: jnp.sum(jacobian(model.fn, p, model.points).centre().gram() ** 2)  # noqa: E731

    def from_rows(params):
        D = centred(stored("vit", params), 1)
        return jnp.sum((D @ D.T) ** 2)

    two = jax.tree.map(lambda leaf: jnp.stack([leaf, 1.1 * leaf]), model.params)
    values, gradient = quick_jit(lambda p, q: (jax.vmap(trace)(q), jax.grad(trace)(p)))(model.params, two)
    wanted, slope = quick_jit(lambda p, q: (jax.vmap(from_rows)(q), jax.grad(from_rows)(p)))(
        model.params, two
    )
    close(values, wanted)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(slope), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11 * max(1.0, float(jnp.abs(b).max())))


CONVOLUTIONS = {
    "strided": ((2, 2), "VALID", (1, 1), ("NCHW", "OIHW", "NCHW"), 1),
    "dilated": ((1, 1), ((2, 1), (0, 2)), (2, 1), ("NHWC", "HWIO", "NHWC"), 1),
    "same": ((1, 2), "SAME", (1, 1), ("NHWC", "OHWI", "NCHW"), 1),
    "grouped": ((1, 1), "VALID", (1, 1), ("NHWC", "HWIO", "NHWC"), 2),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_every_kind(name):
    stride, padding, dilation, numbers, groups = CONVOLUTIONS[name]
    rng = np.random.default_rng(0)
    sizes = {"H": 3, "W": 2, "I": 4 // groups, "O": 6}
    params = {"W": jnp.asarray(rng.normal(size=[sizes[axis] for axis in numbers[1]]))}
    image = {"N": 1, "H": 6, "W": 5, "C": 4}
    points = jnp.asarray(rng.normal(size=(K, *(image[axis] for axis in numbers[0]))))

    def fn(p, x):
        y = jax.lax.conv_general_dilated(
            x, p["W"], stride, padding, rhs_dilation=dilation, dimension_numbers=numbers,
            feature_group_count=groups,
        )  # fmt: skip
        return jnp.sum(jnp.tanh(y) ** 2)

    jac = jacobian(fn, params, points)
    (report,) = jac.explain().leaves
    assert report.fallback == (groups > 1), report.why
    J = jax.vmap(jax.grad(fn), (None, 0))(params, points)["W"].reshape(K, -1)
    found, dense = quick_jit(lambda p, x: (jacobian(fn, p, x).gram(), jacobian(fn, p, x).dense()))(
        params, points
    )
    close(found, J @ J.T)
    close(dense, J)


def test_a_window_of_many_offsets_keeps_its_rows():
    params = {"W": jnp.ones((9, 9, 1, 1))}
    conv = functools.partial(
        jax.lax.conv_general_dilated,
        window_strides=(1, 1),
        padding="VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    fn = lambda p, x: jnp.sum(jnp.tanh(conv(x[None], p["W"])))  # noqa: E731
    jac = jacobian(fn, params, jnp.linspace(0, 1, 2 * 100).reshape(2, 10, 10, 1))
    assert "81 offsets" in jac.explain().leaves[0].why
    J = jac.dense()
    close(jac.gram(), J @ J.T)


class TestSharing:
    """Leaves that have a factor in common are contracted together, and say so."""

    @staticmethod
    def attention(p, x):
        q, k, v = (jnp.tanh(x @ p[name]) for name in "qkv")
        return jnp.sum(jnp.tanh(q * k + v @ p["own"] + q @ p["other"] + p["bias"]))

    params = {  # noqa: RUF012
        **{name: jnp.asarray(np.random.default_rng(i).normal(size=(12, 12))) for i, name in enumerate("qkv")},
        "own": jnp.asarray(np.random.default_rng(3).normal(size=(12, 12))),
        "other": jnp.asarray(np.random.default_rng(4).normal(size=(12, 12))),
        "bias": jnp.ones(12),
    }
    points = jnp.asarray(np.random.default_rng(5).normal(size=(K, 12)))

    def test_explained(self):
        reports = {r.leaf: r for r in jacobian(self.attention, self.params, self.points).explain().leaves}
        for leaf, others in {"q": "kv", "k": "qv", "v": "qk"}.items():
            assert all(f"['{other}']" in reports[f"['{leaf}']"].why for other in others), reports
        assert "shares a factor with" in reports["['own']"].why
        assert "['other']" in reports["['own']"].why and "['bias']" in reports["['own']"].why
        assert reports["['bias']"].how == "outer"
        counts = sorted(reports[f"['{name}']"].flops for name in "qkv")
        assert counts[0] == counts[1] < counts[2]  # the factor they share is counted once

    def test_fewer_products_are_compiled(self, monkeypatch):
        """Alone every weight multiplies two factors; together q, k and v need four products, not six."""

        def dots(jac):
            text = jax.jit(lambda p, x: jacobian(self.attention, p, x).gram()).lower(*jac).as_text()
            return text.count("stablehlo.dot_general")

        shared = dots((self.params, self.points))
        monkeypatch.setattr(
            contract,
            "sharings",
            lambda names, vectors: [contract.Sharing(0, (i,)) for i in range(len(names))],
        )
        # A new number of points, so that nothing compiled before is used.
        assert dots((self.params, self.points[:5])) > shared

    def test_kernel(self):
        jac = jacobian(self.attention, self.params, self.points)
        J = jac.dense()
        close(jac.gram(), J @ J.T)
        D = centred(J, 1)
        close(jac.centre().gram(), D @ D.T)
        mixed = jac.centre().cross(jac)  # rows less their mean on one side only
        close(mixed, D @ J.T)


def test_cost_of_the_kernel_and_of_products_without_it():
    """k²(d_in + d_out + 1) multiply-adds for one product per row, of which four blocks leave out 3/8."""
    k, a, b = 512, 30, 20
    fn = lambda p, x: jnp.sum(jnp.tanh(x @ p))  # noqa: E731
    explained = jacobian(fn, jnp.ones((a, b)), jnp.ones((k, a))).explain()
    assert explained.flops == 2 * k**2 * (a + b + 1) * 5 // 8
    assert explained.product_flops == 8 * k * a * b
    assert explained.iterations == (explained.flops + k**3 // 3) / explained.product_flops
    assert f"below {explained.iterations:.3g} iterations" in str(explained)


class TestPrecision:
    def test_what_was_chosen_is_said(self, monkeypatch):
        model = M.mlp([4, 8, 1], K, "float32")
        jac = jacobian(model.fn, model.params, model.points, precision="float16x3")
        assert "float16x3 is for float32 on a GPU" in str(jac.explain())
        monkeypatch.setattr(_symmetric, "on_gpu", lambda: True)
        assert "each as three of float16 parts" in str(jac.explain())

    def test_error_is_measured(self, monkeypatch):
        model = M.vit(6, 1, K, "float32", heads=2, side=4)
        exact = jacobian(model.fn, model.params, model.points).gram_error(jax.random.key(0))
        for room in (_symmetric, contract):
            monkeypatch.setattr(room, "on_gpu", lambda: True)
        monkeypatch.setattr(_symmetric, "SPLIT_BLOCK", 2)
        model = M.vit(6, 1, K, "float32", heads=2, side=4)  # a new function, compiled anew
        split = jacobian(model.fn, model.params, model.points, precision="float16x3")
        assert split.options.split
        assert float(split.gram_error(jax.random.key(0))) < max(4 * float(exact), 2e-6)

    def test_unknown_names_are_refused(self):
        with pytest.raises(ValueError, match=r"`precision` must be 'highest', 'float16x3'.*'float17'"):
            jacobian(lambda p, x: p * x, jnp.ones(()), jnp.ones(2), precision="float17")
