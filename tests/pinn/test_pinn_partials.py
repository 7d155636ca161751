"""Derivatives of higher order in one pass against nested differentiation, and how many vectors they push."""

from itertools import combinations_with_replacement
from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad import pinn
from snapgrad.pinn._forward import _ELEMENTWISE

KEY = jax.random.key(0)
W = jax.random.normal(KEY, (4, 4)) / 2
X = jnp.array([0.3, -0.4])
UP_TO_FOUR = [axes for order in range(5) for axes in combinations_with_replacement(range(2), order)]


def perceptron(activation):
    network = pinn.MLP([2, 5, 4, 1], activation)
    params = network.init(KEY)
    return lambda x: network(params, x)


def transformer(x):
    """Attention with softmax and a layer norm."""
    tokens = jnp.tanh(jnp.outer(x, jnp.arange(1.0, 5.0)))
    mixed = jax.nn.softmax(tokens @ W @ tokens.T) @ tokens + tokens
    centred = mixed - jnp.mean(mixed, axis=1, keepdims=True)
    return jnp.sum(jnp.sin(centred / jnp.sqrt(jnp.var(mixed, axis=1, keepdims=True) + 0.1)))


def carried(x):
    """A loop backwards: a counter, what is carried, what is stacked, and what does not depend on x."""

    def step(state, row):
        count, constant, v = state
        v = jnp.tanh((row * v) @ W[:2, :2] + constant * x)
        return (count + 1, 0.9 * constant, v), v * row

    rows = jnp.stack([x, x**2, jnp.sin(x)])
    (count, constant, v), stacked = jax.lax.scan(step, (0, 1.0, x), rows, reverse=True)
    return count * jnp.sum(v) + constant * jnp.sum(stacked[0] * stacked[2])


def random_expression(rng, depth):
    """A random elementary function of two coordinates."""
    if depth == 0:
        a, b = rng.uniform(-1, 1, 2)
        return lambda x: a * x[0] + b * x[1] + 0.2
    f, g = (random_expression(rng, depth - 1) for _ in range(2))
    return [
        lambda x: jnp.sin(f(x)) * g(x),
        lambda x: f(x) / (2 + g(x) ** 2),
        lambda x: jnp.exp(-f(x) * g(x)),
        lambda x: jnp.sqrt(1 + f(x) ** 2) - jnp.log(3 + jnp.cos(g(x))),
        lambda x: (1.5 + jnp.tanh(f(x))) ** (1 + g(x) / 3),
        lambda x: jax.nn.sigmoid(f(x)) + jnp.arctan(g(x)) ** 3,
    ][rng.integers(6)]


RNG = np.random.default_rng(0)
FUNCTIONS = {
    "tanh": perceptron("tanh"),
    "sin": perceptron("sin"),
    "gelu": perceptron("gelu"),
    "softplus": perceptron("softplus"),  # a custom derivative
    "transformer": transformer,
    "ratio": lambda x: jnp.log(3 + x[0] * x[1]) / jnp.sqrt(2 + x[1]) + (2 + x[0]) ** (1.5 + x[1]),
    "pieces": lambda x: jnp.where(x[0] > 0, x[1] ** 4 * x[0], 0.0) + jnp.maximum(x[0] ** 5, x[1]),
    "loop": lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * x, c[0]), x, length=2)[1].sum(),
    "carried": carried,
} | {f"random {i}": random_expression(RNG, 3) for i in range(6)}


SETS = [("tanh", "ratio", "transformer", "carried"), pytest.param(tuple(FUNCTIONS), marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=SETS, ids=["some", "all"])
def found(request):
    """Functions as one, compiled once: names, tensors of derivatives, partial derivatives."""

    def every(x):
        return jnp.stack([FUNCTIONS[name](x) for name in request.param])

    tensors = [every]
    for _ in range(4):
        tensors.append(jax.jacfwd(tensors[-1]))
    both = jax.jit(lambda x: ([tensor(x) for tensor in tensors], pinn.partials(every, x, UP_TO_FOUR)))
    return request.param, *both(X)


@pytest.mark.parametrize("axes", UP_TO_FOUR)
def test_partials_against_nested_differentiation(axes, found):
    names, tensors, partials = found
    tensor = np.asarray(tensors[len(axes)])
    error = np.abs(partials[UP_TO_FOUR.index(axes)] - tensor[(slice(None), *axes)])
    for i, name in enumerate(names):
        assert error[i] < 1e-12 * (1 + np.max(np.abs(tensor[i]))), name


INTO = {"acosh": lambda x: 2 + x, "erf_inv": jnp.tanh, "lgamma": jnp.exp, "digamma": jnp.exp, "abs": jnp.exp}


def test_every_elementwise_function():
    """f up to its fourth derivative, for each primitive that has a rule of its own."""
    one = {name: getattr(jax.lax, name) for name in _ELEMENTWISE - {"integer_pow"}}
    one["integer_pow"] = lambda x: jax.lax.integer_pow(x, -3)
    safe = lambda x: 0.6 + 0.1 * x  # noqa: E731

    def every(x):
        return jnp.stack([fn(INTO.get(name, safe)(x[0] ** 2)) for name, fn in sorted(one.items())])

    def nested(x):
        tensors = [every]
        for _ in range(4):
            tensors.append((lambda f: lambda y: jax.jvp(f, (y,), (jnp.ones(1),))[1])(tensors[-1]))
        return [tensor(x) for tensor in tensors]

    x = jnp.array([0.7])
    given, expected = jax.jit(lambda x: (pinn.partials(every, x, [k * (0,) for k in range(5)]), nested(x)))(x)
    for name, *values in zip(sorted(one), *given, *expected, strict=True):
        np.testing.assert_allclose(values[:5], values[5:], rtol=1e-11, atol=1e-12, err_msg=name)


def test_exact_on_polynomials():
    """Every derivative of Σ c (a·x + 1)⁵ up to the fourth order in three dimensions; Δ² in up to five."""
    wanted = [axes for order in range(5) for axes in combinations_with_replacement(range(3), order)]
    rng = np.random.default_rng(1)
    forms, weights, x = rng.normal(size=(7, 3)), rng.normal(size=7), rng.normal(size=3)
    found = jax.jit(lambda y: pinn.partials(lambda z: weights @ (forms @ z + 1) ** 5, y, wanted))(x)
    for axes, value in zip(wanted, found, strict=True):
        outer = factorial(5) / factorial(5 - len(axes)) * (forms @ x + 1) ** (5 - len(axes))
        terms = weights * outer * np.prod(forms[:, list(axes)], axis=1)
        assert abs(value - np.sum(terms)) < 1e-12 * np.sum(np.abs(terms)), axes

    norms = jax.jit(
        lambda: [pinn.biharmonic(lambda y: jnp.sum(y**2) ** 2, jnp.ones(d)) for d in range(1, 6)]
    )()
    np.testing.assert_allclose(norms, [8 * d * (d + 2) for d in range(1, 6)], rtol=1e-12)
    line = pinn.biharmonic(lambda y: y[0] ** 4 * y[1], jnp.ones(2), axes=0)
    np.testing.assert_allclose(line, 24, rtol=1e-14)


def test_shapes_and_kinds():
    """Vectors, constants, negative axes, repeated requests, single precision."""
    field = lambda x: jnp.stack([x[0] ** 3 * x[1], x[1] ** 2])  # noqa: E731
    value, third, again = pinn.partials(field, jnp.array([1.0, 2.0]), [(), (0, -2, 0), [0, 0, 0]])
    np.testing.assert_allclose(value, [2, 4])
    np.testing.assert_allclose(third, [12, 0])
    np.testing.assert_array_equal(third, again)
    assert pinn.partials(field, X, []) == ()
    np.testing.assert_array_equal(pinn.partials(field, X, [()])[0], field(X))
    np.testing.assert_array_equal(pinn.derivative(lambda x: jnp.ones(3), X, (0, 1, 1)), np.zeros(3))
    assert float(pinn.derivative(lambda x: x[0] ** 2, X, 0)) == 0.6
    assert pinn.derivative(jnp.prod, X.astype(jnp.float32), (0, 1)).dtype == jnp.float32
    with pytest.raises(ValueError, match=r"`wanted` must hold tuples of coordinates .* 0 to 1; got \(0, 2\)"):
        pinn.partials(field, X, [(0, 2)])
    with pytest.raises(ValueError, match="`x` must be one point"):
        pinn.biharmonic(field, jnp.ones((3, 2)))


EQUATIONS = {
    "third": (lambda u, x: pinn.derivative(u, x, (1, 1, 1)), 4),
    "fourth": (lambda u, x: pinn.derivative(u, x, (1, 1, 1, 1)), 5),
    "mixed": (lambda u, x: sum(pinn.partials(u, x, [(0,), (1,), (0, 1)])), 4),
    "KdV": (lambda u, x: sum(pinn.partials(u, x, [(), (0,), (1,), (1, 1, 1)])), 5),
    "KS": (lambda u, x: sum(pinn.partials(u, x, [(), (0,), (1,), (1, 1), (1, 1, 1, 1)])), 6),
    "plate": (pinn.biharmonic, 11),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_vectors_pushed_are_linear_in_the_order(name):
    """How many outer products a row is for a hidden weight, and that the kernel built of them is right."""
    equation, vectors = EQUATIONS[name]
    network = pinn.MLP([2, 128, 128, 1])
    params = network.init(KEY)
    jac = sg.jacobian(lambda p, x: equation(lambda y: network(p, y), x), params, jnp.ones((2, 2)))
    leaf = next(leaf for leaf in jac.plan().leaves if leaf.name == "[1]['W']")
    assert sum(region.products for region in leaf.regions) == vectors


def test_kernel_of_a_third_order_equation():
    """Structured rows against those of nested differentiation."""
    network = pinn.Periodic(pinn.MLP([3, 32, 32, 1]), {1: 2.0})
    params, points = network.init(KEY), jax.random.uniform(KEY, (6, 2))

    def ours(p, x):
        value, u_t, u_x, u_xxx = pinn.partials(lambda y: network(p, y), x, [(), (0,), (1,), (1, 1, 1)])
        return u_t + value * u_x + 0.022**2 * u_xxx

    def nested(p, x):
        u = lambda y: network(p, y)  # noqa: E731
        along = lambda f: lambda y: jax.jvp(f, (y,), (jnp.array([0.0, 1.0]),))[1]  # noqa: E731
        return pinn.time_derivative(u, x) + u(x) * along(u)(x) + 0.022**2 * along(along(along(u)))(x)

    kernels = [jax.jit(lambda p, f=f: sg.jacobian(f, p, points).gram())(params) for f in (ours, nested)]
    np.testing.assert_allclose(*kernels, rtol=1e-11)
