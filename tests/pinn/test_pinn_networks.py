"""Networks of other libraries, other shapes and precisions: they work, or the error names the argument."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad import pinn

KEY = jax.random.key(0)
BOX = pinn.Box([0, 0], [1, 1])


def slope(u, x):
    """Only a scalar function has such a gradient."""
    return jnp.dot(pinn.gradient(u, x), jnp.array([1.0, 2.0])) + u(x)


def product(x):
    return x[0] * x[1]


def problem(network, residual=slope, exact=product):
    return pinn.PINN(network, [pinn.Block("pde", residual, BOX, 6)], exact)


def equinox(inputs, outputs, dtype=None):
    return pinn.Equinox(lambda key: eqx.nn.MLP(inputs, outputs, 3, 1, jnp.tanh, dtype=dtype, key=key))


NETWORKS = {
    "equinox": equinox(2, "scalar"),
    "equinox, one output": equinox(2, 1),
    "equinox, float32": equinox(2, 1, jnp.float32),
    "flax": pinn.Flax(nn.Sequential([nn.Dense(3), nn.tanh, nn.Dense(1)]), inputs=2),  # float32 by default
}


@pytest.mark.parametrize("name", NETWORKS)
def test_modules_of_other_libraries_train_in_float64(name):
    """One output is one number, and weights have the precision of the points."""
    chosen = problem(NETWORKS[name])
    params = chosen.init(KEY)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float64")}
    assert chosen.u(params, np.zeros((4, 5, 2))).shape == (4, 5) and chosen.u(params, np.zeros(2)).shape == ()
    lin = chosen.linearise(params, chosen.draw(KEY))
    assert lin.residual.dtype == jnp.float64 and lin.jacobian.shape == (6, 13)
    assert "twice as many rows" in pinn.advice(chosen)


def test_training_a_flax_module_of_float32():
    solution = pinn.solve(problem(NETWORKS["flax"]), KEY, steps=20, record_every=10)
    assert solution.history["loss"][-1] < 0.1 * solution.history["loss"][0]


def test_values_of_shape_one_count_as_a_number():
    one = problem(NETWORKS["equinox, one output"], exact=lambda x: x[:1])
    assert one.test is not None and one.test[1].ndim == 1


class Stateful(nn.Module):
    @nn.compact
    def __call__(self, x):
        return self.variable("cache", "seen", jnp.zeros, ()).value + nn.Dense(1)(x)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: problem(nn.Dense(1)),
            TypeError,
            r"`network.init\(key\)` .*sg\.pinn\.Flax\(module, inputs=2\)",
        ),
        (lambda: problem(eqx.nn.MLP(2, 1, 3, 1, key=KEY)), TypeError, r"`network` must .*sg\.pinn\.Equinox"),
        (lambda: problem(pinn.MLP([3, 4, 1])), ValueError, r"`network` fails at a point of shape \(2,\)"),
        (lambda: problem(equinox(3, 1)), ValueError, r"`network` fails at a point of shape \(2,\)"),
        (
            lambda: problem(pinn.Flax(nn.Dense(1), inputs=3)),
            ValueError,
            r"`network` fails at a point of shape \(2,\)",
        ),
        (lambda: pinn.Flax(jnp.tanh, inputs=2), TypeError, "`module` must have `init` and `apply`"),
        (lambda: pinn.Flax(nn.Dense(1), inputs=0), ValueError, "`inputs`"),
        (lambda: problem(pinn.Flax(Stateful(), 2)), TypeError, "parameters and nothing else, got .*cache"),
        (lambda: pinn.MLP([3]), ValueError, "`sizes` must hold at least inputs and outputs"),
        (
            lambda: problem(pinn.MLP([2, 3, 2]), lambda u, x: u(x)),
            ValueError,
            r"`exact` must have the shape of the network's output, \(2,\)",
        ),
    ],
)
def test_errors_name_the_argument(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_errors_of_the_solver_name_the_argument():
    chosen = problem(NETWORKS["equinox"])
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), chosen.init(KEY))
    with pytest.raises(TypeError, match=r"`params\['network'\].*` must have dtype float64 .* got float32"):
        pinn.solve(chosen, KEY, params=single)
    with pytest.raises(TypeError, match=r"`method` .* got 'newton'; .*setting\('adam', problem\).* lbfgs"):
        pinn.solve(chosen, KEY, method="newton")


def test_what_the_error_recommends_works():
    """`method="adam"` is refused with a call that does the same."""
    chosen = problem(NETWORKS["equinox"])
    with pytest.raises(TypeError, match="`method` must be a method") as error:
        pinn.solve(chosen, KEY, method="adam", steps=2)
    call = str(error.value).split("use ")[1].split(", where")[0]
    adam = eval(call.replace("key,", "key, steps=2,"), {"sg": sg, "problem": chosen, "key": KEY})
    assert adam.reason == "steps"
