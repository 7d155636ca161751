"""One row per method: what every method must do.

Nearly all of the time is compilation: shapes come from tracing alone, and the others share one compiled step.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from steps import affine, take

import snapgrad as sg

TIGHT = sg.CG(tolerance=1e-12, rank=2)
WHOLE = sg.CG(tolerance=1e-12)  # a sketch of the whole kernel estimates nothing
METHODS = {
    "auto": lambda lam=1e-2, mu=0.8: sg.Auto(damping=lam),  # with few rows; its other half is the next row
    "levenberg-marquardt": lambda lam=1e-2, mu=0.8: sg.LevenbergMarquardt(damping=lam),
    "adaptive-spring": lambda lam=1e-2, mu=0.8: sg.AdaptiveSpring(damping=lam),
    "line-search": lambda lam=1e-2, mu=0.8: sg.methods.LineSearch(sg.Spring(damping=lam, momentum=mu)),
    # Without the bend: on an exact model it solves for rounding errors, in any number of iterations.
    "adaptive-spring-cg": lambda lam=1e-2, mu=0.8: sg.AdaptiveSpring(damping=lam, bend=False, solver=WHOLE),
    "fisher-spring": lambda lam=1e-2, mu=0.8: sg.methods.FisherSpring(damping=lam),
    "fisher-spring-cg": lambda lam=1e-2, mu=0.8: sg.methods.FisherSpring(damping=lam, solver=WHOLE),
    "lbfgs": lambda lam=1e-2, mu=0.8: sg.methods.LBFGS(memory=3),
    "sng": lambda lam=1e-2, mu=0.8: sg.SNG(damping=lam),
    "sng-eigh": lambda lam=1e-2, mu=0.8: sg.SNG(damping=lam, solver="eigh"),
    "sng-qr": lambda lam=1e-2, mu=0.8: sg.SNG(damping=lam, solver="qr"),
    "sng-cg": lambda lam=1e-2, mu=0.8: sg.SNG(damping=lam, solver=TIGHT),
    "spring-cg": lambda lam=1e-2, mu=0.8: sg.Spring(damping=lam, momentum=mu, solver=TIGHT),
    "spring": lambda lam=1e-2, mu=0.8: sg.Spring(damping=lam, momentum=mu),
    "two-batch": lambda lam=1e-2, mu=0.8: sg.TwoBatch(damping=lam),
    "sgd": lambda lam=1e-2, mu=0.8: sg.SGD(),
}
SELF_TUNING = (
    *("auto", "levenberg-marquardt", "adaptive-spring", "adaptive-spring-cg", "line-search", "lbfgs"),
    *("fisher-spring", "fisher-spring-cg"),
)
"""They look at residuals elsewhere, return the whole step, and are used with a unit learning rate."""
MANY_ROWS = ("levenberg-marquardt",)
"""They are meant for more rows than the 10 parameters."""
every_method = pytest.mark.parametrize("name", METHODS)


def each(change, batch):
    """The same batch with every linearisation of it replaced by `change(residual, jacobian)`."""
    return jax.tree.map(
        lambda lin: affine(*change(lin.residual, lin.jacobian)),
        batch,
        is_leaf=lambda x: isinstance(x, sg.Linearisation),
    )


@functools.cache
def setting(name, dtype=jnp.float64, k=None):
    """Pytree parameters, a linearisation (or a pair) and a state, for Spring one that has seen a step."""
    k = (30 if name in MANY_ROWS else 4) if k is None else k
    rng = np.random.default_rng(0)
    params = {"w": jnp.ones((3, 2), dtype), "b": [jnp.zeros(3, dtype), jnp.ones((), dtype)]}

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), dtype)

    def lin():
        rows = jax.tree.map(lambda leaf: normal(k, *leaf.shape), params)
        return affine(normal(k), sg.DenseJacobian(rows))

    batch = (lin(), lin()) if name == "two-batch" else lin()
    state = METHODS[name]().init(params)
    if name == "spring":
        state = jax.tree.map(lambda leaf: normal(*leaf.shape), state)
    return params, batch, state


def ravel(tree):
    """All leaves in one vector, in the order of `jax.flatten_util.ravel_pytree`."""
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])


def norm(tree):
    return np.linalg.norm(ravel(tree))


def all_zero(tree):
    return not np.any(ravel(tree))


def assert_trees_close(a, b, rtol=1e-12):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


# `sg.Auto` is one of two others, by the number of rows.
@pytest.mark.parametrize("name", [name for name in METHODS if name != "auto"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("k", [1, 30])  # 30 rows > 10 parameters
def test_shapes_and_dtypes(name, dtype, k):
    params, batch, state = setting(name, dtype, k)
    direction, new_state = eqx.filter_eval_shape(METHODS[name]().direction, batch, state)
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
        results.append(take(METHODS[name](), batch, state)[0])
    scale = np.abs(ravel(results[1])).max()
    assert_trees_close(
        *[jax.tree.map(lambda x: np.asarray(x, float) / scale, result) for result in results], rtol=2e-3
    )


@every_method
def test_jit(name):
    _, batch, state = setting(name)
    method = METHODS[name]()
    assert_trees_close(method.direction(batch, state), take(method, batch, state), rtol=1e-10)


@every_method
def test_vmap_over_hyperparameters(name):
    _, batch, state = setting(name)
    lams, mus = jnp.array([0.0, 1e-8, 1e-2, 10.0]), jnp.array([0.0, 0.3, 0.9, 0.999])
    swept = jax.jit(jax.vmap(lambda lam, mu: METHODS[name](lam, mu).direction(batch, state)))(lams, mus)
    for i in range(4):
        alone = take(METHODS[name](float(lams[i]), float(mus[i])), batch, state)
        assert_trees_close(jax.tree.map(lambda x: np.asarray(x)[i], swept), alone, rtol=1e-9)


@every_method
def test_tree_structure_does_not_matter(name):
    params, batch, state = setting(name)
    method = METHODS[name]()
    direction, _ = take(method, batch, state)
    flat = each(lambda residual, jacobian: (residual, sg.DenseJacobian(jacobian.dense())), batch)
    vector = jnp.asarray(ravel(state if name == "spring" else params))
    flat_state = sg.methods.SpringState(vector) if name == "spring" else method.init(vector)
    flat_direction, _ = take(method, flat, flat_state)
    np.testing.assert_allclose(ravel(direction), flat_direction, rtol=1e-10, atol=1e-12)


@every_method
def test_zero_residual_gives_zero_step(name):
    params, batch, _ = setting(name)
    batch = each(lambda residual, jacobian: (jnp.zeros_like(residual), jacobian), batch)
    method = METHODS[name]()
    direction, state = take(method, batch, method.init(params))
    assert all_zero(direction)
    if jax.tree.leaves(state):
        assert name in SELF_TUNING or all_zero(state)
        assert np.all(np.isfinite(ravel(state)))
    # Nothing can be lowered: a trial is refused, and its state stays finite.
    assert method.report(state).get("refused", 1) == 1


@pytest.mark.parametrize("name", SELF_TUNING)
def test_a_self_tuning_step_lowers_the_loss(name):
    """On an exact model, with the numbers it reports: those of the step just taken."""
    params, batch, _ = setting(name)
    method = METHODS[name]()
    step, state = take(method, batch, method.init(params))
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
    direction, new_state = take(method, each(spoil, batch), state)
    assert all_zero(direction)
    if where == "jacobian" and name in ("auto", "adaptive-spring"):
        # A kernel that is not finite is a trial that failed: refused, with more damping for the next one.
        before, after = method.report(state), method.report(new_state)
        assert after["refused"] == 1 and after["damping"] > before["damping"]
        assert np.all(np.isfinite(ravel(new_state)))
    else:
        assert_trees_close(new_state, state, rtol=0)


@every_method
def test_optax(name):
    """In an ordinary optax loop, chained with clipping and a schedule, and counting refused steps."""
    params, batch, _ = setting(name)
    method = METHODS[name]()
    rate = 1.0 if name in SELF_TUNING else 0.5
    # The schedule starts at the rate, and the clipping comes after what is compared.
    steps = sg.as_optax(method, optax.linear_schedule(rate, 0.1, 4))
    tx = optax.chain(steps, _remember(), optax.clip_by_global_norm(1e-3))
    update, state = jax.jit(tx.update), tx.init(params)
    updates, state = update(params, state, params, linearisation=batch)
    direction, _ = take(method, batch, method.init(params))
    assert_trees_close(state[1], jax.tree.map(lambda d: -rate * d, direction), rtol=1e-10)
    assert 0 < norm(updates) <= 1e-3 * (1 + 1e-12)
    assert jax.tree.structure(optax.apply_updates(params, updates)) == jax.tree.structure(params)

    bad = jax.tree.map(lambda x: x * jnp.nan, batch)
    updates, state = update(params, state, params, linearisation=bad)
    assert norm(updates) == 0
    assert int(state[0].rejected) == 1


def _remember():
    """A transformation that changes nothing and whose state is the last update."""
    return optax.GradientTransformation(
        lambda params: optax.tree.zeros_like(params), lambda updates, state, params=None: (updates, updates)
    )
