"""Enumeration and closed forms against 20-digit reference values, and against each other."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad import theory
from snapgrad.theory import exact

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())
J = np.array(GOLDEN["J"], object).astype(float)
NAMES = {
    "Pbar": "expected_projector",
    "Wbar": "expected_weight",
    "Wtilde": "preconditioner",
    "X": "second_moment",
    "alpha": "alpha",
    "beta": "beta",
    "gamma": "gamma",
}


def numbers(x):
    return np.array(x, object).astype(float)


def parse(name):
    k, lam, sampling = name.split(",")
    return int(k[2:]), float(lam[4:]), sampling


@pytest.mark.parametrize("name", GOLDEN["quantities"])
def test_enumeration_matches_reference(name):
    want = GOLDEN["quantities"][name]
    k, lam, sampling = parse(name)
    got = exact.constants(J, sample_size=k, damping=lam, sampling=sampling)
    for subset, p in zip(got.subsets, got.probabilities, strict=True):
        key = ",".join(str(int(i)) for i in subset)
        assert float(p) == pytest.approx(float(want["probabilities"][key]), rel=1e-10)
    for theirs, ours in NAMES.items():
        np.testing.assert_allclose(getattr(got, ours), numbers(want[theirs]), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", [n for n in GOLDEN["quantities"] if n.endswith("svs")])
def test_closed_forms_match_reference(name):
    want = GOLDEN["quantities"][name]
    k, lam, _ = parse(name)
    args = {"sample_size": k, "damping": lam}
    assert theory.alpha(J, **args) == pytest.approx(float(want["alpha"]), rel=1e-10)
    for function, theirs in [
        (theory.expected_projector, "Pbar"),
        (theory.expected_weight, "Wbar"),
        (theory.preconditioner, "Wtilde"),
    ]:
        np.testing.assert_allclose(function(J, **args), numbers(want[theirs]), rtol=1e-10, atol=1e-11)
    # 6 rows: every set of k − 1 of them is enumerated, so no key is needed and nothing is random.
    for function in (theory.beta, theory.gamma):
        low, estimate, high = function(J, **args)
        assert low == estimate == high == pytest.approx(float(want[function.__name__]), rel=1e-10)


@pytest.mark.parametrize("name", [n for n in GOLDEN["quantities"] if n.endswith("uniform")])
def test_uniform_constants_of_a_small_matrix_are_enumerated(name):
    want = GOLDEN["quantities"][name]
    k, lam, _ = parse(name)
    for function in (theory.alpha, theory.beta, theory.gamma):
        interval = function(J, sample_size=k, damping=lam, sampling="uniform")
        assert interval.low == interval.high == pytest.approx(float(want[function.__name__]), rel=1e-10)


ALPHAS = [
    (spectrum, setting, int(k), float(value))
    for spectrum, settings in GOLDEN["alpha_svs_m1000_n100"].items()
    for setting, values in settings.items()
    for k, value in values.items()
]


@pytest.mark.parametrize("spectrum, setting, k, want", ALPHAS)
def test_alpha_needs_no_random_numbers(spectrum, setting, k, want):
    sigma = np.arange(1, 101) ** -{"1/i^2": 2.0, "1/i": 1.0, "flat": 0.0}[spectrum]
    matrix = np.zeros((1000, 100))
    matrix[np.arange(100), np.arange(100)] = sigma  # α depends on the singular values alone
    lam = 1e-6 if "1e-6" in setting else 0.0
    assert theory.alpha(matrix, sample_size=k, damping=lam) == pytest.approx(want, rel=1e-10)


@pytest.mark.parametrize("m, n", [(6, 4), (7, 3), (9, 5)])
def test_gamma_of_a_flat_spectrum(m, n):
    Q = np.linalg.qr(np.random.default_rng(m).standard_normal((m, n)))[0]
    for k in range(1, n + 1):
        got = exact.constants(Q, sample_size=k)
        assert got.gamma == pytest.approx(n / (n - k + 1), rel=1e-10)
        assert got.alpha == pytest.approx(k / n, rel=1e-10)
        assert theory.gamma(Q, sample_size=k).estimate == pytest.approx(n / (n - k + 1), rel=1e-10)


def test_second_moment_at_full_rank():
    """γ is not benign near full rank: X = UUᵀ + n(I − UUᵀ) at k = rank = n < m, λ = 0."""
    m, n = 7, 3
    A = np.random.default_rng(0).standard_normal((m, n)) * np.array([1.0, 0.3, 0.01])
    U = np.linalg.svd(A, full_matrices=False)[0]
    got = exact.constants(A, sample_size=n)
    np.testing.assert_allclose(got.second_moment, U @ U.T + n * (np.eye(m) - U @ U.T), atol=1e-10)
    assert (got.alpha, got.gamma) == (pytest.approx(1, rel=1e-12), pytest.approx(n, rel=1e-12))


def test_any_law_with_a_log_prob():
    class Pairs:
        def log_prob(self, rows):
            return jnp.log(jnp.where(jnp.all(rows == jnp.array([0, 1])), 0.7, 0.3 / 14))

    got = exact.constants(J, sample_size=2, sampling=Pairs())
    assert float(got.probabilities[0]) == pytest.approx(0.7)
    pinv = [np.linalg.pinv(J[list(S)]) @ J[list(S)] for S in np.asarray(got.subsets)]
    want = np.einsum("s,sij->ij", np.asarray(got.probabilities), np.stack(pinv))
    np.testing.assert_allclose(got.expected_projector, want, atol=1e-12)

    sampler = sg.sampling.SquaredVolume.from_matrix(J, sample_size=2, damping=0.1)
    a = exact.constants(J, sample_size=2, damping=0.1, sampling=sampler)
    b = exact.constants(J, sample_size=2, damping=0.1, sampling="svs")
    assert a.gamma == pytest.approx(b.gamma, rel=1e-9) and a.beta == pytest.approx(b.beta, rel=1e-9)


def test_accepts_numpy_and_jax_and_keeps_the_precision_of_the_rank():
    for matrix in (J, jnp.asarray(J), J.tolist()):
        assert exact.constants(matrix, sample_size=2).alpha == pytest.approx(
            0.27994128406553554077, rel=1e-10
        )
    # A rank-2 matrix in float32 has singular values of 1e-8 that are rounding, not rank.
    low = (np.arange(12.0).reshape(4, 3) + np.eye(4, 3) * 0).astype(np.float32)
    assert math.isfinite(theory.alpha(low, sample_size=2))
    with pytest.raises(ValueError, match="rank of `J`, which is 2"):
        theory.alpha(low, sample_size=3)


def test_errors_name_the_argument():
    with pytest.raises(
        ValueError, match="`sample_size` must be at most the number of rows of `J`, which is 6"
    ):
        theory.alpha(J, sample_size=7, damping=0.1)
    with pytest.raises(ValueError, match="`sample_size` must be at most the rank of `J`, which is 4"):
        exact.constants(J, sample_size=5)
    with pytest.raises(ValueError, match="`damping` must be >= 0"):
        theory.expected_projector(J, sample_size=2, damping=-1.0)
    with pytest.raises(ValueError, match="`J` must have 2 axes"):
        theory.alpha(J[0], sample_size=2)
    with pytest.raises(ValueError, match="`J` must be finite"):
        theory.alpha(np.where(J > 0.5, np.nan, J), sample_size=2)
    with pytest.raises(ValueError, match="`J` must have a row that is not zero"):
        theory.alpha(0 * J, sample_size=2, damping=1.0)
    with pytest.raises(ValueError, match="more than `max_subsets`"):
        exact.constants(J, sample_size=3, max_subsets=19)
    with pytest.raises(ValueError, match="sum to 1"):

        class Wrong:
            def log_prob(self, rows):
                return jnp.zeros(())

        exact.constants(J, sample_size=3, sampling=Wrong())
    with pytest.raises(ValueError, match="`key` must be given"):
        theory.gamma(np.random.default_rng(0).standard_normal((40, 8)), sample_size=6)
    with pytest.raises(ValueError, match="`num_samples` must be at least 20"):
        theory.beta(np.ones((40, 8)) + np.eye(40, 8), sample_size=4, key=jax.random.key(0), num_samples=5)
