"""The covariance of fitted parameters, against closed forms and SciPy."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import curve_fit

import snapgrad as sg

RNG = np.random.default_rng(0)
T = np.linspace(0, 2, 40)
NOISY = 2.5 * np.exp(-1.3 * T) + 0.5 + 0.05 * RNG.normal(size=40)


def curve(p, t):
    return p["a"] * jnp.exp(-p["rate"] * t) + p["floor"]


def residual(p, row):
    return curve(p, row[0]) - row[1]


@pytest.fixture(scope="module")
def fitted():
    start = {"a": 1.0, "rate": 1.0, "floor": 0.0}
    return sg.least_squares(residual, start, (T, NOISY)).params


@pytest.mark.parametrize("absolute", [False, True])
def test_agrees_with_curve_fit(fitted, absolute):
    """In the order of `ravel_pytree`: a, floor, rate."""

    def model(t, a, floor, rate):
        return a * np.exp(-rate * t) + floor

    options = {"sigma": np.ones(40), "absolute_sigma": True} if absolute else {}
    best, expected = curve_fit(model, T, NOISY, [1.0, 0.0, 1.0], ftol=1e-15, xtol=1e-15, **options)
    found = sg.covariance(residual, fitted, (T, NOISY), absolute_sigma=absolute)
    np.testing.assert_allclose([fitted[name] for name in ("a", "floor", "rate")], best, rtol=1e-7)
    np.testing.assert_allclose(found.matrix, expected, rtol=1e-5)
    np.testing.assert_allclose(
        [found.errors[name] for name in ("a", "floor", "rate")], np.sqrt(np.diag(expected)), rtol=1e-5
    )


def test_linear_case_in_any_units():
    """s²(AᵀA)⁻¹ from NumPy; parameters twelve orders of magnitude apart are not taken for dependent."""
    A = RNG.normal(size=(12, 3)) * np.array([1e6, 1.0, 1e-6])
    y = RNG.normal(size=12)
    x = np.linalg.lstsq(A, y, rcond=None)[0]
    r = A @ x - y
    expected = np.linalg.inv(A.T @ A) * (r @ r) / 9
    found = sg.covariance(lambda p, row: row[0] @ p - row[1], x, (A, y))
    np.testing.assert_allclose(found.matrix, expected, rtol=1e-8)
    assert found.errors.shape == (3,)


def test_errors_say_how_far_estimates_scatter():
    """The spread of the slope over many noisy data sets, 400 of them, is the standard error."""
    noise = RNG.normal(size=(400, 40))
    slopes = np.polyfit(T, (2 * T - 1)[:, None] + 0.3 * noise.T, 1)[0]

    def line(p, row):
        return p[0] * row[0] + p[1] - row[1]

    found = sg.covariance(line, jnp.array([2.0, -1.0]), (T, 2 * T - 1), absolute_sigma=True)
    np.testing.assert_allclose(0.3 * found.errors[0], slopes.std(), rtol=0.1)


def test_what_the_data_do_not_determine():
    """Two factors of one amplitude: infinite errors for these alone, and a warning with their names."""

    def model(p, row):
        return p["u"] * p["v"] * jnp.exp(-p["rate"] * row[0]) - row[1]

    params, data = {"u": 2.0, "v": 1.25, "rate": 1.3}, (T, NOISY)
    with pytest.warns(UserWarning, match=r"do not determine params\['u'\], params\['v'\]: .*do not see"):
        found = sg.covariance(model, params, data)
    assert np.isinf(found.errors["u"]) and np.isinf(found.errors["v"])
    one = sg.covariance(lambda p, row: model({**p, "v": 1.25}, row), {"u": 2.0, "rate": 1.3}, data)
    np.testing.assert_allclose(found.errors["rate"] / one.errors["rate"], np.sqrt(38 / 37), rtol=1e-8)
    with pytest.warns(UserWarning, match="no more residuals than parameters"):
        few = sg.covariance(residual, {"a": 2.5, "rate": 1.3, "floor": 0.5}, (T[:3], NOISY[:3]))
    assert np.all(np.isinf(few.matrix))


def test_complex_parameters_and_float32(fitted):
    """A complex parameter has an error in each part."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        z = sg.covariance(
            lambda p, row: (p["z"] * jnp.exp(1j * row[0])).real - row[1],
            {"z": 1 + 0.5j},
            (T, np.cos(T + 0.4)),
        )
        single = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (fitted, (T, NOISY)))
        low = sg.covariance(residual, *single)
    c, s = np.cos(T), -np.sin(T)
    A = np.stack([c, s], axis=1)
    r = A @ [1, 0.5] - np.cos(T + 0.4)
    expected = np.sqrt(np.diag(np.linalg.inv(A.T @ A)) * (r @ r) / 38)
    np.testing.assert_allclose(z.errors["z"], expected[0] + 1j * expected[1], rtol=1e-10)
    high = sg.covariance(residual, fitted, (T, NOISY))
    assert low.matrix.dtype == jnp.float32
    np.testing.assert_allclose(low.matrix, high.matrix, rtol=2e-3)


def test_bad_input():
    with pytest.raises(ValueError, match="row 0 of `data`"):
        sg.covariance(lambda p, row: jnp.log(p * row), -1.0, jnp.ones(3))
    with pytest.raises(ValueError, match=r"`params` has 20000 numbers"):
        sg.covariance(lambda p, row: p @ p - row, jnp.ones(20000), jnp.ones(3))
