"""`sg.kaczmarz` on consistent and noisy systems: what it converges to, why it stops, and how it goes on.

Nearly all of the time is compilation, so the tests share one shape, one sketch size and one number of steps.
"""

import jax
import jax.experimental.sparse
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import snapgrad as sg
from snapgrad import linalg

M, N, K = 24, 6, 3
SAME = {"sample_size": K, "steps": 4000, "check_every": 8}


def system(noise=0.0, dtype=float):
    rng = np.random.default_rng(0)
    A, x = rng.normal(size=(M, N)) * np.arange(1, N + 1) ** -0.5, rng.normal(size=N)
    return (jnp.asarray(v, dtype) for v in (A, A @ x + noise * rng.normal(size=M), x))


SKETCHES = {
    "rows": linalg.RowSketch(K),
    "gaussian": linalg.GaussianSketch(K),
    "sparse": linalg.SparseSignSketch(K, nonzeros=2),
    "hadamard": linalg.HadamardSketch(K),
    "sampler": sg.sampling.Uniform(M, K),
}


@pytest.mark.parametrize("name", SKETCHES)
def test_consistent(name):
    A, b, x = system()
    settings = {k: v for k, v in SAME.items() if k != "sample_size"}
    result = sg.kaczmarz(A, b, sketch=SKETCHES[name], tol=1e-9, **settings)
    assert result.reason == "tol" and result.rejected == 0
    assert result.history["residual"][-1] <= 1e-9 < result.history["residual"][-2]
    assert len({len(values) for values in result.history.values()}) == 1
    assert result.history["step"][-1] == result.state.step < 4000
    np.testing.assert_allclose(result.params, x, atol=1e-6)


def test_acceleration_pays_on_a_decaying_spectrum():
    """With the momentum and the step size of the theory, nothing tuned."""
    A, _, _ = system()
    A = A * jnp.arange(1.0, N + 1)[None, :] ** -3.5
    constants = sg.theory.exact.constants(A, sample_size=K, sampling="uniform")
    known = {"alpha": constants.alpha, "beta": constants.beta}
    momentum, step_size = sg.theory.momentum(**known), sg.theory.step_size("accelerated", **known)
    plain = sg.kaczmarz(A, A @ jnp.ones(N), **SAME)
    fast = sg.kaczmarz(A, A @ jnp.ones(N), **SAME, momentum=momentum, step_size=step_size)
    assert plain.reason == fast.reason == "tol"
    assert fast.state.step < 0.7 * plain.state.step


def test_the_default_tolerance_can_be_reached_in_float32():
    A, b, x = system(dtype=jnp.float32)
    result = sg.kaczmarz(A, b, **SAME)
    assert result.params.dtype == jnp.float32
    assert result.reason == "tol" and result.history["step"][-1] < 2000
    np.testing.assert_allclose(result.params, x, atol=1e-3)


def test_divergence_is_reported_and_the_last_finite_check_kept():
    A, b, _ = system()
    result = sg.kaczmarz(A, b, **SAME, step_size=1e30)
    assert result.reason == "non_finite"
    assert not np.isfinite(result.history["residual"][-1])
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves((result.params, result.state)))


def test_all_rows_of_a_noisy_system_is_least_squares_at_once():
    A, b, _ = system(noise=0.1)
    result = sg.kaczmarz(A, b, sample_size=M)
    assert result.reason == "least_squares" and result.history["step"].tolist() == [1]
    np.testing.assert_allclose(result.params, np.linalg.lstsq(A, b)[0], atol=1e-10)


def test_zero_right_hand_side_start_and_integers():
    A, b, x = system()
    assert sg.kaczmarz(A, jnp.zeros(M), **SAME).reason == "tol"
    result = sg.kaczmarz(A, b, params=x, **SAME)
    assert result.reason == "tol" and result.history["step"].tolist() == [8]


def test_the_same_key_gives_the_same_numbers():
    A, b, _ = system()
    one, two, other = (sg.kaczmarz(A, b, jax.random.key(seed), **SAME).params for seed in (3, 3, 4))
    assert bool(jnp.all(one == two)) and not bool(jnp.all(one == other))


# Going on, and traces ------------------------------------------------------------------------------------


def test_a_state_goes_on_exactly():
    """Also across a check that came early and a half of the tail that began before."""
    A, b, _ = system(noise=0.1)
    settings = {"sketch": linalg.RowSketch(K), "momentum": 0.3, "tail_averaging": True, "check_every": 10}
    whole = sg.kaczmarz(A, b, steps=70, **settings)
    first = sg.kaczmarz(A, b, steps=35, **settings)
    second = sg.kaczmarz(A, b, steps=35, state=first.state, **settings)
    jax.tree.map(np.testing.assert_array_equal, (whole.params, whole.state), (second.params, second.state))
    assert first.history["step"].tolist() == [10, 20, 30, 35]
    assert second.history["step"].tolist() == [45, 55, 65, 70]
    with pytest.raises(ValueError, match="give `params` or `state`, not both"):
        sg.kaczmarz(A, b, params=jnp.zeros(N), state=first.state, steps=35, **settings)
    with pytest.raises(ValueError, match=r"`state.* must have shape \(5,\)"):
        sg.kaczmarz(A[:, :5], b, state=first.state, steps=35, **settings)


def test_the_tail_is_the_mean_of_the_last_half():
    """At 35 steps: all iterates from the 16th on."""
    rng = np.random.default_rng(0)
    tail = sg.methods._kaczmarz.Tail(jnp.zeros(2), jnp.zeros(2), jnp.asarray(0), jnp.asarray(0))
    thetas = rng.normal(size=(35, 2))
    add = jax.jit(lambda tail, theta, step: tail.add(theta, step))
    for step, theta in enumerate(thetas, 1):
        tail = add(tail, theta, step)
        if step > 1:
            first = 1 << (step.bit_length() - 2)
            np.testing.assert_allclose(tail.mean, thetas[first - 1 : step].mean(axis=0), atol=1e-14)


def test_jit_and_vmap():
    """Over right-hand sides, damping and keys; checks that were not reached are NaN."""
    A, b, _ = system()
    bs, dampings, keys = jnp.stack([b, 2 * b]), jnp.array([0.0, 0.1]), jax.random.split(jax.random.key(1))

    @jax.jit
    def both(A):
        return jax.vmap(lambda b, lam, key: sg.kaczmarz(A, b, key, **SAME, damping=lam))(bs, dampings, keys)

    batch = both(A)
    assert batch.reason.tolist() == ["tol", "tol"]
    assert batch.history["step"].shape == batch.history["residual"].shape == (2, 500)
    for i in range(2):
        alone = sg.kaczmarz(A, bs[i], keys[i], **SAME, damping=dampings[i])
        np.testing.assert_allclose(batch.params[i], alone.params, rtol=1e-6)
        count = len(alone.history["step"])
        np.testing.assert_array_equal(batch.history["step"][i, :count], alone.history["step"])
        np.testing.assert_allclose(batch.history["residual"][i, :count], alone.history["residual"], rtol=1e-3)
        assert count < 500 and bool(jnp.all(jnp.isnan(batch.history["residual"][i, count:])))


# Systems without an exact solution -----------------------------------------------------------------------

DAMPING = 0.3


def tail(sketch, steps=8_000):
    """The mean of four tails."""
    A, b, _ = system(noise=1.0)
    args = {"damping": DAMPING, "steps": steps, "tail_averaging": True, "check_every": 1000}
    run = jax.jit(jax.vmap(lambda key: sg.kaczmarz(A, b, key, sketch=sketch, **args).params))
    return np.mean(run(jax.random.split(jax.random.key(0), 4)), axis=0)


def distance(one, other):
    """‖A(x − y)‖."""
    A, _, _ = system()
    return np.linalg.norm(np.asarray(A) @ (one - other))


@pytest.fixture(scope="module")
def targets():
    """The least-squares solution, and the solutions of AᵀW̄(b − Ax) = 0 under uniform rows."""
    A, b, _ = system(noise=1.0)
    W = sg.theory.expected_weight(A, sample_size=K, damping=DAMPING, sampling="uniform").mean
    A, b, W = np.asarray(A), np.asarray(b), np.asarray(W)
    return np.linalg.lstsq(A, b)[0], np.linalg.solve(A.T @ W @ A, A.T @ W @ b)


def test_tail_of_uniform_rows_is_weighted_least_squares(targets):
    """Not least squares: the distance to it does not shrink, the distance to the weighted solution does."""
    plain, weighted = targets
    gap, found = distance(plain, weighted), tail(linalg.RowSketch(K))
    assert distance(found, weighted) < 0.1 * gap
    assert distance(found, plain) > 0.9 * gap


@pytest.mark.parametrize("name", ["default", "svs"])
def test_tail_is_least_squares(targets, name):
    plain, weighted = targets
    A, _, _ = system()
    svs = sg.sampling.SquaredVolume.from_matrix(A, K, DAMPING)
    found = tail(linalg.GaussianSketch(K) if name == "default" else svs)
    assert distance(found, plain) < 0.1 * distance(plain, weighted)


def test_tail_averaging_takes_gaussian_sketches_by_default():
    A, b, _ = system(noise=1.0)
    args = {"steps": 20, "tail_averaging": True, "damping": DAMPING}
    default = sg.kaczmarz(A, b, sample_size=K, **args)
    named = sg.kaczmarz(A, b, sketch=linalg.GaussianSketch(K), **args)
    np.testing.assert_array_equal(default.params, named.params)


# What it refuses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "A",
    [
        scipy.sparse.csr_matrix(np.eye(3)),
        scipy.sparse.coo_array(np.eye(3)),
        jax.experimental.sparse.BCOO.fromdense(jnp.eye(3)),
    ],
    ids=lambda A: type(A).__name__,
)
def test_sparse_matrices_are_refused_in_words(A):
    with pytest.raises(TypeError, match=r"`A` must be a dense array.*\(3, 3\).*makes it dense"):
        sg.kaczmarz(A, jnp.ones(3))


def test_samplers_that_need_a_model_are_refused():
    A, b, _ = system()
    with pytest.raises(TypeError, match="prepare it on `A`"):
        sg.kaczmarz(A, b, sketch=sg.sampling.AdaptiveSquaredVolume(M, K))
