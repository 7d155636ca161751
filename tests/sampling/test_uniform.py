"""Uniform samplers by distribution, and the sketches by their defining properties."""

import math
from itertools import combinations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

import snapgrad as sg
from snapgrad import linalg


@pytest.mark.parametrize(("m", "k"), [(6, 1), (6, 3), (7, 6), (5, 5), (40, 2)])
def test_uniform_subsets(m, k):
    """Every subset equally often (χ²), no row twice."""
    count = 60 * math.comb(m, k)
    rows = np.sort(
        np.asarray(
            jax.jit(sg.sampling.Uniform(m, k).sample, static_argnums=1)(jax.random.key(m * k), (count,))
        )
    )
    assert rows.shape == (count, k) and rows.min() >= 0 and rows.max() < m
    index = {subset: i for i, subset in enumerate(combinations(range(m), k))}
    observed = np.bincount([index[tuple(row)] for row in rows], minlength=len(index))
    assert len(index) == 1 or chisquare(observed).pvalue > 1e-3


def test_large_subsets_by_sorting():
    rows = np.asarray(sg.sampling.Uniform(500, 400).sample(jax.random.key(0)))
    assert len(set(rows.tolist())) == 400 and rows.max() < 500
    draws = jax.jit(jax.vmap(lambda key: linalg.random_subset(key, 70, 69)))
    assert 69**2 > 64 * 70  # the size from which it sorts
    rows = draws(jax.random.split(jax.random.key(1), 700))
    assert chisquare(700 - np.bincount(np.asarray(rows).ravel(), minlength=70)).pvalue > 1e-3


def test_with_replacement():
    sampler = sg.sampling.Uniform(4, 8, replace=True)
    rows = np.asarray(sampler.sample(jax.random.key(0), (500,)))
    assert rows.shape == (500, 8)
    assert chisquare(np.bincount(rows.ravel(), minlength=4)).pvalue > 1e-3


def test_two_batches_are_independent():
    sampler = sg.sampling.TwoBatches(sg.sampling.Uniform(3, 1))

    def draw(key):
        return sampler.draw(key, sampler.init(key), lambda batch: None)[0]

    pairs = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(3), 4000))
    joint = 3 * np.asarray(pairs.first)[:, 0] + np.asarray(pairs.second)[:, 0]
    assert chisquare(np.bincount(joint, minlength=9)).pvalue > 1e-3


def test_all_rows():
    rows, state = sg.sampling.AllRows(5).draw(jax.random.key(0), (), lambda batch: None)
    assert rows.tolist() == [0, 1, 2, 3, 4] and state == ()


SKETCHES = [linalg.GaussianSketch(6), linalg.SparseSignSketch(6, nonzeros=3), linalg.HadamardSketch(6)]


@pytest.mark.parametrize("sketch", SKETCHES, ids=lambda s: type(s).__name__)
def test_sketches_preserve_norms_on_average(sketch):
    """E[ΩᵀΩ] = I, and apply = the matrix applied."""
    A, b = jnp.asarray(np.random.default_rng(0).normal(size=(11, 4))), jnp.arange(11.0)
    keys = jax.random.split(jax.random.key(1), 2000)
    omegas = np.asarray(jax.jit(jax.vmap(lambda key: sketch.matrix(key, 11)))(keys))
    moments = omegas.transpose(0, 2, 1) @ omegas
    error = moments.std(0) / np.sqrt(len(keys))
    assert np.all(np.abs(moments.mean(0) - np.eye(11)) <= 5 * error + 1e-12)
    A_s, b_s = eqx.filter_jit(sketch.apply)(keys[0], A, b)
    np.testing.assert_allclose(A_s, omegas[0] @ np.asarray(A), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(b_s, omegas[0] @ np.arange(11.0), rtol=1e-12, atol=1e-14)


def test_sparse_sign_and_hadamard_structure():
    omega = np.asarray(matrix(linalg.SparseSignSketch(6, nonzeros=3), 50))
    assert np.all(np.count_nonzero(omega, axis=0) == 3)
    np.testing.assert_allclose(np.sum(omega**2, axis=0), np.ones(50))
    full = np.asarray(matrix(linalg.HadamardSketch(16), 16))
    np.testing.assert_allclose(full @ full.T, np.eye(16), atol=1e-14)


@eqx.filter_jit
def matrix(sketch, num_rows):
    return sketch.matrix(jax.random.key(0), num_rows)
