"""Differential operators against nested automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad import pinn

KEY = jax.random.key(0)
NET = pinn.MLP([3, 5, 4, 1])
PARAMS = NET.init(KEY)
W = jax.random.normal(KEY, (3, 3))

FUNCTIONS = {
    "mlp": lambda x: NET(PARAMS, x),
    "compiled": jax.jit(lambda x: NET(PARAMS, x)),
    "remat": jax.checkpoint(lambda x: NET(PARAMS, x)),
    "gelu": lambda x: jnp.sum(jax.nn.gelu(W @ x)),
    "softplus": lambda x: jnp.sum(jax.nn.softplus(W @ x)),  # a custom derivative
    "swish": lambda x: jnp.prod(jax.nn.swish(W @ x)),
    "sine": lambda x: jnp.sin(x[0] * x[1]) + x[2] ** 3,
    "quotient": lambda x: x[0] / (2 + jnp.cos(x[1] * x[2])) + x[1] / 3 + 2 / (3 + x[0]),
    "norm": lambda x: jnp.linalg.norm(x - 2) ** 1.5,
    "bilinear": lambda x: x @ W @ jnp.tanh(x),
    "power": lambda x: jnp.sum((2 + x) ** (1 + x[::-1])),
    "maximum": lambda x: jnp.sum(jnp.maximum(x, 0.1) ** 2),
    "indexed": lambda x: jnp.concatenate([x[1:], x[:1] ** 2])[::-1] @ x,
    "where": lambda x: jnp.where(x[0] > 5, x[1], x[2] ** 2 * x[0]),
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, y: jnp.sin(y) + y[0] * x, x).sum(),
    "scan": lambda x: jax.lax.scan(lambda c, _: (jnp.tanh(W @ c), c.sum()), x, length=3)[1].sum(),
    "vector": lambda x: jnp.stack([jnp.sin(x[0]) * x[1], x @ x, jnp.exp(x[2])]),
    "linear": lambda x: W[0] @ x,
    "constant": lambda x: jnp.array(2.0),
}


X = jnp.array([0.3, -0.7, 0.4])


@pytest.fixture(scope="module")
def found():
    """Everything about every function, compiled at once."""

    def every(f, x):
        return {
            "value": f(x),
            "gradient": jax.jacfwd(f)(x),
            "hessian": jax.jacfwd(jax.jacfwd(f))(x),
            "all": pinn.derivatives(f, x),
            "laplacian": pinn.laplacian(f, x),
            "part": pinn.laplacian(f, x, [0, -1]),
            "slice": pinn.derivatives(f, x, slice(0, 3, 2)).laplacian,
        }

    return jax.jit(lambda x: {name: every(f, x) for name, f in FUNCTIONS.items()})(X)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_against_nested_differentiation(name, found):
    one = found[name]
    value, gradient, laplacian = one["all"]
    np.testing.assert_allclose(value, one["value"], rtol=1e-13)
    np.testing.assert_allclose(gradient, one["gradient"], rtol=1e-12, atol=1e-14)
    whole = jnp.trace(one["hessian"], axis1=-2, axis2=-1)
    np.testing.assert_allclose(laplacian, whole, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(one["laplacian"], laplacian, rtol=1e-12, atol=1e-14)
    part = one["hessian"][..., 0, 0] + one["hessian"][..., 2, 2]
    np.testing.assert_allclose(one["part"], part, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(one["slice"], part, rtol=1e-11, atol=1e-13)


def test_other_operators():
    x = X
    field = FUNCTIONS["vector"]
    np.testing.assert_allclose(pinn.divergence(field, x), jnp.trace(jax.jacfwd(field)(x)))
    np.testing.assert_allclose(pinn.time_derivative(field, x), jax.jacfwd(field)(x)[:, 0])
    direction = jnp.array([1.0, 2.0, -1.0])
    np.testing.assert_allclose(pinn.directional(field, x, direction), jax.jacfwd(field)(x) @ direction)
    with pytest.raises(ValueError, match="one point"):
        pinn.laplacian(FUNCTIONS["sine"], jnp.ones((4, 3)))
    with pytest.raises(ValueError, match="`axes` must name some of the 3"):
        pinn.laplacian(FUNCTIONS["sine"], x, axes=3)
    with pytest.raises(ValueError, match="`field` must return 3 components"):
        pinn.divergence(lambda x: x[:2], x)


def test_laplacian_rows_are_few_outer_products():
    """d + 2 for a hidden weight: value, d slopes and the Laplacian; nested derivatives have more."""
    network = pinn.MLP([3, 64, 64, 1])
    params = network.init(KEY)

    def products(residual):
        jac = sg.jacobian(residual, params, jnp.ones((2, 3)))
        plan = {leaf.name: leaf for leaf in jac.plan().leaves}
        return sum(region.products for region in plan["[1]['W']"].regions), jac

    forward, jac = products(lambda p, x: pinn.laplacian(lambda y: network(p, y), x))
    nested, other = products(lambda p, x: jnp.trace(jax.hessian(lambda y: network(p, y))(x)))
    assert forward <= 5 < nested
    np.testing.assert_allclose(jac.gram(), other.gram(), rtol=1e-10)
