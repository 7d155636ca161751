"""Row blocks compose: weights, means, stacks and complex rows against the matrices they stand for."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad import Linearisation
from snapgrad.operators import DenseJacobian, jacobian, linearise, realify, stack

KEY = jax.random.key(7)


def normal(i, *shape, dtype=jnp.float64):
    """By NumPy: jax.random would compile for each shape."""
    rng = np.random.default_rng([i, *shape])
    real = rng.normal(size=shape)
    return jnp.asarray(
        (real + 1j * rng.normal(size=shape)) if jnp.issubdtype(dtype, complex) else real, dtype
    )


PARAMS = {"W": normal(0, 4, 10), "b": normal(1, 10), "v": normal(2, 10)}


def model(p, x):
    return jnp.tanh(x @ p["W"] + p["b"]) @ p["v"]


def two_outputs(p, x):
    return jnp.stack([model(p, x), jnp.sum(jnp.sin(x @ p["W"]))])


def flat(tree):
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])


quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@quick_jit
def products(jacs, vectors):
    return [
        (jac.dense(), jac.gram(), flat(jac.rmv(u)), jac.mv(PARAMS))
        for jac, u in zip(jacs, vectors, strict=True)
    ]


def check(*pairs):
    """Every product of each operator against its matrix, all in one compilation."""
    vectors = [normal(5, J.shape[0]) for _, J in pairs]
    for (jac, J), u, found in zip(pairs, vectors, products([jac for jac, _ in pairs], vectors), strict=True):
        assert jac.shape == J.shape
        for a, wanted in zip(found, (J, J @ J.T, J.T @ u, J @ flat(PARAMS)), strict=True):
            np.testing.assert_allclose(a, wanted, rtol=0, atol=1e-12 * float(jnp.abs(wanted).max()))


def rows_of(jac, fn=model):
    """J by JAX itself."""
    rows = jax.tree.leaves(jax.vmap(jax.jacrev(fn), (None, 0))(PARAMS, jac.batch))
    return jnp.concatenate([leaf.reshape(jac.shape[0], -1) for leaf in rows], axis=1)


def structured(k=6, fn=model, **options):
    return jacobian(fn, PARAMS, normal(10 + k, k, 4), **options)


def as_tree(J):
    split = jnp.split(J, [40, 50], axis=1)
    return DenseJacobian({"W": split[0].reshape(-1, 4, 10), "b": split[1], "v": split[2]})


def weighted_mean_removed(J, w, outputs=1):
    grouped = J.reshape(-1, outputs, J.shape[1])
    w = w / w.sum()
    return (grouped - jnp.einsum("k,kon->on", w, grouped)[None]).reshape(J.shape)


def test_scale():
    w = normal(3, 6)
    jac, two = structured(), structured(fn=two_outputs)
    J = rows_of(jac)
    check(
        (jac.scale(w).scale(2.0), 2 * w[:, None] * J),
        (as_tree(J).scale(w), w[:, None] * J),
        (two.scale(w), jnp.repeat(w, 2)[:, None] * rows_of(two, two_outputs)),
    )


@pytest.mark.parametrize("options", [{}, {"block_size": 4}])
def test_centre(options):
    w = jnp.linspace(0.1, 1, 6)
    jac = structured(**options)
    J = rows_of(jac)
    check(
        (jac.centre(), J - J.mean(axis=0, keepdims=True)),
        (as_tree(J).centre(w), weighted_mean_removed(J, w)),
        (jac.centre(w).scale(w), w[:, None] * weighted_mean_removed(J, w)),
        (jac.scale(w).centre(), w[:, None] * J - (w[:, None] * J).mean(axis=0, keepdims=True)),
    )


def test_kernel_from_blocks_above_its_diagonal(monkeypatch):
    monkeypatch.setattr(sys.modules["snapgrad.linalg._symmetric"], "CPU_BLOCK", 4)
    jac = structured(19)
    J = rows_of(jac)
    check((jac, J), (jac.centre(), J - J.mean(axis=0, keepdims=True)))


def test_centre_keeps_outputs_apart():
    jac = structured(fn=two_outputs)
    w = jnp.linspace(0.1, 1, 6)
    check((jac.centre(w), weighted_mean_removed(rows_of(jac, two_outputs), w, outputs=2)))


@pytest.mark.parametrize("options", [{}, {"block_size": 4}])
def test_stack(options):
    """Interior, boundary and stored rows: every pair of kinds meets in a kernel of its own."""
    w = normal(4, 6)
    a, b = structured(6, **options), structured(5, two_outputs, **options)
    stored = as_tree(normal(6, 3, 60))
    blocks = [a.scale(w), b, stored, structured(3).centre().scale(normal(8, 3))]
    A, B, C = rows_of(a), rows_of(b, two_outputs), rows_of(structured(3))
    C = normal(8, 3)[:, None] * (C - C.mean(axis=0, keepdims=True))
    check((stack(blocks), jnp.concatenate([w[:, None] * A, B, normal(6, 3, 60), C])))
    np.testing.assert_allclose(quick_jit(lambda: a.cross(b))(), A @ B.T, atol=1e-12)


def test_combine():
    M, N = normal(20, 3, 6), normal(21, 2, 5)
    jac, two = structured(), structured(5, two_outputs)
    J, JJ = rows_of(jac), rows_of(two, two_outputs)
    summed = jnp.kron(N, jnp.eye(2)) @ JJ  # each output by itself
    w = normal(22, 3)
    check(
        (jac.combine(M), M @ J),
        (two.combine(N), summed),
        (jac.scale(2.0).combine(M).scale(w), 2 * w[:, None] * (M @ J)),
        (stack([jac.combine(M), two.combine(N)]), jnp.concatenate([M @ J, summed])),
        (jac.combine(M).centre(), M @ J - (M @ J).mean(axis=0, keepdims=True)),
    )
    np.testing.assert_allclose(
        quick_jit(lambda: jac.combine(M).cross(two))(), M @ J @ JJ.T, atol=1e-11, rtol=0
    )
    kept = jac.combine(M).restrict({"W": True, "b": False, "v": False})
    np.testing.assert_allclose(quick_jit(lambda: kept.dense())(), (M @ J)[:, :40], atol=1e-12, rtol=0)
    with pytest.raises(ValueError, match=r"`matrix` must have one column for each of 6 points, got \(2, 5\)"):
        jac.combine(N)


def test_stack_as_one_block():
    even = stack([structured(6), structured(5)])
    w = normal(9, 11)
    J = jnp.concatenate([rows_of(block) for block in even.blocks])
    check((even.scale(w), w[:, None] * J), (even.centre(), J - J.mean(axis=0, keepdims=True)))


def test_stack_where_blocks_keep_a_leaf_differently():
    """A leaf kept as outer products in one block and as rows in another (its Laplacian has too many)."""

    def laplacian(p, x):
        g = jax.grad(model, argnums=1)
        return jnp.sum(jax.vmap(lambda v: v @ jax.jvp(lambda x: g(p, x), (x,), (v,))[1])(jnp.eye(4)))

    a, b = structured(6, laplacian), structured(5)
    assert [r.how for r in a.explain().leaves] != [r.how for r in b.explain().leaves]
    check((stack([a, b]), jnp.concatenate([rows_of(a, laplacian), rows_of(b)])))


def test_centring_in_float32_does_not_cancel():
    """Rows that differ by 1e-4 of their size: a kernel centred after the fact would lose all digits."""
    params = {"W": normal(0, 4, 16, dtype=jnp.float32), "v": normal(2, 16, dtype=jnp.float32)}
    x = 1 + 1e-4 * normal(1, 40, 4, dtype=jnp.float32)

    def fn(p, x):
        return jnp.tanh(x @ p["W"]) @ p["v"]

    double = jax.tree.map(lambda a: a.astype(jnp.float64), (params, x))
    exact = jacobian(fn, *double).centre().gram()
    jac = jacobian(fn, params, x)
    K = jac.gram()
    assert K.dtype == jnp.float32
    C = jnp.eye(40, dtype=jnp.float32) - 1 / 40
    naive = float(jnp.linalg.norm(C @ K @ C - exact) / jnp.linalg.norm(exact))
    guarded = float(jnp.linalg.norm(jac.centre().gram() - exact) / jnp.linalg.norm(exact))
    stored = jac.plan().leaves
    assert any(leaf.how == "outer" for leaf in stored)
    assert guarded < 5e-3 < 1 < naive  # the rows themselves are good to 1e-7 / 1e-4


def complex_model(p, x):
    return jnp.sum(jnp.log(jnp.cosh(x @ p["W"] + p["b"])))


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("holomorphic", [False, True])
def test_realify(mixed, holomorphic):
    """Complex rows O as the real rows (Re O, Im O) on (Re θ, Im θ): K is the real form of O O†."""
    params = {"W": normal(0, 4, 9, dtype=jnp.complex128), "b": normal(1, 9, dtype=jnp.complex128)}
    if mixed:
        params["b"] = params["b"].real
    x = normal(2, 5, 4)
    w = jnp.linspace(0.1, 1, 5)
    jac = jacobian(realify(complex_model, holomorphic=holomorphic), params, x)
    assert jac.shape == (10, 2 * 36 + (9 if mixed else 18))

    O = jax.vmap(jax.grad(complex_model, holomorphic=True), (None, 0))(  # noqa: E741
        jax.tree.map(lambda a: a.astype(jnp.complex128), params), x
    )
    columns = []
    for name in ("W", "b"):
        o = O[name].reshape(5, -1)
        columns.append(o)
        if jnp.iscomplexobj(params[name]):
            columns.append(1j * o)
    O = jnp.concatenate(columns, axis=1)  # noqa: E741
    J = jnp.stack([O.real, O.imag], axis=1).reshape(10, -1)
    weights = jnp.repeat(w, 2)[:, None]
    centred = weighted_mean_removed(J, w, outputs=2)
    tangent = jax.tree.map(lambda p: normal(4, *p.shape, dtype=p.dtype), params)
    u = normal(3, 10)

    @quick_jit
    def everything(jac, tangent, u):
        kernels = [one.gram() for one in (jac, jac.centre(w), jac.scale(w))]
        return jac.dense(), [*kernels, jac.gram(block_size=2)], jac.rmv(u), jac.mv(tangent)

    dense, kernels, pulled, pushed = everything(jac, tangent, u)
    np.testing.assert_allclose(dense, J, atol=1e-12)
    for K, rows in zip(kernels, (J, centred, weights * J, J), strict=True):
        np.testing.assert_allclose(K, rows @ rows.T, atol=1e-11)
    inner = sum(
        float(jnp.vdot(a, b).real) for a, b in zip(*map(jax.tree.leaves, (pulled, tangent)), strict=True)
    )
    np.testing.assert_allclose(inner, pushed @ u, rtol=1e-12)  # ⟨Jᵀu, φ⟩ = ⟨u, Jφ⟩
    at = lambda h: jax.vmap(complex_model, (None, 0))(  # noqa: E731
        jax.tree.map(lambda p, t: p + h * t, params, tangent), x
    )
    slope = realify(at(1e-6) - at(-1e-6)) / 2e-6
    np.testing.assert_allclose(slope, pushed, rtol=0, atol=1e-7 * float(jnp.abs(slope).max()))


def test_linearise():
    x, y = normal(0, 6, 4), normal(1, 6)
    lin = linearise(lambda p, xy: model(p, xy[0]) - xy[1], PARAMS, (x, y))
    assert isinstance(lin, Linearisation)
    np.testing.assert_allclose(lin.residual, jax.vmap(model, (None, 0))(PARAMS, x) - y, rtol=1e-14)
    J = rows_of(lin.jacobian, lambda p, xy: model(p, xy[0]))
    np.testing.assert_allclose(
        lin.jacobian.gram(), J @ J.T, rtol=0, atol=1e-12 * float(jnp.abs(J).max()) ** 2
    )


def test_lower_precision_factors_report_their_error():
    x = normal(0, 30, 4)
    exact = jacobian(model, PARAMS, x).gram()
    low = jacobian(model, PARAMS, x, factor_dtype=jnp.float32)
    K = low.gram()
    assert K.dtype == jnp.float64
    error = float(jnp.linalg.norm(K - exact) / jnp.linalg.norm(exact))
    assert 1e-9 < error < 1e-6
    measured = float(low.gram_error(KEY))
    assert 1e-9 < measured < 1e-6
    assert float(jacobian(model, PARAMS, x).gram_error(KEY)) < 1e-14
    np.testing.assert_allclose(low.mv(PARAMS), jacobian(model, PARAMS, x).mv(PARAMS), rtol=1e-12)
    single = jax.tree.map(lambda a: a.astype(jnp.float32), (PARAMS, x))
    assert jacobian(model, *single).gram().dtype == jnp.float32
    assert jacobian(model, *single, gram_dtype=jnp.float64).gram().dtype == jnp.float64


def test_under_jit_scan_vmap_and_grad():
    x = normal(0, 5, 4)

    def trace_of_gram(p):
        return jnp.trace(jacobian(model, p, x).gram())

    def dense_trace(p):
        rows = jax.vmap(jax.grad(model), (None, 0))(p, x)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(rows))

    np.testing.assert_allclose(jax.jit(trace_of_gram)(PARAMS), dense_trace(PARAMS), rtol=1e-13)
    many = jax.tree.map(lambda a: jnp.stack([a, 2 * a, -a]), PARAMS)
    np.testing.assert_allclose(jax.vmap(trace_of_gram)(many), jax.vmap(dense_trace)(many), rtol=1e-13)
    _, scanned = jax.lax.scan(lambda c, p: (c, trace_of_gram(p)), 0, many)
    np.testing.assert_allclose(scanned, jax.vmap(dense_trace)(many), rtol=1e-13)
    for ours, theirs in zip(
        *(jax.tree.leaves(jax.grad(f)(PARAMS)) for f in (trace_of_gram, dense_trace)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-11)
    blocked = lambda p: jnp.trace(jacobian(model, p, x, block_size=2).gram())  # noqa: E731
    np.testing.assert_allclose(jax.vmap(blocked)(many), jax.vmap(dense_trace)(many), rtol=1e-13)


def test_no_tracer_leaks_and_closures_over_tracers():
    x = normal(0, 5, 4)

    def step(p, shift):
        jac = jacobian(lambda p, x: model(p, x + shift), p, x)  # the function closes over a traced value
        return jac.gram() + jnp.outer(jac.mv(p), jac.mv(jac.rmv(jnp.ones(5))))

    with jax.checking_leaks():
        found = jax.jit(step)(PARAMS, 0.5)
    J = jacobian(model, PARAMS, x + 0.5).dense()
    wanted = J @ J.T + jnp.outer(J @ flat(PARAMS), J @ (J.T @ jnp.ones(5)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-11 * float(jnp.abs(wanted).max()))


def test_a_function_is_read_once_for_each_shape_of_a_point():
    traces = []

    def counted(p, x):
        traces.append(1)
        return jnp.sum(jnp.tanh(jnp.tanh(x @ p[0]) @ p[1]))

    params = [normal(0, 4, 10), normal(1, 10, 10)]
    jac = jacobian(counted, params, normal(0, 5, 4))
    built = len(traces)  # the shape of the output is looked up
    jac.gram()
    first = len(traces)
    assert first > built
    jac.explain()
    jac.dense()
    jac.centre().gram()
    jac.mv(params)
    jac.rmv(jnp.ones(5))
    assert len(traces) == first  # the gradient that was read for the kernel serves them all
    for points in (5, 6):
        jacobian(counted, params, normal(1, points, 4)).gram()
    assert len(traces) <= first + 2 * built
    known = len(traces)
    jacobian(counted, [normal(0, 3, 10), params[1]], normal(0, 5, 3)).gram()
    assert len(traces) > known + built


def test_linearisation_crosses_jit():
    x = normal(0, 5, 4)
    lin = jax.jit(lambda p: linearise(model, p, x))(PARAMS)
    np.testing.assert_allclose(lin.jacobian.gram(), jacobian(model, PARAMS, x).gram(), rtol=1e-13)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: jacobian(3, PARAMS, jnp.ones((2, 4))), TypeError, r"`fn` must be a function"),
        (lambda: jacobian(model, {}, jnp.ones((2, 4))), ValueError, r"`params` must hold"),
        (lambda: jacobian(model, PARAMS, ()), ValueError, r"`batch` must hold"),
        (
            lambda: jacobian(model, PARAMS, (jnp.ones((2, 4)), jnp.ones(3))),
            ValueError,
            r"`batch\[1\]` must have 2",
        ),
        (lambda: jacobian(model, PARAMS, jnp.ones(())), ValueError, r"at least one point"),
        (lambda: structured(block_size=0), ValueError, r"`block_size` must be at least 1, got 0"),
        (lambda: structured(memory_limit="12 parsecs"), ValueError, r"`memory_limit` must be bytes"),
        (
            lambda: structured(memory_limit=10).gram(),
            ValueError,
            r"`memory_limit` must be at least .* got 10 B",
        ),
        (lambda: structured(block_size=2, memory_limit="1GiB"), ValueError, r"either `block_size` or"),
        (lambda: structured(fn=lambda p, x: (x[0], x[1])), TypeError, r"`fn` must return one array"),
        (lambda: structured(fn=lambda p, x: 1j * model(p, x)), TypeError, r"sg.realify\(fn\) gives two real"),
        (lambda: structured(fn=lambda p, x: jnp.zeros(0)), ValueError, r"at least one number"),
        (lambda: structured(gram_dtype=jnp.int32), TypeError, r"`gram_dtype` must be a real"),
        (lambda: structured().scale(jnp.ones(4)), ValueError, r"`weights` must have 6 entries"),
        (lambda: structured().centre(jnp.ones(4)), ValueError, r"`weights` must have 6 entries"),
        (lambda: structured().mv({"W": jnp.ones((4, 10))}), ValueError, r"`tangent` must have the tree"),
        (lambda: structured().rmv(jnp.ones(4)), ValueError, r"`cotangent` must have one entry per row"),
        (lambda: stack([]), ValueError, r"`blocks` must hold at least one"),
        (lambda: stack([structured(), jnp.ones(3)]), TypeError, r"`blocks\[1\]` must be a Jacobian"),
        (
            lambda: stack([structured(), DenseJacobian(jnp.ones((2, 3)))]),
            ValueError,
            r"must have 60 parameters",
        ),
        (lambda: structured().cross(DenseJacobian(jnp.ones((2, 3)))), ValueError, r"`other` must have 60"),
        (lambda: realify("a"), TypeError, r"`value` must be a function or an array"),
        (lambda: structured().shard("all"), TypeError, r"`mesh` must be a jax.sharding.Mesh"),
    ],
)
def test_errors_name_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()
