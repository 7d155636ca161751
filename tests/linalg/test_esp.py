"""Elementary symmetric polynomials against 60-digit arithmetic, closed forms and identities."""

import functools
import json
import math
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import snapgrad as sg
from snapgrad.linalg._esp import log_esp_table

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())["quantities"]

I = np.arange(1, 61)  # noqa: E741
SPECTRA = {
    "flat": np.ones(60),
    "i^-2": 1.0 / I**2,
    "i^-4": 1.0 / I**4,
    "exponential to 1e-16": 10.0 ** (-16 * (I - 1) / 59),
    "lambda-plateau": np.where(I <= 20, 1.0 / I**2, 0) + 1e-6,
    "exact zeros": np.where(I <= 25, 1.0 / I, 0),
    "1e8 outlier": np.where(I == 1, 1e8, 1.0),
    "1e16 outlier": np.where(I == 1, 1e16, 1.0),
    "gap of 1e30": np.where(I <= 10, 1.0, 1e-30),
    "300 decades": 10.0 ** np.random.default_rng(0).uniform(-150, 150, 60),
    "generic": np.random.default_rng(1).exponential(size=60),
}


def reference(q, k):
    """(log p_k, D) from prefix and suffix recursions in 60 digits."""
    with mpmath.workdps(60):
        q = [mpmath.mpf(float(x)) for x in q]

        def prefixes(q):
            e = [mpmath.mpf(1)] + [mpmath.mpf(0)] * k
            out = [e[:]]
            for x in q:
                for r in range(k, 0, -1):
                    e[r] += x * e[r - 1]
                out.append(e[:])
            return out

        before, after = prefixes(q), prefixes(q[::-1])
        p_k = before[-1][k]
        ratios = {}
        for i, x in enumerate(q):
            if x not in ratios:
                a, b = before[i], after[len(q) - 1 - i]
                ratios[x] = sum(a[r] * b[k - 1 - r] for r in range(k)) / p_k
        return mpmath.log(p_k), [ratios[x] for x in q]


def worst_relative(values, exact):
    with mpmath.workdps(60):
        return max(
            float(abs((mpmath.mpf(float(v)) - e) / e)) for v, e in zip(np.asarray(values), exact, strict=True)
        )


@pytest.mark.parametrize("name", SPECTRA)
def test_hard_spectra(name):
    q = SPECTRA[name]
    for k in (1, 2, 10, 11, 25, 40, 60):
        if k > np.count_nonzero(q):
            continue
        log_p, ratios = reference(q, k)
        assert worst_relative(sg.linalg.esp_ratios(q, k), ratios) < 1e-13
        # Both the logarithm and, where that is small, the polynomial itself.
        assert abs(float(sg.linalg.log_esp(q, k)) - log_p) < 1e-14 * max(1, abs(log_p))


@pytest.mark.parametrize("k", [1, 5, 200])
def test_multiplicity_is_repetition(k):
    rng = np.random.default_rng(2)
    q, multiplicity = rng.exponential(size=7), np.array([1, 300, 0, 2, 5, 1, 1])
    repeated = np.repeat(q, multiplicity)
    np.testing.assert_allclose(
        np.repeat(sg.linalg.esp_ratios(q, k, multiplicity), multiplicity),
        sg.linalg.esp_ratios(repeated, k),
        rtol=1e-13,
    )
    np.testing.assert_allclose(
        sg.linalg.log_esp(q, k, multiplicity=multiplicity), sg.linalg.log_esp(repeated, k), rtol=1e-14
    )


def test_large_plateau_against_high_precision():
    """m = 20,000 with all but 40 eigenvalues equal to λ: p_k as a sum over how many come from the plateau."""
    k, m, lam = 1000, 20_000, 1e-3
    top = 1.0 / np.arange(1, 41) ** 2 + lam
    q, multiplicity = np.append(top, lam), np.append(np.ones(40), m - 40)
    with mpmath.workdps(60):
        exact_lam = mpmath.mpf(lam)

        @functools.cache
        def plateau(size, r):
            return mpmath.binomial(size, r) * exact_lam**r

        def p(r, size, e):
            return sum(e[a] * plateau(size, r - a) for a in range(len(e)))

        def prefix(values):
            e = [mpmath.mpf(1)]
            for x in values:
                old = [*e, mpmath.mpf(0)]
                e = [old[r] + (mpmath.mpf(float(x)) * old[r - 1] if r else 0) for r in range(len(old))]
            return e

        whole = p(k, m - 40, prefix(top))
        exact = [p(k - 1, m - 40, prefix(np.delete(top, i))) / whole for i in range(40)]
        exact.append(p(k - 1, m - 41, prefix(top)) / whole)
        log_whole = mpmath.log(whole)
    ratios = sg.linalg.esp_ratios(q, k, multiplicity)
    assert worst_relative(ratios, exact) < 1e-12
    assert abs(float(sg.linalg.log_esp(q, k, multiplicity)) - log_whole) < 1e-14 * abs(log_whole)
    # The same spectrum written out, and hence the block-wise sums over many eigenvalues.
    written_out = sg.linalg.esp_ratios(np.repeat(q, multiplicity.astype(int)), k)
    np.testing.assert_allclose(written_out[:40], ratios[:40], rtol=1e-12)
    np.testing.assert_allclose(written_out[40:], ratios[40], rtol=1e-12)


def test_many_eigenvalues_sum_to_k():
    q = 1.0 / np.arange(1, 20_001) ** 2
    ratios = sg.linalg.esp_ratios(q, 1000)
    assert abs(float(jnp.sum(jnp.asarray(q) * ratios)) / 1000 - 1) < 1e-12
    assert bool(jnp.all(ratios > 0)) and bool(jnp.all(jnp.diff(ratios) >= 0))


def test_flat_closed_form():
    for m, k in [(60, 60), (60, 10), (3000, 1500)]:
        np.testing.assert_allclose(sg.linalg.esp_ratios(np.full(m, 2.0), k), k / (2 * m), rtol=1e-13)
        log_binomial = math.lgamma(m + 1) - math.lgamma(k + 1) - math.lgamma(m - k + 1)
        np.testing.assert_allclose(
            sg.linalg.log_esp(np.full(m, 2.0), k), log_binomial + k * math.log(2), rtol=1e-13
        )


def test_degree_equal_to_rank():
    """D_i = 1/q_i where all nonzero entries are needed, and p_{k−1}/p_k for a zero entry."""
    q = np.array([4.0, 0.5, 0.0, 1e-9, 0.0])
    np.testing.assert_allclose(
        sg.linalg.esp_ratios(q, 3), [0.25, 2.0, sum([0.25, 2.0, 1e9]), 1e9, sum([0.25, 2.0, 1e9])], rtol=1e-14
    )


@pytest.mark.parametrize("case", [name for name in GOLDEN if name.endswith("svs")])
def test_golden(case):
    values = GOLDEN[case]
    k = int(case.split(",")[0].removeprefix("k="))
    q = np.array([float(x) for x in values["q"]])
    np.testing.assert_allclose(sg.linalg.esp_ratios(q, k), [float(x) for x in values["D"]], rtol=1e-13)
    for degree, value in enumerate(values["esp"]):
        np.testing.assert_allclose(jnp.exp(sg.linalg.log_esp(q, degree)), float(value), rtol=1e-13)


def test_derivative_is_the_ratio():
    q, multiplicity = jnp.array([3.0, 1.0, 0.2, 1e-3, 0.0]), jnp.array([1.0, 2.0, 1.0, 4.0, 1.0])
    gradient = jax.grad(lambda q: sg.linalg.log_esp(q, 3, multiplicity))(q)
    np.testing.assert_allclose(gradient, multiplicity * sg.linalg.esp_ratios(q, 3, multiplicity), rtol=1e-13)


def test_jit_and_vmap():
    q = jnp.asarray(np.random.default_rng(3).exponential(size=(4, 60)))
    batched = jax.jit(jax.vmap(lambda q: (sg.linalg.log_esp(q, 10), sg.linalg.esp_ratios(q, 10))))(q)
    for i in range(4):
        np.testing.assert_allclose(batched[0][i], sg.linalg.log_esp(q[i], 10), rtol=1e-14)
        np.testing.assert_allclose(batched[1][i], sg.linalg.esp_ratios(q[i], 10), rtol=1e-14)


def test_float32():
    q = SPECTRA["lambda-plateau"]
    ratios = sg.linalg.esp_ratios(jnp.asarray(q, jnp.float32), 10)
    assert ratios.dtype == jnp.float32
    np.testing.assert_allclose(ratios, sg.linalg.esp_ratios(q, 10), rtol=3e-6)


def test_table_of_suffixes():
    q = np.array([3.0, 0.0, 1e-5, 2.0, 0.7])
    table = log_esp_table(jnp.asarray(q), 3)
    assert table.shape == (4, 6)
    for r in range(4):
        for start in range(6):
            value = -np.inf if r > 5 - start else float(sg.linalg.log_esp([*q[start:], *np.zeros(start)], r))
            np.testing.assert_allclose(table[r, start], value, rtol=1e-13, atol=1e-14)


def test_edges():
    assert sg.linalg.log_esp([1.0, 2.0], 0) == 0
    assert sg.linalg.log_esp([1.0, 0.0], 2) == -jnp.inf
    assert sg.linalg.log_esp([1.0, 2.0], 3) == -jnp.inf
    assert sg.linalg.log_esp([0.0, 0.0], 1) == -jnp.inf
    assert jnp.isnan(jax.jit(lambda q: sg.linalg.log_esp(q, 1))(jnp.array([1.0, -1.0])))
    assert jnp.isnan(jax.jit(lambda q: sg.linalg.log_esp(q, 1))(jnp.array([1.0, jnp.nan])))


def test_bad_input():
    for call, message in [
        (
            lambda: sg.linalg.esp_ratios([1.0, -1.0], 1),
            "`q` must not be negative, got a smallest entry of -1",
        ),
        (lambda: sg.linalg.esp_ratios([1.0, np.nan], 1), "`q` must be finite"),
        (lambda: sg.linalg.esp_ratios([[1.0]], 1), "`q` must have 1 axes"),
        (lambda: sg.linalg.esp_ratios([1.0], 0), "`k` must be at least 1, got 0"),
        (lambda: sg.linalg.log_esp([1.0], -1), "`k` must be at least 1, got -1"),
        (lambda: sg.linalg.esp_ratios([1.0, 0.0], 2), "number of nonzero entries of `q`, which is 1; got 2"),
        (lambda: sg.linalg.log_esp([1.0], 1, [0.5]), "`multiplicity` must hold whole numbers"),
        (lambda: sg.linalg.log_esp([1.0], 1, [1.0, 2.0]), "`multiplicity` must have 1 entries"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="`k` must be a whole number"):
        sg.linalg.esp_ratios([1.0], True)
    with pytest.raises(eqx.EquinoxRuntimeError, match="`k` must be at most the number of nonzero"):
        eqx.filter_jit(lambda q: sg.linalg.esp_ratios(q, 2))(jnp.array([1.0, 0.0]))
