"""Networks that hold the start of an evolution: exact there for any weights, and handed on by a march."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad import pinn

KEY = jax.random.key(0)
PERIODIC = pinn.SpaceTime(pinn.Box([-1], [1], periodic=True), 0.5, 2)
WALLS = pinn.SpaceTime(pinn.Box([-1], [1]), 0.5, 2)
POINTS = jnp.linspace(-1, 1, 7)
ORDERS = [(1,) * order for order in range(5)]


def smooth(x):
    return jnp.exp(jnp.sin(jnp.pi * x[1] + 0.3))


def front(x):
    """As wide as a fiftieth of the box, and zero at both ends."""
    return (1 - x[1] ** 2) * jnp.tanh(25 * (x[1] - 0.1))


def held(network, orders, points=POINTS, start=0.5):
    """Derivatives by space at the start, of random weights."""
    params = network.init(KEY)
    u = lambda x: network(params, x)  # noqa: E731
    values = jax.jit(jax.vmap(lambda y: jnp.stack(pinn.partials(u, jnp.stack([start, y]), orders))))
    return np.asarray(values(points))


def true(fn, orders, points=POINTS):
    """The same of a function by nested differentiation."""
    found, fns = [], [lambda y: fn(jnp.stack([0.5, y]))]
    for _ in range(max(map(len, orders))):
        fns.append(jax.jacfwd(fns[-1]))
    found = [jax.vmap(fns[len(order)])(points) for order in orders]
    return np.asarray(jnp.stack(found, axis=1))


@pytest.mark.parametrize(
    ("fn", "domain", "cells", "tolerances"),
    [
        (smooth, PERIODIC, None, (1e-14, 1e-13, 1e-12, 1e-11, 1e-9)),
        (smooth, PERIODIC, 16, (1e-13, 1e-11, 1e-9, 1e-6, 1e-4)),
        (front, WALLS, None, (1e-13, 1e-10, 1e-6)),
    ],
)
def test_the_start_holds_with_its_derivatives(fn, domain, cells, tolerances):
    """Waves round least; cells follow a front, whose second derivative is of size 500."""
    network = pinn.Evolving(pinn.network(domain, (5, 5)), domain, fn, cells=cells)
    points = jnp.linspace(-1, 1, 301)  # in the middle of cells and at their edges
    orders = ORDERS[: len(tolerances)]
    error = np.abs(held(network, orders, points) - true(fn, orders, points))
    size = np.max(np.abs(true(fn, orders, points)), axis=0)
    assert np.all(np.max(error, axis=0) < np.array(tolerances) * size)


def test_later_the_network_speaks():
    inner = pinn.network(PERIODIC, (5,))
    network = pinn.Evolving(inner, PERIODIC, smooth)
    params, x = network.init(KEY), jnp.array([1.1, 0.2])
    expected = smooth(x) + 0.6 / 1.5 * inner(params, jnp.array([0.6, 0.2]))
    np.testing.assert_allclose(network(params, x), expected, rtol=1e-13)
    moved = x + jnp.array([0, 2.0])  # one period on
    np.testing.assert_allclose(network(params, moved), network(params, x), rtol=1e-12)


def test_velocities_and_a_lift_hold_too():
    """Whatever the lift, u and its rate at the start are those given; what the lift is elsewhere counts."""
    lift = lambda x: jnp.exp(x[0]) * x[1] ** 2  # noqa: E731
    network = pinn.Evolving(pinn.network(WALLS, (5,)), WALLS, front, velocity=smooth, lift=lift, cells=64)
    found = held(network, [(), (0,), (1,)])
    expected = [
        jax.vmap(lambda y, f=f: f(jnp.stack([0.5, y])))(POINTS)
        for f in (front, smooth, lambda x: jax.grad(front)(x)[1])
    ]
    np.testing.assert_allclose(found, np.stack(expected, 1), atol=1e-9)
    plain = pinn.Evolving(network.network, WALLS, front, velocity=smooth, cells=64)
    params, x = network.init(KEY), jnp.array([1.5, 0.5])
    begin = x.at[0].set(0.5)
    bent = lift(x) - lift(begin) - jax.grad(lift)(begin)[0]
    np.testing.assert_allclose(network(params, x) - plain(params, x), bent, rtol=1e-10)


def test_several_outputs_and_walls_inside():
    """With a hard network inside and a start that vanishes there, walls hold exactly at all times."""
    walls = pinn.Hard.box(pinn.network(WALLS, (5,), outputs=2), WALLS)
    start = lambda x: jnp.stack([front(x), 1 - x[1] ** 2])  # noqa: E731
    network = pinn.Evolving(walls, WALLS, start)
    params = network.init(KEY)
    u = jax.vmap(lambda x: network(params, x))
    np.testing.assert_allclose(u(jnp.array([[0.7, -1.0], [1.9, 1.0]])), np.zeros((2, 2)), atol=1e-15)
    x = jnp.array([[0.5, 0.3]])
    np.testing.assert_allclose(u(x)[0], start(x[0]), rtol=1e-13)


DOMAIN = pinn.SpaceTime(pinn.Box([-1], [1], periodic=True), 0, 1)
OPTIONS = {"slabs": 3, "steps": 120, "record_every": 20}


def decay(x):
    """u_t = u_xx/5."""
    return jnp.exp(-0.2 * jnp.pi**2 * x[0]) * jnp.sin(jnp.pi * x[1])


def heat(u, x):
    _, (u_t, _), u_xx = pinn.derivatives(u, x, 1)
    return u_t - u_xx / 5


BLOCKS = [pinn.Block("interior", heat, DOMAIN, 120)]
PROBLEM = pinn.PINN(pinn.Evolving(pinn.network(DOMAIN, (6,)), DOMAIN, decay), BLOCKS, decay)


@pytest.fixture(scope="module")
def marched():
    return pinn.march(PROBLEM, KEY, **OPTIONS)


def test_a_march_hands_it_on(marched):
    """Without a block for the start: slabs meet to rounding, and the error is small at all times."""
    assert marched.relative_l2 < 1e-3
    for (before, after), time in zip(pairwise(marched.slabs), marched.times[1:-1], strict=True):
        points = jnp.stack([jnp.full_like(POINTS, time), POINTS], axis=1)
        np.testing.assert_allclose(after(points), before(points), atol=1e-13)
        slope = [jax.vmap(lambda x, u=u: pinn.derivative(u, x, (1, 1)))(points) for u in (before, after)]
        np.testing.assert_allclose(*slope, atol=1e-10)


def test_all_slabs_share_one_program(marched):
    """They differ in numbers alone."""
    first, *others = (slab.problem for slab in marched.slabs)
    for other in others:
        assert jax.tree.structure(first) == jax.tree.structure(other)
        for one, two in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
            assert (one.shape, one.dtype, one.weak_type) == (two.shape, two.dtype, two.weak_type)


def test_interrupted_and_resumed_to_the_same_bytes(marched, tmp_path):
    def stop(record, state):
        if record["slab"] == 1 and record["step"] == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pinn.march(PROBLEM, KEY, checkpoint=tmp_path, callback=stop, **OPTIONS)
    resumed = pinn.march(PROBLEM, KEY, checkpoint=tmp_path, **OPTIONS)
    for one, other in zip(jax.tree.leaves(resumed.params), jax.tree.leaves(marched.params), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_advice_speaks_of_slabs():
    assert "sg.pinn.march" in pinn.advice(PROBLEM)


def test_saved_and_loaded(marched, tmp_path):
    solution = marched.slabs[1]
    solution.save(tmp_path / "slab.snap")
    again = pinn.load(tmp_path / "slab.snap", solution.problem)
    points = jnp.array([[0.5, 0.3], [0.6, -0.2]])
    np.testing.assert_array_equal(again(points), solution(points))


def test_a_march_hands_on_velocities():
    """u_tt = u_xx with u = sin πx at rest at first, between walls."""
    domain = pinn.SpaceTime(pinn.Box([0], [1]), 0, 1)

    def string(x):
        return jnp.cos(jnp.pi * x[0]) * jnp.sin(jnp.pi * x[1])

    def wave(u, x):
        u_tt, u_xx = pinn.partials(u, x, [(0, 0), (1, 1)])
        return u_tt - u_xx

    inner = pinn.Hard.box(pinn.network(domain, (6,)), domain)
    network = pinn.Evolving(inner, domain, string, velocity=lambda x: jnp.zeros(()), cells=8)
    problem = pinn.PINN(network, [pinn.Block("interior", wave, domain, 100)], string)
    marched = pinn.march(problem, KEY, slabs=2, steps=80)
    assert marched.relative_l2 < 1e-3
    x = jnp.array([[0.5, 0.3]])
    rates = [jax.vmap(lambda x, u=u: pinn.time_derivative(u, x))(x) for u in marched.slabs]
    np.testing.assert_allclose(*rates, rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"domain": pinn.Box([0, 0], [1, 1])}, TypeError, "`domain` must be a sg.pinn.SpaceTime on a"),
        ({"domain": pinn.SpaceTime(pinn.Ball([0], 1), 0, 1)}, TypeError, "got SpaceTime on Ball"),
        ({"domain": pinn.SpaceTime(pinn.Box([0, 0], [1, 1]), 0, 1)}, ValueError, "use a block on"),
        ({"domain": pinn.SpaceTime(pinn.Box([0], [1]), 1, 1)}, ValueError, "must last some time"),
        ({"start": 3.0}, TypeError, "`start` must be a function of a point, got float"),
        ({"lift": 3.0}, TypeError, "`lift` must be a function"),
        ({"velocity": 0.0}, TypeError, "`velocity` must be a function"),
        ({"cells": 0}, ValueError, "`cells`"),
        ({"network": 3}, TypeError, "`network` must have"),
    ],
)
def test_what_it_refuses(change, error, message):
    given = {"network": pinn.MLP([2, 3, 1]), "domain": WALLS, "start": front} | change
    with pytest.raises(error, match=message):
        pinn.Evolving(given.pop("network"), given.pop("domain"), given.pop("start"), **given)


def test_a_word_in_float32():
    with jax.enable_x64(False), pytest.warns(UserWarning, match="needs float64"):
        domain = pinn.SpaceTime(pinn.Box([-1], [1], periodic=True), 0, 1)
        pinn.Evolving(pinn.network(domain, (4,)), domain, lambda x: jnp.cos(jnp.pi * x[1]))


def test_what_is_too_rough_is_not_handed_on():
    domain = pinn.SpaceTime(pinn.Box([-1], [1], periodic=True), 0, 1)

    def rough(x):
        return jnp.cos(jnp.pi * x[1]) + 1e-3 * jnp.cos(60 * jnp.pi * x[1])

    smooth = pinn.Evolving(pinn.network(domain, (4,)), domain, rough, cells=24)  # so many cells hold 48 waves
    params = smooth.init(jax.random.key(0))
    y = jnp.linspace(-1, 1, 33)
    found = jax.vmap(lambda y: smooth(params, jnp.stack([0.0, y])))(y)
    np.testing.assert_allclose(found, jnp.cos(jnp.pi * y), rtol=0, atol=1e-12)
