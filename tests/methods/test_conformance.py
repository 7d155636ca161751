"""One row per method: what every method must do."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import snapgrad as sg

METHODS = {
    "auto-many": lambda lam=1e-2, mu=0.8: sg.Auto(damping=lam),
    "auto-few": lambda lam=1e-2, mu=0.8: sg.Auto(damping=lam),
    "levenberg-marquardt": lambda lam=1e-2, mu=0.8: sg.LevenbergMarquardt(damping=lam),
    "adaptive-spring": lambda lam=1e-2, mu=0.8: sg.AdaptiveSpring(damping=lam),
    "line-search": lambda lam=1e-2, mu=0.8: sg.methods.LineSearch(sg.Spring(damping=lam, momentum=mu)),
    "lbfgs": lambda lam=1e-2, mu=0.8: sg.methods.LBFGS(memory=3),
    "sng": lambda lam=1e-2, mu=0.8: sg.SNG(damping=lam),
    "sng-eigh": lambda lam=1e-2, mu=0.8: sg.SNG(damping=lam, solver="eigh"),
    "sng-qr": lambda lam=1e-2, mu=0.8: sg.SNG(damping=lam, solver="qr"),
    "spring": lambda lam=1e-2, mu=0.8: sg.Spring(damping=lam, momentum=mu),
    "two-batch": lambda lam=1e-2, mu=0.8: sg.TwoBatch(damping=lam),
    "sgd": lambda lam=1e-2, mu=0.8: sg.SGD(),
}
SELF_TUNING = ("auto-many", "auto-few", "levenberg-marquardt", "adaptive-spring", "line-search", "lbfgs")
"""They try their steps on the batch, return the whole step, and are used with a unit learning rate."""
MANY_ROWS = ("auto-many", "levenberg-marquardt")
"""They are meant for more rows than the 10 parameters."""
every_method = pytest.mark.parametrize("name", METHODS)


def affine(residual, jacobian):
    """A linearisation that is exact: the residual after a step is r − J · step."""
    return sg.Linearisation(residual, jacobian, jax.tree_util.Partial(after_step, residual, jacobian))


def after_step(residual, jacobian, step):
    return residual - jacobian.mv(step)


def each(change, batch):
    """The same batch with every linearisation of it replaced by `change(residual, jacobian)`."""
    return jax.tree.map(
        lambda lin: affine(*change(lin.residual, lin.jacobian)),
        batch,
        is_leaf=lambda x: isinstance(x, sg.Linearisation),
    )


def setting(name, dtype=jnp.float64, k=None, seed=0):
    """Pytree parameters, a linearisation (or a pair) and a state, for Spring one that has seen a step."""
    k = (30 if name in MANY_ROWS else 4) if k is None else k
    keys = jax.random.split(jax.random.key(seed), 6)
    params = {"w": jnp.ones((3, 2), dtype), "b": [jnp.zeros(3, dtype), jnp.ones((), dtype)]}

    def lin(key):
        rows = jax.tree.map(
            lambda leaf: jax.random.normal(jax.random.fold_in(key, leaf.size), (k, *leaf.shape), dtype),
            params,
        )
        return affine(jax.random.normal(key, (k,), dtype), sg.DenseJacobian(rows))

    batch = (lin(keys[0]), lin(keys[1])) if name == "two-batch" else lin(keys[0])
    state = METHODS[name]().init(params)
    if name == "spring":
        state = jax.tree.map(lambda leaf: jax.random.normal(keys[2], leaf.shape, dtype), state)
    return params, batch, state


def norm(tree):
    return jnp.linalg.norm(jax.flatten_util.ravel_pytree(tree)[0])


def assert_trees_close(a, b, rtol=1e-12):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


@every_method
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("k", [1, 4, 30])  # 30 rows > 10 parameters
def test_shapes_and_dtypes(name, dtype, k):
    params, batch, state = setting(name, dtype, k)
    direction, new_state = METHODS[name]().direction(batch, state)
    assert jax.tree.structure(direction) == jax.tree.structure(params)
    for d, p in zip(jax.tree.leaves(direction), jax.tree.leaves(params), strict=True):
        assert (d.shape, d.dtype) == (p.shape, p.dtype)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), new_state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )


@every_method
def test_float32_agrees_with_float64(name):
    results = []
    for dtype in (jnp.float32, jnp.float64):
        _, batch, state = setting(name, jnp.float64)
        batch, state = jax.tree.map(
            lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, (batch, state)
        )
        results.append(METHODS[name]().direction(batch, state)[0])
    scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(results[1]))
    assert_trees_close(
        *[jax.tree.map(lambda x: x.astype(float) / scale, result) for result in results], rtol=2e-3
    )


@every_method
def test_jit(name):
    _, batch, state = setting(name)
    method = METHODS[name]()
    eager = method.direction(batch, state)
    compiled = eqx.filter_jit(lambda m, b, s: m.direction(b, s))(method, batch, state)
    assert_trees_close(eager, compiled, rtol=1e-10)


@every_method
def test_vmap_over_hyperparameters(name):
    _, batch, state = setting(name)
    lams, mus = jnp.array([0.0, 1e-8, 1e-2, 10.0]), jnp.array([0.0, 0.3, 0.9, 0.999])
    swept = jax.jit(jax.vmap(lambda lam, mu: METHODS[name](lam, mu).direction(batch, state)))(lams, mus)
    for i in range(4):
        alone = METHODS[name](float(lams[i]), float(mus[i])).direction(batch, state)
        assert_trees_close(jax.tree.map(lambda x: x[i], swept), alone, rtol=1e-9)


@every_method
def test_tree_structure_does_not_matter(name):
    params, batch, state = setting(name)
    method = METHODS[name]()
    direction, _ = method.direction(batch, state)
    flat = each(lambda residual, jacobian: (residual, sg.DenseJacobian(jacobian.dense())), batch)
    ravel = lambda tree: jax.flatten_util.ravel_pytree(tree)[0]  # noqa: E731
    flat_state = sg.methods.SpringState(ravel(state)) if name == "spring" else method.init(ravel(params))
    flat_direction, _ = method.direction(flat, flat_state)
    np.testing.assert_allclose(ravel(direction), flat_direction, rtol=1e-10, atol=1e-12)


@every_method
def test_zero_residual_gives_zero_step(name):
    params, batch, _ = setting(name)
    batch = each(lambda residual, jacobian: (jnp.zeros_like(residual), jacobian), batch)
    method = METHODS[name]()
    direction, state = method.direction(batch, method.init(params))
    assert all(bool(jnp.all(x == 0)) for x in jax.tree.leaves(direction))
    if name not in SELF_TUNING:
        assert all(bool(jnp.all(x == 0)) for x in jax.tree.leaves(state))
    # Nothing can be lowered: a trial is refused, and its state stays finite.
    assert method.report(state).get("refused", 1) == 1
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(state))


@pytest.mark.parametrize("name", SELF_TUNING)
def test_a_self_tuning_step_lowers_the_loss(name):
    """On an exact model, with the numbers it reports: those of the step just taken."""
    params, batch, _ = setting(name)
    method = METHODS[name]()
    step, state = method.direction(batch, method.init(params))
    assert norm(batch.residual_at(step)) < norm(batch.residual)
    report = method.report(state)
    assert report.get("refused", 0) == 0 and all(jnp.shape(value) == () for value in report.values())
    np.testing.assert_allclose(report.get("gain", 1), 1, rtol=1e-9)  # as predicted


@every_method
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
@pytest.mark.parametrize("where", ["residual", "jacobian"])
def test_non_finite_input_leaves_state_untouched(name, bad, where):
    _, batch, state = setting(name)

    def spoil(residual, jacobian):
        if where == "residual":
            return residual.at[1].set(bad), jacobian
        return residual, sg.DenseJacobian(
            {**jacobian.rows, "w": jacobian.rows["w"].at[1, 0, 0].set(bad)}  # one entry
        )

    method = METHODS[name]()
    direction, new_state = method.direction(each(spoil, batch), state)
    assert all(bool(jnp.all(x == 0)) for x in jax.tree.leaves(direction))
    if where == "jacobian" and name in ("auto-few", "adaptive-spring"):
        # A kernel that is not finite is a trial that failed: refused, with more damping for the next one.
        before, after = method.report(state), method.report(new_state)
        assert after["refused"] == 1 and after["damping"] > before["damping"]
        assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(new_state))
    else:
        assert_trees_close(new_state, state, rtol=0)


@every_method
def test_optax(name):
    """In an ordinary optax loop, chained with clipping and a schedule, and counting refused steps."""
    params, batch, _ = setting(name)
    method = METHODS[name]()
    schedule = optax.linear_schedule(0.5, 0.1, 4)
    tx = optax.chain(sg.as_optax(method, schedule), optax.clip_by_global_norm(1e-3))
    updates, state = tx.update(None, tx.init(params), params, linearisation=batch)
    assert float(norm(updates)) <= 1e-3 * (1 + 1e-12)

    rate = 1.0 if name in SELF_TUNING else 0.5
    tx = sg.as_optax(method, rate)
    state = tx.init(params)
    updates, state = jax.jit(tx.update)(params, state, params, linearisation=batch)
    direction, _ = method.direction(batch, method.init(params))
    assert_trees_close(updates, jax.tree.map(lambda d: -rate * d, direction), rtol=1e-10)
    assert jax.tree.structure(optax.apply_updates(params, updates)) == jax.tree.structure(params)

    bad = jax.tree.map(lambda x: x * jnp.nan, batch)
    updates, state = tx.update(params, state, params, linearisation=bad)
    assert float(norm(updates)) == 0
    assert int(state.rejected) == 1
