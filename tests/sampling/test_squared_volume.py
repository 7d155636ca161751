"""Exact squared volume sampling: against golden numbers, and by χ² against enumeration of all subsets."""

import itertools
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import snapgrad as sg
from snapgrad.linalg._select import _invert
from snapgrad.sampling import AdaptiveSquaredVolume, SquaredVolume

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())
GOLDEN_J = np.array(GOLDEN["J"], dtype=float)
SVS_CASES = [name for name in GOLDEN["quantities"] if name.endswith("svs")]
# Enough to tell λ from λ + 1: of these matrices these laws differ by a χ² of 320 at least.
NUM_SAMPLES = 20_000


def matrices():
    """8×5 and 8×9 matrices: generic, with two pairs of equal rows, with one row 100 times the others."""
    rng = np.random.default_rng(0)
    for n in (5, 9):
        J = rng.normal(size=(8, n)) / np.arange(1, n + 1)
        repeated, heavy = J.copy(), J.copy()
        repeated[[3, 6]] = repeated[[0, 1]]
        heavy[2] *= 100
        yield from [("generic", J), ("repeated", repeated), ("heavy", heavy)]


CASES = [(f"{name} {J.shape}", J, lam) for name, J in matrices() for lam in (0.0, 0.01, 0.5)]


def svs_law(J, k, lam):
    """P(S) of every k-subset by determinants, in the order of `itertools.combinations`."""
    L = J @ J.T + lam * np.eye(len(J))
    volumes = [np.linalg.det(L[np.ix_(S, S)]) for S in itertools.combinations(range(len(J)), k)]
    return np.maximum(volumes, 0) / np.sum(np.maximum(volumes, 0))


def frequencies(rows, m):
    """How often each k-subset occurs; raises if rows repeat within a sample."""
    rows = np.sort(np.asarray(rows), axis=1)
    assert np.all(rows[:, 1:] > rows[:, :-1]) and rows.min() >= 0 and rows.max() < m
    digits = m ** np.arange(rows.shape[1])
    codes = np.array(list(itertools.combinations(range(m), rows.shape[1]))) @ digits
    return np.bincount(rows @ digits, minlength=m ** rows.shape[1])[codes].astype(float)


def p_value(counts, law):
    """χ² with subsets expected fewer than five times pooled; what has no probability must not occur."""
    expected = law * counts.sum()
    assert counts[law < 1e-20].sum() == 0
    rare = expected < 5
    if expected[rare].sum() >= 5:
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    else:  # too rare to be a cell of their own: with the smallest of the others
        order = np.argsort(np.where(rare, np.inf, expected))[0]
        counts[order] += counts[rare].sum()
        expected[order] += expected[rare].sum()
        counts, expected = counts[~rare], expected[~rare]
    return scipy.stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue


@pytest.mark.parametrize("case", SVS_CASES)
def test_golden_probabilities(case):
    values = GOLDEN["quantities"][case]
    k, lam = (float(part.split("=")[1]) for part in case.split(",")[:2])
    sampler = SquaredVolume.from_matrix(GOLDEN_J, sample_size=int(k), damping=lam)
    subsets = np.array([[int(i) for i in S.split(",")] for S in values["probabilities"]])
    wanted = np.array([float(p) for p in values["probabilities"].values()])
    np.testing.assert_allclose(jnp.exp(sampler.log_prob(subsets)), wanted, rtol=1e-10)
    np.testing.assert_allclose(
        sampler.inclusion_probabilities(), [float(p) for p in values["inclusion_probabilities"]], rtol=1e-10
    )


def test_prepared_sampler_law():
    p_values = []
    for i, (_, J, lam) in enumerate(CASES):
        sampler = SquaredVolume.from_matrix(J, sample_size=3, damping=lam)
        rows = sampler.sample(jax.random.key(i), (NUM_SAMPLES,))
        law = svs_law(J, 3, lam)
        counts = frequencies(rows, 8)
        p_values.append(p_value(counts.copy(), law))
        # The test has power: the law of another λ is refused.
        assert p_value(counts.copy(), svs_law(J, 3, lam + 1.0)) < 1e-6
    assert scipy.stats.combine_pvalues(p_values).pvalue > 1e-3, dict(zip(CASES, p_values, strict=True))


def test_adaptive_sampler_law():
    p_values = []
    for i, (_, J, lam) in enumerate(CASES[::2]):
        sampler = AdaptiveSquaredVolume(8, sample_size=3, damping=lam)
        counts = frequencies(_draws(sampler, jnp.asarray(J), jax.random.key(100 + i)), 8)
        p_values.append(p_value(counts, svs_law(J, 3, lam)))
    assert scipy.stats.combine_pvalues(p_values).pvalue > 1e-3, p_values


@eqx.filter_jit
def _draws(sampler, J, key, count=NUM_SAMPLES):
    def linearise(rows):
        return sg.Linearisation(jnp.zeros(rows.size), sg.DenseJacobian(J[rows]))

    def draw(key):
        return sampler.draw(key, sampler.init(key), linearise)[0]

    return jax.lax.map(draw, jax.random.split(key, count), batch_size=1000)


def test_adaptive_limit_of_zero_damping():
    """Rank 2 and k = 3 at λ = 0: the limit λ → 0⁺ of the law."""
    rng = np.random.default_rng(5)
    J = rng.normal(size=(8, 2)) @ rng.normal(size=(2, 5))
    counts = frequencies(_draws(AdaptiveSquaredVolume(8, 3), jnp.asarray(J), jax.random.key(7)), 8)
    assert p_value(counts, svs_law(J, 3, 1e-7)) > 1e-3


@pytest.mark.parametrize(("value", "n"), [(0.0, 5), (jnp.nan, 5), (jnp.inf, 9)])
def test_adaptive_survives_what_is_not_finite(value, n):
    """Nothing to go by: uniform rows, and no endless loop."""
    J = jnp.asarray(np.full((8, n), value))
    counts = frequencies(_draws(AdaptiveSquaredVolume(8, 3), J, jax.random.key(8)), 8)
    assert p_value(counts, np.full(56, 1 / 56)) > 1e-3


def test_probabilities_sum_to_one():
    for _, J, lam in CASES:
        sampler = SquaredVolume.from_matrix(J, sample_size=3, damping=lam)
        subsets = np.array(list(itertools.combinations(range(8), 3)))
        probabilities = np.exp(sampler.log_prob(subsets))
        np.testing.assert_allclose(probabilities, svs_law(J, 3, lam), rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(probabilities.sum(), 1, rtol=1e-12)
        inclusion = [probabilities[np.any(subsets == i, axis=1)].sum() for i in range(8)]
        np.testing.assert_allclose(sampler.inclusion_probabilities(), inclusion, rtol=1e-11)


def test_log_prob_of_what_cannot_be_drawn():
    sampler = SquaredVolume.from_matrix(GOLDEN_J, sample_size=3, damping=0.1)
    values = sampler.log_prob(np.array([[[0, 1, 2], [0, 0, 2]], [[0, 1, 6], [-1, 1, 2]]]))
    assert values.shape == (2, 2)
    np.testing.assert_array_equal(jnp.isneginf(values), [[False, True], [True, True]])
    np.testing.assert_allclose(sampler.log_prob([2, 0, 1]), values[0, 0], rtol=1e-13)


def test_all_rows_and_one_row():
    everything = SquaredVolume.from_matrix(GOLDEN_J, sample_size=6, damping=0.1)
    assert set(np.asarray(everything.sample(jax.random.key(0))).tolist()) == set(range(6))
    np.testing.assert_allclose(everything.log_prob(jnp.arange(6)), 0, atol=1e-12)
    one = SquaredVolume.from_matrix(GOLDEN_J, sample_size=1)
    norms = np.sum(GOLDEN_J**2, axis=1)
    np.testing.assert_allclose(one.inclusion_probabilities(), norms / norms.sum(), rtol=1e-13)


def test_shapes_and_reproducibility():
    sampler = SquaredVolume.from_matrix(GOLDEN_J, sample_size=2, damping=1e-3)
    key = jax.random.key(3)
    assert sampler.num_rows == 6 and sampler.sample_size == 2
    assert sampler.sample(key).shape == (2,) and jnp.issubdtype(sampler.sample(key).dtype, jnp.integer)
    assert sampler.sample(key, (2, 3)).shape == (2, 3, 2)
    rows = sampler.sample(key, (301,))  # two blocks, and one sample too many in them
    assert rows.shape == (301, 2) and len(np.unique(np.sort(rows, axis=1), axis=0)) >= 12
    np.testing.assert_array_equal(rows, sampler.sample(key, (301,)))


def test_jit_and_vmap_over_damping():
    sampler = SquaredVolume.from_matrix(GOLDEN_J, sample_size=2)
    dampings, keys = jnp.array([0.0, 1e-3, 10.0]), jax.random.split(jax.random.key(4), 3)
    rows = jax.jit(jax.vmap(lambda lam, key: sampler.with_damping(lam).sample(key)))(dampings, keys)
    log_probs = jax.vmap(lambda lam, rows: sampler.with_damping(lam).log_prob(rows))(dampings, rows)
    prepared = jax.vmap(lambda lam, key: SquaredVolume.from_matrix(GOLDEN_J, 2, lam).sample(key))
    np.testing.assert_array_equal(prepared(dampings, keys), rows)
    for i, lam in enumerate(dampings):
        single = SquaredVolume.from_matrix(GOLDEN_J, sample_size=2, damping=lam)
        np.testing.assert_array_equal(single.sample(keys[i]), rows[i])
        np.testing.assert_allclose(single.log_prob(rows[i]), log_probs[i], rtol=1e-12)


def test_vmap_over_matrices():
    J = jnp.asarray(np.random.default_rng(6).normal(size=(3, 7, 4)))
    rows = jax.vmap(lambda J, key: SquaredVolume.from_matrix(J, 2, 0.1).sample(key))(
        J, jax.random.split(jax.random.key(5), 3)
    )
    assert rows.shape == (3, 2) and bool(jnp.all(rows[:, 0] != rows[:, 1]))


def test_large_matrix():
    """m = 1e5, with a plateau of 99,980 eigenvalues λ; inclusion probabilities against frequencies."""
    rng = np.random.default_rng(9)
    J = rng.normal(size=(100_000, 20)) / np.arange(1, 21)
    J[:4] *= 400
    sampler = SquaredVolume.from_matrix(J, sample_size=10, damping=1e-2)
    rows = np.asarray(sampler.sample(jax.random.key(10), (2000,)))
    assert all(len(set(S)) == 10 for S in rows.tolist()) and rows.min() >= 0 and rows.max() < 100_000
    inclusion = np.asarray(sampler.inclusion_probabilities())
    np.testing.assert_allclose(inclusion.sum(), 10, rtol=1e-12)
    heavy = inclusion[:4]
    error = np.sqrt(heavy * (1 - heavy) / 2000)
    measured = np.mean(np.any(rows[:, :, None] == np.arange(4), axis=1), axis=0)
    assert np.all(np.abs(measured - heavy) < 4 * error) and np.all((heavy > 0.05) & (heavy < 1))


def test_many_rows_at_once():
    """k = 200 of m = 300 at full rank, where most of the spectrum is used."""
    J = np.random.default_rng(11).normal(size=(300, 250))
    for lam in (0.0, 1e3):
        sampler = SquaredVolume.from_matrix(J, sample_size=200, damping=lam)
        rows = np.asarray(sampler.sample(jax.random.key(12), (4,)))
        assert all(len(set(S)) == 200 for S in rows.tolist())
        assert np.all(np.isfinite(sampler.log_prob(rows)))


def test_inverse_cdf_search():
    """For every size around the powers of four, including rows of no weight."""
    rng = np.random.default_rng(12)
    for m in (1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 1000):
        weights = rng.exponential(size=(2, m)) * (rng.random((2, m)) < 0.7)
        weights[:, rng.integers(m)] += 1
        cdf, u, columns = np.cumsum(weights, axis=1), rng.random(200), rng.integers(0, 2, 200)
        found = jax.jit(jax.vmap(_invert, (None, 0, 0)))(cdf, columns, u)
        wanted = [
            np.searchsorted(cdf[c], x * cdf[c, -1], side="right") for c, x in zip(columns, u, strict=True)
        ]
        np.testing.assert_array_equal(found, wanted)


def test_float32():
    J = jnp.asarray(GOLDEN_J, jnp.float32)
    sampler = SquaredVolume.from_matrix(J, sample_size=2, damping=0.1)
    wanted = GOLDEN["quantities"]["k=2,lam=0.1,svs"]
    law = np.array([float(p) for p in wanted["probabilities"].values()])
    assert sampler.inclusion_probabilities().dtype == jnp.float32
    assert p_value(frequencies(sampler.sample(jax.random.key(13), (NUM_SAMPLES,)), 6), law) > 1e-3


def test_draw_ignores_the_linearisation():
    sampler = SquaredVolume.from_matrix(GOLDEN_J, sample_size=2)
    key = jax.random.key(14)

    def linearise(rows):
        raise AssertionError("a prepared sampler does not look at the problem")

    rows, state = sampler.draw(key, sampler.init(key), linearise)
    assert state == ()
    np.testing.assert_array_equal(rows, sampler.sample(key))


def test_bad_input():
    rank_two = np.outer(np.arange(1, 6), np.ones(4)) + np.outer(np.ones(5), np.arange(4))
    for call, message in [
        (
            lambda: SquaredVolume.from_matrix(rank_two, 3),
            "rank of `J` when `damping` is 0: the rank is 2, got 3",
        ),
        (lambda: SquaredVolume.from_matrix(GOLDEN_J, 5), "the rank is 4, got 5"),
        (
            lambda: SquaredVolume.from_matrix(GOLDEN_J, 7, 0.1),
            "at most the number of rows of `J`, which is 6",
        ),
        (lambda: SquaredVolume.from_matrix(GOLDEN_J, 0), "`sample_size` must be at least 1, got 0"),
        (lambda: SquaredVolume.from_matrix(GOLDEN_J, 2, -0.1), "`damping` must be >= 0, got -0.1"),
        (lambda: SquaredVolume.from_matrix(GOLDEN_J[0], 1), "`J` must have 2 axes"),
        (lambda: SquaredVolume.from_matrix(GOLDEN_J * np.nan, 1), "`J` must be finite"),
        (lambda: SquaredVolume.from_matrix(GOLDEN_J, 2).log_prob([0, 1, 2]), "`rows` must have 2 entries"),
        (lambda: AdaptiveSquaredVolume(5, 6), "`sample_size` must be at most `num_rows`, which is 5; got 6"),
        (lambda: AdaptiveSquaredVolume(5, 2, -1.0), "`damping` must be >= 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="`rows` must hold whole numbers"):
        SquaredVolume.from_matrix(GOLDEN_J, 2).log_prob([0.0, 1.0])
    with pytest.raises(ValueError, match="must have `num_rows` = 5 rows, got 6"):
        AdaptiveSquaredVolume(5, 2).draw(
            jax.random.key(0), (), lambda rows: sg.Linearisation(jnp.zeros(6), sg.DenseJacobian(GOLDEN_J))
        )
    SquaredVolume.from_matrix(rank_two, 3, 1e-3)  # fine: any k at λ > 0
    with pytest.raises(eqx.EquinoxRuntimeError, match="rank of `J` when `damping` is 0"):
        eqx.filter_jit(lambda lam: SquaredVolume.from_matrix(rank_two, 3, lam).sample(jax.random.key(0)))(
            jnp.zeros(())
        )
