"""A user's own optax loop: descent, refusal of steps, and optax's own wrappers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import snapgrad as sg

X = jnp.asarray(np.random.default_rng(0).normal(size=(9, 3)))
PARAMS = {"a": jnp.ones(3), "b": jnp.zeros(())}
ZEROS = optax.tree.zeros_like(PARAMS)


def residual(p, x):
    return p["a"] @ jnp.sin(x) + p["b"] - 1


@jax.jit
def loss(p):
    return jnp.sum(jax.vmap(residual, (None, 0))(p, X) ** 2)


LIN = sg.linearise(residual, PARAMS, X)
BAD = eqx.tree_at(lambda lin: lin.residual, LIN, LIN.residual.at[2].set(jnp.nan))


@eqx.filter_jit
def direction(method, lin, params):
    """What the method alone says, compiled once for each kind of method."""
    return method.direction(lin, method.init(params))[0]


@pytest.mark.parametrize(
    "method", [sg.SNG(1e-3), sg.Spring(1e-3), sg.SGD(), sg.Auto()], ids=lambda m: type(m).__name__
)
def test_descent_by_default(method):
    tx = sg.as_optax(method) if not isinstance(method, sg.SGD) else sg.as_optax(method, 1e-2)
    updates, _ = jax.jit(tx.update)(None, tx.init(PARAMS), PARAMS, linearisation=LIN)
    assert loss(optax.apply_updates(PARAMS, updates)) < loss(PARAMS)


def test_a_refused_step_moves_nothing():
    """Neither Adam nor φ nor the parameters, which used to move when Adam came after the method."""
    tx = sg.as_optax(sg.Spring(1e-3), optax.adam(1e-1))
    update = jax.jit(tx.update)
    updates, state = update(None, tx.init(PARAMS), PARAMS, linearisation=LIN)
    params = optax.apply_updates(PARAMS, updates)
    updates, after = update(None, state, params, linearisation=BAD)
    assert int(after.rejected) == 1 and int(state.rejected) == 0
    assert bool(eqx.tree_equal(after._replace(rejected=state.rejected), state))
    assert bool(eqx.tree_equal(optax.apply_updates(params, updates), params))


def test_a_step_to_infinity_is_refused_too():
    """The direction is finite, the parameters after it are not."""
    tx = sg.as_optax(sg.SGD(), 1e308)
    huge = jax.tree.map(lambda x: x - 1.7e308, PARAMS)
    updates, state = tx.update(None, tx.init(huge), huge, linearisation=LIN)
    assert int(state.rejected) == 1 and all(bool(jnp.all(u == 0)) for u in jax.tree.leaves(updates))


def test_weight_decay_shrinks():
    """The recipe of the docstring: decay before the rate, so that it points the same way as the step."""
    still = eqx.tree_at(lambda lin: lin.residual, LIN, jnp.zeros(9))
    tx = sg.as_optax(sg.SNG(1e-3), optax.chain(optax.add_decayed_weights(1e-2), optax.sgd(0.5)))
    updates, _ = tx.update(None, tx.init(PARAMS), PARAMS, linearisation=still)
    np.testing.assert_allclose(optax.apply_updates(PARAMS, updates)["a"], (1 - 0.5 * 1e-2) * np.ones(3))


def test_schedules_and_numbers():
    found = np.asarray(direction(sg.SNG(1e-3), LIN, PARAMS)["a"])
    for rate, size in {0.25: 0.25, optax.linear_schedule(0.25, 0.0, 10): 0.25}.items():
        tx = sg.as_optax(sg.SNG(1e-3), rate)
        updates, _ = tx.update(None, tx.init(PARAMS), PARAMS, linearisation=LIN)
        np.testing.assert_allclose(updates["a"], -size * found, rtol=1e-12)
    with pytest.raises(TypeError, match="optimizer"):
        sg.as_optax(sg.SNG(), None)
    with pytest.raises(TypeError, match="method"):
        sg.as_optax(optax.sgd(1.0))
    with pytest.raises(ValueError, match="linearisation"):
        sg.as_optax(sg.SNG()).update(None, (), PARAMS)


def test_inject_hyperparams():
    make = lambda damping, rate: sg.as_optax(sg.Spring(damping, 0.5), rate)  # noqa: E731
    tx = optax.inject_hyperparams(make)(damping=1e-3, rate=0.5)
    state = tx.init(PARAMS)
    state.hyperparams["rate"] = jnp.asarray(0.1)
    updates, _ = jax.jit(tx.update)(ZEROS, state, PARAMS, linearisation=LIN)
    expected = direction(sg.Spring(1e-3, 0.5), LIN, PARAMS)
    np.testing.assert_allclose(updates["a"], -0.1 * np.asarray(expected["a"]), rtol=1e-12)


def test_multi_steps():
    """Every second call takes a step, on the linearisation of that call."""
    tx = optax.MultiSteps(sg.as_optax(sg.Spring(1e-3), 0.5), 2)
    update, state = jax.jit(tx.update), tx.init(PARAMS)
    first, state = update(ZEROS, state, PARAMS, linearisation=LIN)
    second, state = update(ZEROS, state, PARAMS, linearisation=LIN)
    expected = direction(sg.Spring(1e-3), LIN, PARAMS)
    assert not np.any(first["a"])
    np.testing.assert_allclose(second["a"], -0.5 * np.asarray(expected["a"]), rtol=1e-12)


@pytest.mark.parametrize("method", [sg.Spring(1e-3), sg.Auto()], ids=lambda m: type(m).__name__)
def test_masked(method):
    """Frozen parameters stay, and the others move as if the frozen ones were constants of the model."""
    tx = optax.masked(sg.as_optax(method), {"a": True, "b": False})
    updates, _ = jax.jit(tx.update)(ZEROS, tx.init(PARAMS), PARAMS, linearisation=LIN)
    alone = {"a": PARAMS["a"]}
    lin = sg.linearise(lambda p, x: residual({**p, "b": PARAMS["b"]}, x), alone, X)
    assert float(updates["b"]) == 0.0
    np.testing.assert_allclose(updates["a"], -np.asarray(direction(method, lin, alone)["a"]), rtol=1e-9)


def test_trees_as_people_have_them():
    """A whole equinox model with its activation function; None; a whole number is refused by name."""
    model = eqx.nn.MLP(3, "scalar", 4, 1, activation=jnp.tanh, key=jax.random.key(1))
    tx = sg.as_optax(sg.Auto())

    @eqx.filter_jit
    def step(model, state):
        lin = sg.linearise(lambda m, x: m(x) - jnp.sum(x), model, X)
        updates, state = tx.update(None, state, model, linearisation=lin)
        return eqx.apply_updates(model, updates), state, jnp.sum(lin.residual**2)

    state, losses = tx.init(model), []
    for _ in range(12):
        model, state, size = step(model, state)
        losses.append(float(size))
    assert losses[-1] < 1e-2 * losses[0] and int(state.rejected) == 0
    with pytest.raises(TypeError, match=r"params\['i'\]"):
        tx.init({"w": jnp.ones(2), "i": jnp.arange(3)})
