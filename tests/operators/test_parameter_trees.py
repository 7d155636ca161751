"""Parameter trees as users have them: leaves that are not trained, Python numbers, frozen parts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from snapgrad import Linearisation
from snapgrad._checks import trainable
from snapgrad._contracts import AbstractJacobian, Pair
from snapgrad.operators import DenseJacobian, jacobian, linearise, realify, restrict, stack

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


PARAMS = {
    "body": {"W": jax.random.normal(KEY, (3, 4)), "b": jnp.ones(4)},
    "head": jax.random.normal(KEY, (4,)) + 1,
}


def model(p, x):
    return jnp.tanh(x @ p["body"]["W"] + p["body"]["b"]) @ p["head"]


class Foreign(AbstractJacobian):
    """A class of rows that knows products only, as a user may write it."""

    inner: AbstractJacobian
    shape = property(lambda self: self.inner.shape)

    def gram(self):
        return self.inner.gram()

    def mv(self, tangent):
        return self.inner.mv(tangent)

    def rmv(self, cotangent):
        return self.inner.rmv(cotangent)

    def dense(self):
        return self.inner.dense()


JAC = jacobian(model, PARAMS, X)
STORED = DenseJacobian(jax.vmap(jax.grad(model), (None, 0))(PARAMS, X))
W = jnp.linspace(0.5, 2.0, 5)
OPERATORS = {
    "structured": JAC,
    "dense": STORED,
    "scaled": JAC.centre(W).scale(W),
    "stacked": stack([JAC.scale(W), STORED.centre(), Foreign(STORED)]),
    "foreign": stack([Foreign(STORED)]),
    "sharded": JAC.shard(jax.make_mesh((1,), ("points",))).scale(W),
}
MASKED = optax.MaskedNode()
KEEPS = {  # what is kept, and the columns of J that belong to it
    "one leaf": (
        {"body": {"W": PARAMS["body"]["W"], "b": MASKED}, "head": PARAMS["head"]},
        [*range(12), *range(16, 20)],
    ),
    "whole subtree": ({"body": MASKED, "head": PARAMS["head"]}, [*range(16, 20)]),
    "booleans": ({"body": {"W": False, "b": True}, "head": False}, [*range(12, 16)]),
    "prefix": ({"body": True, "head": False}, [*range(16)]),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_restricted_operators_are_columns(name):
    jac = OPERATORS[name]
    J, u = jac.dense(), jnp.linspace(-1, 1, jac.shape[0])
    cases = [KEEPS[case] for case in (KEEPS if name == "dense" else ["one leaf"])]

    @jax.jit
    def products():
        out = []
        for keep, _ in cases:
            part = jac.restrict(keep)
            pulled = part.rmv(u)
            out.append((part.dense(), part.gram(), part.mv(pulled), pulled, part.cross(part)))
        return out

    for (_, columns), (dense, K, pushed, pulled, cross) in zip(cases, products(), strict=True):
        A = J[:, np.array(columns)]
        for found, wanted in (
            (dense, A),
            (K, A @ A.T),
            (flat(pulled), A.T @ u),
            (pushed, A @ (A.T @ u)),
            (cross, A @ A.T),
        ):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-13 * float(jnp.abs(wanted).max()))
    for keep, columns in KEEPS.values():
        assert jac.restrict(keep).shape == (jac.shape[0], len(columns))


def test_placeholders_are_those_of_the_template():
    for placeholder in (None, optax.MaskedNode()):
        template = {"body": {"W": placeholder, "b": PARAMS["body"]["b"]}, "head": placeholder}
        pulled = JAC.restrict(template).rmv(jnp.ones(5))
        assert jax.tree.structure(pulled) == jax.tree.structure(template)
        assert pulled["head"] == placeholder
    assert JAC.restrict({"body": False, "head": True}).rmv(jnp.ones(5))["body"] is None
    assert JAC.restrict(True) is JAC and JAC.restrict(PARAMS) is JAC
    twice = JAC.restrict({"body": True, "head": False}).restrict(
        {"body": {"W": True, "b": False}, "head": False}
    )
    np.testing.assert_allclose(twice.dense(), JAC.dense()[:, :12], rtol=1e-13)


def test_frozen_leaves_cost_nothing():
    report = JAC.restrict({"body": False, "head": True}).explain().leaves
    assert [(r.leaf, r.shape) for r in report] == [("['head']", (4,))]


def test_complex_leaves_are_restricted_by_pairs_of_columns():
    params = {"a": jnp.ones(2), "z": jnp.asarray([1 + 1j, 2.0, 3j]), "w": jnp.asarray([1j, 1.0])}
    fn = realify(lambda p, x: jnp.sum(jnp.sin(x * p["z"])) * p["a"][0] + jnp.sum(p["w"]) * p["a"][1])
    jac = jacobian(fn, params, X)
    keep = {"a": False, "z": True, "w": False}
    columns = np.arange(6, 12)  # in the order a, w, z
    for one in (jac.restrict(keep), stack([Foreign(jac)]).restrict(keep)):
        np.testing.assert_allclose(one.dense(), jac.dense()[:, columns], rtol=1e-13)
        assert one.shape == (10, 6)


def test_restricted_linearisation_takes_restricted_trial_steps():
    def residual_at(step):
        return jax.vmap(model, (None, 0))(jax.tree.map(jnp.subtract, PARAMS, step), X)

    lin = Linearisation(residual_at(jax.tree.map(jnp.zeros_like, PARAMS)), JAC, residual_at)
    template = {"body": MASKED, "head": PARAMS["head"]}
    first, second = restrict(Pair(lin, Linearisation(lin.residual, JAC)), template)
    step = {"body": MASKED, "head": 0.1 * jnp.ones(4)}
    whole = {"body": jax.tree.map(jnp.zeros_like, PARAMS["body"]), "head": step["head"]}
    np.testing.assert_array_equal(first.residual_at(step), residual_at(whole))
    assert second.residual_at is None and second.jacobian.shape == (5, 4)
    compiled = eqx.filter_jit(lambda lin, step: lin.residual_at(step))(first, step)
    np.testing.assert_allclose(compiled, residual_at(whole), rtol=1e-14)


@pytest.mark.parametrize(
    "keep, message",
    [
        ({"body": False, "head": False}, "`keep` must leave at least one parameter"),
        (None, "`keep` must leave at least one parameter"),
        ({"body": True}, "`keep` must be a prefix of booleans"),
        ({"body": PARAMS["head"], "head": None}, "`keep` must be a prefix of booleans"),
        ({"trunk": None, "head": PARAMS["head"]}, "`keep` must be a prefix of booleans"),
    ],
)
def test_a_template_that_does_not_fit_is_refused(keep, message):
    with pytest.raises(ValueError, match=message):
        JAC.restrict(keep)
