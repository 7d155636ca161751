"""Rows of log ψ: weights, the gradient of the energy, the null space."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chains import HAMILTONIAN, HILBERT, MARKS, L, flat, gap, nk, random_like, sampled, summed

import snapgrad as sg
import snapgrad.netket as sgn

pytestmark = MARKS


@jax.jit
def products(lin, phi):
    """K, J, Jᵀr and Jφ, compiled together and once for all tests of one shape."""
    jac = lin.jacobian
    return jac.gram(), jac.dense(), jac.rmv(lin.residual), jac.mv(phi)


@pytest.mark.parametrize("name", [pytest.param("real", marks=pytest.mark.slow), "phase"])
def test_weighted_samples_as_netkets_parameter_space(name):
    from netket._src.ngd.sr_srt_common import sr

    vstate = sampled(name)
    weights = np.random.default_rng(0).uniform(0.2, 2.0, vstate.n_samples)
    lin = sgn.linearise(vstate, HAMILTONIAN, weights=weights, lift=1.0)
    method = sg.SNG(1e-3)
    direction, _ = method.direction(lin, method.init(vstate.parameters))
    wanted, _, _ = sr(
        vstate._apply_fun,
        vstate.local_estimators(HAMILTONIAN).data,
        vstate.parameters,
        vstate.model_state,
        vstate.samples.reshape(-1, L),
        diag_shift=1e-3,
        solver_fn=nk.optimizer.solver.cholesky,
        mode="real" if name == "real" else "complex",
        weights=jnp.asarray(weights),
    )
    assert gap(direction, wanted) < 1e-10


def test_a_weight_of_two_is_a_sample_twice():
    vstate = sampled("mixed")
    samples = vstate.samples.reshape(-1, L)
    counts = jnp.array([1, 2, 1, 3, 0, 1, 1, 1, 2, 0, 0, 0] + 12 * [1])  # as many in all: one compilation
    weighted = sgn.linearise(vstate, HAMILTONIAN, weights=counts)
    repeated = sgn.linearise(
        sgn._local.with_samples(vstate, jnp.repeat(samples, counts, axis=0)), HAMILTONIAN
    )
    phi = random_like(vstate.parameters, 0)
    a, b = (products(lin, phi) for lin in (weighted, repeated))
    assert gap(a[2], b[2]) < 1e-12
    np.testing.assert_allclose(np.linalg.norm(a[3]), np.linalg.norm(b[3]), rtol=1e-12)


@pytest.mark.parametrize("name", [pytest.param("real", marks=pytest.mark.slow), "mixed"])
def test_the_gradient_is_that_of_the_energy(name):
    vstate = summed(name)
    lin = sgn.linearise(vstate, HAMILTONIAN)
    eps, gradient = 1e-5, products(lin, vstate.parameters)[2]
    along = random_like(vstate.parameters, 8)
    start = vstate.parameters

    def energy(t):
        vstate.parameters = jax.tree.map(lambda p, d: p + t * d, start, along)
        return float(vstate.expect(HAMILTONIAN).mean.real)

    slope = (energy(eps) - energy(-eps)) / (2 * eps)
    np.testing.assert_allclose(flat(gradient) @ flat(along), slope, rtol=1e-7)


def test_an_amplitude_that_underflows_is_left_out():
    class Forbidden(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = nk.models.RBM(alpha=1, param_dtype=float)(x)
            return inner - 800.0 * (jnp.sum(x, axis=-1) == L)

    vstate = nk.vqs.FullSumState(HILBERT, Forbidden(), seed=0)
    assert float(vstate.probability_distribution().min()) == 0
    lin = sgn.linearise(vstate, HAMILTONIAN)
    assert np.isfinite(lin.residual).all() and np.isfinite(products(lin, vstate.parameters)[0]).all()
    assert np.sum(np.abs(lin.residual) == 0) == 1


@pytest.mark.parametrize(
    ("name", "weighted"),
    [pytest.param("real", True, marks=pytest.mark.slow), ("mixed", False), ("mixed", True)],
)
def test_lift_acts_on_the_null_space_of_each_block(name, weighted):
    vstate = sampled(name)
    w = np.random.default_rng(0).uniform(0.2, 2.0, vstate.n_samples) if weighted else None
    plain = sgn.linearise(vstate, HAMILTONIAN, weights=w)
    lifted = sgn.linearise(vstate, HAMILTONIAN, weights=w, lift=2.0)
    K, J = map(np.asarray, products(plain, vstate.parameters)[:2])
    np.testing.assert_allclose(K, J @ J.T, atol=1e-12)
    K_lifted = np.asarray(products(lifted, vstate.parameters)[0])
    root = np.full(vstate.n_samples, vstate.n_samples**-0.5) if w is None else np.sqrt(w / w.sum())
    blocks = np.eye(K.shape[0] // root.size)
    for block in blocks:
        null = np.kron(root, block)
        np.testing.assert_allclose(K @ null, 0, atol=1e-12)
        np.testing.assert_allclose(plain.residual @ null, 0, atol=1e-12)
        added = 2.0 * np.trace(K) / K.shape[0]
        np.testing.assert_allclose(K_lifted @ null, added * null, atol=1e-10)
    rest = K_lifted - K
    assert np.linalg.matrix_rank(rest, tol=1e-10) == len(blocks)
