"""`sg.kaczmarz` on consistent and noisy systems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad import linalg


def system(noise=0.0, m=120, n=20, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    A = sg.problems.spectrum_matrix(keys[0], sg.problems.singular_values("power:1", n), m)
    x = jax.random.normal(keys[1], (n,))
    return A, A @ x + noise * jax.random.normal(keys[2], (m,)), x


SKETCHES = {
    "rows": linalg.RowSketch(8),
    "gaussian": linalg.GaussianSketch(8),
    "sparse": linalg.SparseSignSketch(8, nonzeros=4),
    "hadamard": linalg.HadamardSketch(8),
    "sampler": sg.sampling.Uniform(120, 8),
}


@pytest.mark.parametrize("name", SKETCHES)
def test_consistent(name):
    A, b, x = system()
    result = sg.kaczmarz(A, b, sketch=SKETCHES[name], tol=1e-9)
    assert result.reason == "converged"
    assert result.history["residual"][-1] <= 1e-9 < result.history["residual"][-2]
    assert result.history["step"][-1] == result.steps < 10_000
    np.testing.assert_allclose(result.solution, x, atol=1e-6)


def test_acceleration_pays_on_a_decaying_spectrum():
    A, b, _ = system(m=200, n=40)
    plain = sg.kaczmarz(A, b, sample_size=4, tol=1e-8)
    fast = sg.kaczmarz(A, b, sample_size=4, tol=1e-8, momentum=0.97, step_size=0.06)
    assert plain.reason == fast.reason == "converged"
    assert fast.steps < 0.7 * plain.steps


def test_tail_averaging_beats_the_noise():
    A, b, _ = system(noise=0.1)
    best = jnp.linalg.lstsq(A, b)[0]
    last = sg.kaczmarz(A, b, sample_size=8, damping=1e-2, steps=4000)
    mean = sg.kaczmarz(A, b, sample_size=8, damping=1e-2, steps=4000, tail_averaging=True)
    assert last.reason == mean.reason == "max_steps" and last.steps == mean.steps == 4000
    assert jnp.linalg.norm(A @ (mean.solution - best)) < 0.3 * jnp.linalg.norm(A @ (last.solution - best))


def test_all_rows_of_a_noisy_system_is_least_squares_at_once():
    A, b, _ = system(noise=0.1)
    result = sg.kaczmarz(A, b, sample_size=120)
    assert (result.reason, result.steps) == ("least_squares", 1)
    np.testing.assert_allclose(result.solution, jnp.linalg.lstsq(A, b)[0], atol=1e-10)


def test_divergence_is_reported_and_the_last_finite_iterate_kept():
    A, b, _ = system()
    result = sg.kaczmarz(A, b, sample_size=8, step_size=1e30, steps=2000, check_every=1)
    assert result.reason == "non_finite"
    assert bool(jnp.all(jnp.isfinite(result.solution)))


def test_zero_right_hand_side_and_start():
    A, _, x = system()
    assert sg.kaczmarz(A, jnp.zeros(120)).reason == "converged"
    result = sg.kaczmarz(A, A @ x, x0=x, steps=1)
    assert result.reason == "converged" and result.steps == 1


def test_the_same_key_gives_the_same_numbers():
    A, b, _ = system()
    one, two = (sg.kaczmarz(A, b, steps=50, key=jax.random.key(3)) for _ in range(2))
    other = sg.kaczmarz(A, b, steps=50, key=jax.random.key(4))
    assert bool(jnp.all(one.solution == two.solution)) and not bool(jnp.all(one.solution == other.solution))
