"""Subsets of a pool of configurations, and the weights that make up for the choice."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from chains import MARKS
from scipy import stats

import snapgrad.netket as sgn

pytestmark = MARKS


def test_subsets_and_weights_follow_squared_volumes():
    """Frequencies of all subsets by χ²; weights whose expected sums are exact."""
    c, k, lam = 6, 3, 0.05
    rows = np.random.default_rng(0).normal(size=(c, 4))
    rows[1] = rows[0] * 1.01  # nearly the same row twice
    K = jnp.asarray(rows @ rows.T)
    subsets = list(itertools.combinations(range(c), k))
    volumes = np.array([np.linalg.det(np.asarray(K)[np.ix_(s, s)] + lam * np.eye(k)) for s in subsets])
    p = volumes / volumes.sum()
    inclusion = np.array([p[[i in s for s in subsets]].sum() for i in range(c)])
    draws = 4000
    keys = jax.random.split(jax.random.key(0), draws)
    chosen, weights = jax.lax.map(lambda key: sgn.select(key, K, k, lam), keys, batch_size=500)
    order = {s: i for i, s in enumerate(subsets)}
    counts = np.bincount([order[tuple(sorted(map(int, s)))] for s in chosen], minlength=len(subsets))
    likely = p * draws > 5
    rest = np.append(counts[likely], counts[~likely].sum()), np.append(p[likely], p[~likely].sum()) * draws
    assert stats.chisquare(*rest).pvalue > 1e-3
    wanted = 1 / inclusion[np.asarray(chosen)]
    np.testing.assert_allclose(weights, wanted / wanted.sum(axis=1, keepdims=True), rtol=1e-9)
