"""Inverse problems: unknown fields, and error bars that hold as often as they say."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad import pinn

KEY = jax.random.key(0)
RATE, NOISE = 1.3, 0.05
TIMES = np.linspace(0, 2, 40)[:, None]


def slope(u, t):
    return pinn.directional(u, t, jnp.ones(1))


DECAY = pinn.PINN(
    pinn.MLP([1, 8, 1]),
    [
        pinn.Block("decay", lambda u, t, rate: slope(u, t) + rate * u(t), pinn.Box(0, 2), 60, weight=10.0),
        pinn.Block("data", lambda u, t, value: u(t) - value, pinn.Points(TIMES, value=np.zeros(40))),
    ],
    unknowns={"rate": 1.0},
)


def with_data(values):
    rows = lambda p: (p.blocks[1].domain.rows.columns["value"], p.loss_points["data"].columns["value"])  # noqa: E731
    return eqx.tree_at(rows, DECAY, (values, values))


@eqx.filter_jit
def fitted(data):
    """The parameters for each set of data, in one compiled loop."""

    def fit(values):
        problem = with_data(values)
        sampler = pinn.Collocation(problem, refresh_every=None)
        method = sg.LevenbergMarquardt()
        return sg.run(problem, KEY, method=method, sampler=sampler, steps=60, record_every=60).params

    return jax.lax.map(fit, data)


def coverage(count):
    """Shares of 90 % intervals that hold the true rate, with noise estimated and given; mean and spread."""
    rng = np.random.default_rng(0)
    data = np.exp(-RATE * TIMES[:, 0]) + NOISE * rng.standard_normal((count, 40))
    found = fitted(jnp.asarray(data))
    held, rates, errors, noise = [], [], [], []
    for i in range(count):
        params = jax.tree.map(lambda leaf: leaf[i], found)
        problem = with_data(jnp.asarray(data[i]))
        bars = [pinn._uncertainty.error_bars(problem, params, given, None, 0.9) for given in (None, NOISE)]
        held.append([float(b.intervals["rate"][0]) < RATE < float(b.intervals["rate"][1]) for b in bars])
        rates.append(float(params["unknowns"]["rate"]))
        errors.append(float(bars[1].errors["rate"]))
        noise.append(float(bars[0].noise["data"]) ** 2)
    return np.mean(held, axis=0), np.asarray(rates), np.asarray(errors), np.asarray(noise)


def check_against_the_exact_fit(rates, errors, noise):
    """The error is that of a fit of a e^{−κt}, which physics that holds exactly amounts to."""
    columns = np.stack([np.exp(-RATE * TIMES[:, 0]), -TIMES[:, 0] * np.exp(-RATE * TIMES[:, 0])], axis=1)
    expected = NOISE * np.sqrt(np.linalg.inv(columns.T @ columns)[1, 1])
    np.testing.assert_allclose(np.mean(errors), expected, rtol=0.1)
    count = len(rates)
    assert abs(rates.mean() - RATE) < 4 * expected / np.sqrt(count)
    assert abs(rates.std() / expected - 1) < 4 / np.sqrt(2 * count)
    assert abs(noise.mean() / NOISE**2 - 1) < 4 * np.sqrt(2 / 38 / count)


def test_intervals_hold_as_often_as_they_say():
    held, *rest = coverage(30)
    assert np.all((held >= 0.75) & (held <= 1))  # 27 ± 1.6 of 30
    check_against_the_exact_fit(*rest)


@pytest.mark.slow
def test_intervals_hold_in_two_hundred_sets_of_data():
    held, *rest = coverage(200)
    assert np.all((held >= 0.85) & (held <= 0.95))
    check_against_the_exact_fit(*rest)


def test_bars_are_the_spread_of_refitted_solutions():
    """The spread of u over sets of data against the bars of one fit."""
    rng = np.random.default_rng(1)
    data = np.exp(-RATE * TIMES[:, 0]) + NOISE * rng.standard_normal((30, 40))
    found = fitted(jnp.asarray(data))
    where = np.array([[0.0], [0.7], [2.0]])
    values = jax.vmap(lambda params: DECAY.u(params, where))(found)
    params = jax.tree.map(lambda leaf: leaf[0], found)
    bars = pinn._uncertainty.error_bars(with_data(jnp.asarray(data[0])), params, NOISE, "data", 0.9)
    assert bars.freedom == np.inf
    np.testing.assert_allclose(np.std(values, axis=0), bars(where), rtol=4 / np.sqrt(2 * 30))
    np.testing.assert_allclose(bars(where)[1], bars(where[1]), rtol=1e-8)  # large changes cancel


def test_an_unknown_field_is_found_with_its_error_bars():
    """(a u')' = f with a = 1 + x/2 and u = sin x, from u at 60 points with noise of 1e-3; a is 1 at 0."""
    field, exact = (lambda x: 1 + x[0] / 2), (lambda x: jnp.sin(x[0]))

    def equation(u, x, conductivity):
        flux = lambda x: conductivity(x) * slope(u, x)  # noqa: E731
        source = pinn.directional(lambda x: field(x) * slope(exact, x), x, jnp.ones(1))
        return slope(flux, x) - source

    where = np.linspace(0, 1, 60)[:, None]
    value = np.sin(where[:, 0]) + 1e-3 * np.random.default_rng(0).standard_normal(60)
    data, start = pinn.Points(where, value=value), pinn.Points(np.zeros((1, 1)))
    problem = pinn.PINN(
        pinn.MLP([1, 8, 1]),
        [
            pinn.Block("equation", equation, pinn.Box(0, 1), 60),
            pinn.Block("known", lambda u, x, conductivity: conductivity(x) - 1, start),
            pinn.Block("data", lambda u, x, value: u(x) - value, data, weight=100.0),
        ],
        fields={"conductivity": pinn.MLP([1, 4, 1])},
    )
    solution = pinn.solve(problem, KEY, steps=200)
    bars = solution.error_bars(data="data")
    points = np.linspace(0.1, 0.9, 5)[:, None]
    error = solution.fields["conductivity"](points) - jax.vmap(field)(points)
    assert np.all(np.abs(error) < 0.05) and np.all(np.abs(error) < 4 * bars.field("conductivity", points))
    np.testing.assert_allclose(bars.noise["data"], 1e-3, rtol=0.4)
    with pytest.raises(ValueError, match="one of the fields conductivity"):
        bars.field("density", points)


def test_what_cannot_be_known_is_said():
    data = np.exp(-RATE * TIMES[:, 0])
    problem = with_data(jnp.asarray(data))
    fresh = pinn.solve(problem, KEY, steps=1)
    with pytest.warns(UserWarning, match="would move rate by"):
        fresh.error_bars(noise=1e-6)
    idle = pinn.PINN(
        pinn.MLP([1, 4, 1]),
        [pinn.Block("data", lambda u, x, a, b: u(x) + 0 * a * b, pinn.Points(TIMES))],
        unknowns={"a": 0.5, "b": 2.0},
    )
    with pytest.warns(UserWarning, match="do not determine a, b"):
        bars = pinn._uncertainty.error_bars(idle, idle.init(KEY), 1.0, None, 0.9)
    assert bars.errors == {"a": np.inf, "b": np.inf} and bool(jnp.isfinite(bars(TIMES)).all())
    box = pinn.zoo("poisson-1d", hidden=(8,), points=(30, 2))
    for options, words in (
        ({"data": "measured"}, "`data` must name blocks among decay, data; got 'measured'"),
        ({"noise": {"other": 1.0}}, "`noise` must have one entry for each of data"),
        ({"level": 1.0}, "`level` must be in"),
    ):
        with pytest.raises(ValueError, match=words):
            fresh.error_bars(**options)
    with pytest.raises(ValueError, match="the problem has none on"):
        pinn._uncertainty.error_bars(box, box.init(KEY), None, None, 0.9)
    with pytest.raises(ValueError, match="'rate' is to be found but is an argument of no residual"):
        pinn.PINN(pinn.MLP([1, 4, 1]), box.blocks, unknowns={"rate": 1.0})
    with pytest.raises(TypeError, match="`conductivity` must have `init"):
        pinn.PINN(pinn.MLP([1, 4, 1]), box.blocks, fields={"conductivity": 1.0})
