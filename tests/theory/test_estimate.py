"""The estimators of β and γ: against enumeration, for bias, coverage and width."""

import itertools

import jax
import numpy as np
import pytest

from snapgrad import theory
from snapgrad.sampling import SquaredVolume
from snapgrad.theory import _estimate, exact
from snapgrad.theory._estimate import Draws, Interval, _largest, _Svs, _top, _Uniform
from snapgrad.theory._moments import (
    SymmetricRows,
    Tilted,
    in_folds,
    projector,
    second_moment,
    squared_projector,
)
from snapgrad.theory._spectrum import spectrum

KEY = jax.random.key(0)


def matrix(m=12, n=5, seed=0, decay=1.0):
    J = np.random.default_rng(seed).standard_normal((m, n)) * np.arange(1.0, n + 1) ** -decay
    J[0] *= 5
    return J


def covers(interval, value):
    return interval.low * (1 - 1e-9) <= value <= interval.high * (1 + 1e-9)


# What one draw stands for --------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["svs", "uniform"])
@pytest.mark.parametrize("lam", [0.0, 0.1])
def test_averaging_over_the_last_row_changes_no_expectation(sampling, lam):
    """Over every batch and every row left out, with its probability, `second_moment` gives X exactly.

    With a repeated and a zero row, so that uniform sampling at λ = 0 meets dependent sets.
    """
    J = matrix(6, 4)
    J[3], J[5] = J[1], 0
    for k in (1, 2, 3):
        c = exact.constants(J, sample_size=k, damping=lam, sampling=sampling)
        spec = spectrum(J)
        V = np.asarray(spec.V)
        M = np.linalg.pinv(V.T @ np.asarray(c.preconditioner) @ V, hermitian=True)
        X = sum(
            p * second_moment(spec, M, np.delete(np.asarray(S), i)[None], lam, sampling).dense() / k
            for S, p in zip(c.subsets, c.probabilities, strict=True)
            for i in range(k)
            if p > 0
        )
        np.testing.assert_allclose(X, c.second_moment, atol=1e-10 * c.gamma)


@pytest.mark.parametrize("lam", [0.0, 0.1])
def test_tilted_weights_are_the_ratio_of_the_laws(lam):
    """Over every batch with its tilted probability, `squared_projector` gives the matrix of norm β."""
    J = matrix(7, 4)
    spec = spectrum(J)
    for k in (1, 2, 4):
        tilted = Tilted(spec, k, lam)
        sets = exact.all_subsets(7, k)
        q = exact.probabilities(spectrum(tilted.matrix), sets, lam, "svs")
        P_half = np.diag(
            np.asarray(spec.V).T
            @ np.asarray(theory.expected_projector(J, sample_size=k, damping=lam))
            @ spec.V
        )
        P_half = P_half**-0.5
        B = sum(
            w * squared_projector(spec, P_half, S[None], lam, tilted.tilt, tilted.log_scale)
            for S, w in zip(sets, q, strict=True)
        )
        assert np.linalg.norm(B, 2) == pytest.approx(
            exact.constants(J, sample_size=k, damping=lam).beta, rel=1e-8
        )


def test_mean_projector_of_all_subsets():
    J = matrix(6, 4)
    c = exact.constants(J, sample_size=2, damping=0.1, sampling="uniform")
    V = spectrum(J).V
    P = projector(spectrum(J), exact.all_subsets(6, 2), 0.1)
    np.testing.assert_allclose(V @ P @ V.T, c.expected_projector, atol=1e-12)


# The interval --------------------------------------------------------------------------------------------


def test_interval_of_a_norm_covers_it_and_its_ends_have_the_right_bias():
    """On noise of known size: E cross ≤ norm ≤ E plug-in, the estimate between is nearly unbiased."""
    rng = np.random.default_rng(0)
    truth = np.diag(np.linspace(0.2, 1.0, 12))
    intervals = []
    for _ in range(400):
        noise = 0.15 * rng.standard_normal((10, 12, 12))
        intervals.append(_largest(list(truth + (noise + noise.swapaxes(1, 2)) / 2)))
    low, estimate, high = np.array(intervals).T
    assert np.mean((low <= 1) & (high >= 1)) > 0.97
    error = 3 * np.std(estimate) / np.sqrt(400)
    plug_in_bias = np.mean((low + high) / 2 + (high - low) / 2 - 1)
    assert abs(estimate.mean() - 1) < error + 0.1 * plug_in_bias


def test_later_draws_extend_earlier_ones():
    J = matrix()
    draws = Draws(SquaredVolume.from_matrix(J, sample_size=3, damping=0.1), KEY)
    np.testing.assert_array_equal(draws(0, 1500)[400:1100], draws(400, 1100))
    parts, more = in_folds(draws(0, 500)), in_folds(draws(0, 1000))
    np.testing.assert_array_equal(parts, more[:, :50])


CASES = [(kind, lam) for kind in ("gamma", "beta") for lam in (0.0, 0.05)]


@pytest.mark.parametrize("kind, lam", CASES)
def test_svs_intervals_cover_the_exact_value(kind, lam):
    """At 98 % coverage, fewer than 36 of 40 have a chance of 1 in 700."""
    J = matrix()
    spec, k = spectrum(J), 3
    want = getattr(exact.constants(J, sample_size=k, damping=lam), kind)
    intervals = [_Svs(J, spec, k, lam, kind, jax.random.key(seed))(300) for seed in range(40)]
    assert sum(covers(interval, want) for interval in intervals) >= 36
    estimates = [interval.estimate for interval in intervals]
    spread = np.std(estimates, ddof=1)
    assert abs(np.mean(estimates) - want) < 4 * spread / np.sqrt(40)
    assert spread < 0.15 * want


@pytest.mark.slow
@pytest.mark.parametrize("sampling, kind", [("svs", "gamma"), ("svs", "beta"), ("uniform", "gamma")])
def test_coverage_is_what_the_docstring_of_interval_says(sampling, kind, monkeypatch):
    """Over spectra, sample sizes and dampings, fewer than 3.5 in 100 intervals miss the truth.

    At the 98.1 % of β that has a chance of one in a hundred to fail with other seeds; these are fixed.
    """
    monkeypatch.setattr(_estimate, "ENUMERATE", 0)  # draw, though these could be enumerated
    sizes, seeds, count = (2, 3, 4) if sampling == "svs" else (3,), 20, 500 if kind == "gamma" else 2000
    missed = []
    for k, lam, decay in itertools.product(sizes, (0.0, 0.05), (0.0, 1.0, 2.0)):
        J = matrix(decay=decay, seed=int(10 * decay))
        args = {"sample_size": k, "damping": lam, "sampling": sampling}
        want = getattr(exact.constants(J, **args), kind)
        for seed in range(seeds):
            interval = getattr(theory, kind)(J, **args, key=jax.random.key(seed), num_samples=count)
            missed.append(not covers(interval, want))
    assert len(missed) >= 120 and np.mean(missed) < 0.035


def test_looks_continue_one_another():
    """500 draws at once, and 250 and then 250 more, are the same estimate."""
    J = matrix()
    for kind in ("gamma", "beta"):
        once, twice = (_Svs(J, spectrum(J), 3, 0.05, kind, KEY) for _ in range(2))
        twice(250)
        np.testing.assert_allclose(once(500), twice(500), rtol=1e-10)


@pytest.mark.parametrize("kind", ["alpha", "beta", "gamma"])
def test_uniform_intervals_cover_the_exact_value(kind):
    J = matrix()
    spec, k, lam = spectrum(J), 3, 0.05
    want = getattr(exact.constants(J, sample_size=k, damping=lam, sampling="uniform"), kind)
    intervals = [_Uniform(spec, k, lam, kind, jax.random.key(seed))(1000) for seed in range(6)]
    assert all(covers(interval, want) for interval in intervals)
    assert all(interval.relative_width < 0.5 for interval in intervals)


@pytest.mark.parametrize(
    "function", [theory.expected_projector, theory.preconditioner, theory.expected_weight]
)
def test_uniform_expectations(function):
    J = matrix()
    args = {"damping": 0.05, "sampling": "uniform"}
    for k in (2, 6):
        want = getattr(exact.constants(J, sample_size=k, **args), function.__name__)
        mean, error = function(J, sample_size=k, **args)  # 66 and 924 sets: enumerated
        np.testing.assert_allclose(mean, want, rtol=1e-9, atol=1e-11)
        assert not np.any(error)
        mean, error = function(J, sample_size=k, key=KEY, num_samples=60, **args)
        z = np.abs(np.asarray(mean - want))[np.asarray(error) > 0] / np.asarray(error)[np.asarray(error) > 0]
        assert 0.3 < np.sqrt(np.mean(z**2)) < 2.0


def test_budget_and_tolerance_are_kept():
    J = np.random.default_rng(0).standard_normal((40, 8))
    few = theory.gamma(J, sample_size=5, key=KEY, num_samples=40)
    fine = theory.gamma(J, sample_size=5, key=KEY, rtol=0.04)
    assert fine.relative_width <= 0.04 < few.relative_width
    assert few == theory.gamma(J, sample_size=5, key=KEY, num_samples=40)  # the same key, the same answer
    assert few.low <= fine.estimate <= few.high


def test_intervals_keep_to_what_is_proved():
    """Two dozen draws say little, and yet β ≥ rank/k, β ≤ 1/α and γ ≥ 1 hold at λ = 0."""
    J = np.random.default_rng(0).standard_normal((40, 8)) * np.arange(1, 9) ** -2.0
    beta = theory.beta(J, sample_size=5, key=KEY, num_samples=20)
    gamma = theory.gamma(J, sample_size=5, key=KEY, num_samples=20)
    assert beta.low >= 8 / 5 and beta.high <= 1 / theory.alpha(J, sample_size=5)
    assert gamma.low >= 1


# Memory --------------------------------------------------------------------------------------------------


def test_few_rows_of_a_symmetric_matrix():
    """`SymmetricRows` multiplies and mixes as the matrices that it stands for."""
    rng = np.random.default_rng(0)
    one, two = (
        SymmetricRows(np.array(index), rng.normal(size=(len(index), 6)), rng.normal(size=6))
        for index in ([1, 4], [0, 1, 5])
    )
    for x in (rng.normal(size=6), rng.normal(size=(6, 3))):
        np.testing.assert_allclose(one @ x, one.dense() @ x, atol=1e-14)
    mixed = one.mixed(two, 0.3)
    np.testing.assert_allclose(mixed.dense(), 0.7 * one.dense() + 0.3 * two.dense(), atol=1e-14)
    assert mixed.places.tolist() == [0, 1, 4, 5]


def test_many_rows_need_no_square_matrix(monkeypatch):
    """What is never formed gives the same interval, to the six digits of the eigenvalues."""
    J = np.random.default_rng(0).standard_normal((300, 8))
    args = {"sample_size": 5, "damping": 0.1, "key": KEY, "num_samples": 100}
    formed = theory.gamma(J, **args)
    monkeypatch.setattr(_estimate, "_DENSE", 0)
    np.testing.assert_allclose(theory.gamma(J, **args), formed, rtol=1e-5)


def test_memory_is_counted_before_anything_is_drawn():
    """20,000 rows: 500 draws of 10 rows take 0.9 GB, not the 32 GB of ten square matrices."""
    J = np.random.default_rng(0).standard_normal((20_000, 4))
    with pytest.raises(ValueError, match=r"`J` has 20000 rows.* needs 0.864 GB.*`max_memory`.* 0.1 GB"):
        theory.gamma(J, sample_size=10, damping=0.1, key=KEY, max_memory=1e8)
    assert 4000 < _estimate._affordable(20_000, 10, 500, 32_000, 8e9) < 5000
    assert _estimate._affordable(1000, 10, 500, 32_000, 8e9) == 32_000


# The ensemble of the paper -------------------------------------------------------------------------------


def ensemble():
    rng = np.random.default_rng(0)
    left = np.linalg.qr(rng.standard_normal((1000, 100)))[0]
    right = np.linalg.qr(rng.standard_normal((100, 100)))[0]
    return left * np.arange(1, 101) ** -2.0 @ right


def gamma_of_all_pairs(J):
    """γ at k = 2, λ = 0 from all m(m−1)/2 pairs at once, elementwise.

    For a pair with Gram matrix C and B = J W̃⁺ Jᵀ restricted to it, p(S) (J_S⁺)ᵀ W̃⁺ J_S⁺ is
    adj(C) B adj(C) / det(C) over the sum of all determinants.
    """
    W = np.asarray(theory.preconditioner(J, sample_size=2))
    C, B = J @ J.T, J @ np.linalg.inv(W) @ J.T
    c, b = np.diag(C), np.diag(B)
    cc, cb = np.outer(c, c), np.outer(c, b)
    det = cc - C**2
    np.fill_diagonal(det, np.inf)
    X = ((cc + C**2) * B - C * (cb + cb.T)) / det
    np.fill_diagonal(X, 0)
    inside = (b[:, None] * c[None, :] ** 2 - 2 * c[None, :] * C * B + C**2 * b[None, :]) / det
    np.fill_diagonal(det, 0)
    X = (X + np.diag(inside.sum(axis=1))) / (det.sum() / 2)
    return _top(X)[0]


def test_gamma_of_the_ensemble_at_two_rows():
    """Where the plug-in norm of 2·10⁴ draws is off by more than two, the interval is within 5 %."""
    J = ensemble()
    want = gamma_of_all_pairs(J)
    assert 1.9 < want < 2.0

    enumerated = theory.gamma(J, sample_size=2)  # all thousand rows, no randomness
    assert enumerated.estimate == pytest.approx(want, rel=1e-8)

    look = _Svs(J, spectrum(J), 2, 0.0, "gamma", KEY)
    drawn = look(4_000)
    assert covers(drawn, want) and drawn.relative_width < 0.05

    pairs = look.draws(0, 20_000)
    W_pinv = np.linalg.inv(np.asarray(theory.preconditioner(J, sample_size=2)))
    K = J[pairs] @ np.swapaxes(J[pairs], 1, 2)
    F = np.linalg.solve(K, J[pairs])
    X = np.zeros((1000, 1000))
    np.add.at(X, (pairs[:, :, None], pairs[:, None, :]), F @ W_pinv @ np.swapaxes(F, 1, 2) / len(pairs))
    assert _top(X)[0] > 2 * want


def test_beta_of_the_ensemble_at_two_rows():
    J = ensemble()
    want = theory.beta(J, sample_size=2).estimate
    look = _Svs(J, spectrum(J), 2, 0.0, "beta", KEY)
    interval = look(40_000)
    assert covers(interval, want) and interval.relative_width < 0.6


# Rates and advice ----------------------------------------------------------------------------------------


def test_intervals_enter_rates_at_their_safe_end():
    alpha, beta, gamma = 0.1, Interval(2.0, 3.0, 4.0), Interval(1.0, 1.5, 2.0)
    assert theory.step_size("sng", gamma=gamma, curvature=(0.5, 4.0)) == 1 / (2.0 * 4.0)
    assert theory.predicted_rate("sng", alpha=alpha, gamma=gamma).rate == pytest.approx(0.1 / 2.0)
    assert theory.predicted_rate("accelerated", alpha=alpha, beta=beta).rate == pytest.approx(
        (0.1 / 4.0) ** 0.5
    )
    conjecture = theory.predicted_rate(
        "spring-conjecture", alpha=alpha, beta=beta, gamma=gamma, curvature=(1.0, 10.0)
    )
    assert conjecture.rate == pytest.approx(0.1 * (0.1 / 4.0) ** 0.5 / 2.0)
    assert not conjecture.proved and not conjecture.exact_constant
    floor = theory.predicted_rate(
        "inconsistent", alpha=alpha, gamma=gamma, curvature=(0.5, 1.0), step_size=0.1
    )
    assert floor.floor == pytest.approx(2 * 2.0 * 0.1 / (0.5 * 0.1)) and floor.norm == "W̃⁺"


def test_rates_refuse_what_they_are_not_stated_for():
    with pytest.raises(ValueError, match=r"`step_size` must be in \(0, 0.5\]"):
        theory.predicted_rate("sng", alpha=0.1, gamma=2.0, step_size=0.6)
    with pytest.raises(ValueError, match="`gamma` must be given"):
        theory.step_size("sng")
    with pytest.raises(ValueError, match=r"`curvature` must be \(1, 1\)"):
        theory.predicted_rate("accelerated", alpha=0.1, beta=2.0, curvature=(0.1, 1.0))
    with pytest.raises(ValueError, match=r"`alpha` must be in \(0, 1\]"):
        theory.momentum(alpha=2.0, beta=3.0)
    with pytest.raises(ValueError, match="`curvature` must be"):
        theory.step_size("ngd", curvature=(2.0, 1.0))


def test_table_of_a_flat_spectrum():
    rows = theory.table(np.linalg.qr(np.random.default_rng(0).normal(size=(40, 8)))[0], [1, 2, 5], rtol=0.5)
    for row in rows:
        k = row.sample_size
        assert row.alpha.estimate == pytest.approx(k / 8)
        assert covers(row.gamma, 8 / (9 - k))
        assert covers(row.sng, k / 8 / row.gamma.estimate)
        want = np.sqrt(row.alpha.estimate / row.beta.estimate) / row.gamma.estimate
        assert row.spring.estimate == pytest.approx(want) and covers(row.spring, want)
    with pytest.raises(ValueError, match="`sample_sizes` must hold at least one"):
        theory.table(np.eye(3), [])


def test_a_crowd_of_eigenvalues_that_arpack_cannot_tell_apart_is_factored(monkeypatch):
    """A steep kernel has hundreds of smallest eigenvalues alike, which the iteration never separates."""
    A = -np.diag(np.geomspace(1e-12, 1, 250))

    def gives_up(*args, **kwargs):
        raise _estimate.ArpackNoConvergence("no convergence", np.zeros(0), np.zeros((0, 0)))

    monkeypatch.setattr(_estimate, "eigsh", gives_up)
    value, vector = _top(A)
    np.testing.assert_allclose(value, -1e-12, rtol=1e-3)
    assert abs(vector[0]) > 0.999
