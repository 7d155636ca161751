"""Parameter trees as users have them: leaves that are not trained, Python numbers, frozen parts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad._checks import trainable
from snapgrad.operators import jacobian, linearise

KEY = jax.random.key(3)
X = jax.random.normal(KEY, (5, 3))


def flat(tree):
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_an_equinox_model_is_its_own_parameter_tree():
    model = eqx.nn.MLP(3, "scalar", 4, 1, activation=jnp.tanh, key=KEY, dtype=jnp.float64)
    params, static = eqx.partition(model, eqx.is_inexact_array)
    split = jacobian(lambda p, x: eqx.combine(p, static)(x), params, X)
    whole = jacobian(lambda m, x: m(x), model, X)
    np.testing.assert_allclose(whole.gram(), split.gram(), rtol=1e-13)
    np.testing.assert_allclose(whole.dense(), split.dense(), rtol=1e-13)
    pulled = whole.rmv(jnp.ones(5))
    assert jax.tree.structure(pulled) == jax.tree.structure(params)
    assert pulled.activation is None
    np.testing.assert_allclose(whole.mv(params), split.mv(params), rtol=1e-13)
    assert linearise(lambda m, x: m(x), model, X).residual.shape == (5,)


def test_trainable_keeps_floats_and_drops_what_is_not_a_number():
    tree = {"w": np.ones(3, np.float32), "c": 0.5, "z": 1j, "f": jnp.tanh, "s": "text", "n": None, "b": True}
    found = trainable("params", tree)
    assert {name: None if leaf is None else leaf.dtype.name for name, leaf in found.items()} == {
        "w": "float32",
        "c": "float64",
        "z": "complex128",
        "f": None,
        "s": None,
        "n": None,
        "b": None,
    }
    again = eqx.combine(found, tree)
    assert again["f"] is jnp.tanh and again["s"] == "text" and again["b"] is True and again["n"] is None


def test_python_numbers_are_parameters():
    fn = lambda p, x: p["scale"] * jnp.sum(p["act"](x))  # noqa: E731
    jac = jacobian(fn, {"scale": 2.0, "act": jnp.sin}, X)
    np.testing.assert_allclose(jac.dense(), jnp.sin(X).sum(axis=1, keepdims=True), rtol=1e-14)


@pytest.mark.parametrize(
    "params, error, message",
    [
        ({"w": jnp.ones(2), "n": 3}, TypeError, r"`params\['n'\]` must be a floating-point array, got int;"),
        ({"w": jnp.arange(3)}, TypeError, r"`params\['w'\]` must be .* of dtype int64; split off"),
        ([np.ones(2, bool)], TypeError, r"`params\[0\]` must be .* of dtype bool"),
        ({"f": jnp.tanh, "n": None}, ValueError, r"`params` must hold at least one floating-point array"),
        ({}, ValueError, r"`params` must hold at least one"),
    ],
)
def test_numbers_that_cannot_be_trained_are_named(params, error, message):
    with pytest.raises(error, match=message):
        jacobian(lambda p, x: jnp.sum(x), params, X)
