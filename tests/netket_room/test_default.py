"""`sgn.VMC(hamiltonian, vstate)`: it trains in any unit, looks back, refuses, and goes on exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chains import (
    CHAIN,
    HAMILTONIAN,
    MARKS,
    MODELS,
    SAMPLES,
    draw,
    flat,
    gap,
    nk,
    random_like,
    sampled,
    summed,
)
from flax import serialization

import snapgrad as sg
import snapgrad.netket as sgn

pytestmark = MARKS
SAMPLER = nk.sampler.MetropolisLocal(HAMILTONIAN.hilbert, n_chains=4, sweep_size=4)


def chain_state(model=MODELS["real"]):
    options = {"n_samples": SAMPLES, "n_discard_per_chain": 0, "seed": 1, "sampler_seed": 2}
    return nk.vqs.MCState(SAMPLER, model, **options)


def test_it_trains_with_nothing_set():
    vstate = summed("holomorphic")
    driver, log = sgn.VMC(HAMILTONIAN, vstate), nk.logging.RuntimeLog()
    driver.run(100, out=log, show_progress=False)
    exact = np.linalg.eigvalsh(CHAIN.to_dense())[0]
    assert abs(float(vstate.expect(HAMILTONIAN).mean.real) - exact) < 1e-4 * abs(exact)
    assert driver.rejected_steps == 0 and repr(driver).startswith("VMC(FisherSpring(radius=")
    for name in ("step_size", "momentum", "length", "gain", "curvature"):
        assert len(log.data[name]["value"]) == 100
    lengths = np.asarray(log.data["length"]["value"])
    assert lengths.max() <= 0.08 * (1 + 1e-9) and lengths[-1] < 0.01


def test_the_unit_of_energy_does_not_matter():
    found = []
    for factor in (1.0, 100.0, 0.01):
        vstate = sampled("phase")
        driver = sgn.VMC((factor * CHAIN).to_jax_operator(), vstate)
        for step in range(5):
            draw(vstate, step)
            driver.update_parameters(driver.compute_loss_and_update()[1])
        found.append(vstate.parameters)
        assert driver.method_state.measured > 0 and gap(found[-1], found[0]) < 1e-9


@pytest.mark.parametrize(
    ("make", "hamiltonian", "chunk"),
    [
        (lambda: sampled("phase"), CHAIN.to_numba_operator(), None),  # it lists its connections on the host
        (lambda: sampled("phase"), HAMILTONIAN, 2),
        (lambda: summed("mixed"), HAMILTONIAN, None),
    ],
)
def test_the_residual_elsewhere_is_that_of_a_state_there(make, hamiltonian, chunk):
    """With the samples, or weights, of the state here."""
    vstate = make()
    step = random_like(vstate.parameters, 2, 0.1)
    vstate.chunk_size = chunk
    lin = sgn.linearise(vstate, hamiltonian)
    found = jax.jit(lambda lin, step: lin.residual_at(step))(lin, step)
    zero = jax.tree.map(jnp.zeros_like, step)
    np.testing.assert_allclose(lin.residual_at(zero), lin.residual, atol=1e-12)
    w = 1 / SAMPLES
    if isinstance(vstate, nk.vqs.FullSumState):
        w = np.abs(vstate.to_array()) ** 2
    samples = vstate.samples if hasattr(vstate, "samples") else None
    vstate.parameters = jax.tree.map(lambda p, s: p - s, vstate.parameters, step)
    if samples is None:
        psi = vstate.to_array()
        local = CHAIN.to_dense() @ psi / psi
    else:
        vstate._samples = samples
        local = np.ravel(vstate.local_estimators(HAMILTONIAN).data)
    wanted = 2 * np.sqrt(w) * (local - np.sum(w * local))
    np.testing.assert_allclose(found, np.stack([wanted.real, wanted.imag], 1).ravel(), atol=1e-10)
    vstate.chunk_size = None


def test_a_step_that_is_not_finite_is_refused_and_the_next_one_is_taken():
    vstate = summed("mixed")
    driver = sgn.VMC(HAMILTONIAN, vstate)
    driver.run(2, show_progress=False)
    kept = jax.tree.map(np.asarray, (vstate.parameters, driver.method_state))
    _, direction = driver.compute_loss_and_update()
    with pytest.warns(RuntimeWarning, match="step 2 was not finite"):
        driver.update_parameters(jax.tree.map(lambda x: x * jnp.nan, direction))
    jax.tree.map(np.testing.assert_array_equal, kept, (vstate.parameters, driver.method_state))
    driver.run(1, show_progress=False)
    assert driver.rejected_steps == 1 and driver.method_state.step == 3


def test_it_goes_on_exactly_from_a_checkpoint():
    driver = sgn.VMC(HAMILTONIAN, chain_state())
    driver.run(3, show_progress=False)
    saved = serialization.to_bytes(driver)
    driver.run(3, show_progress=False)
    other = serialization.from_bytes(sgn.VMC(HAMILTONIAN, chain_state()), saved)
    other.run(3, show_progress=False)
    assert gap(other.state.parameters, driver.state.parameters) == 0
    jax.tree.map(np.testing.assert_array_equal, other.method_state, driver.method_state)


def test_single_precision_and_a_part_of_the_samples():
    vstate = chain_state(nk.models.RBM(alpha=1, param_dtype=np.float32))
    before = flat(vstate.parameters)
    driver = sgn.VMC(HAMILTONIAN, vstate, subselect=12)
    driver.run(4, show_progress=False)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(vstate.parameters))
    assert driver.rejected_steps == 0 and driver.method_state.measured > 0
    assert np.linalg.norm(flat(vstate.parameters) - before) > 1e-3


def test_what_chooses_no_step_size_needs_one():
    vstate = summed("mixed")
    with pytest.raises(
        TypeError, match=r"`optimizer` must be a learning rate.*for Spring, which chooses no step"
    ):
        sgn.VMC(HAMILTONIAN, vstate, method=sg.Spring(1e-3, 0.9))
    with pytest.raises(TypeError, match="`variational_state` must be"):
        sgn.VMC(HAMILTONIAN)
    by_name = sgn.VMC(HAMILTONIAN, variational_state=vstate)
    chosen = sgn.VMC(HAMILTONIAN, vstate, method=sg.methods.FisherSpring())
    assert repr(by_name) == repr(chosen) == repr(sgn.VMC(HAMILTONIAN, vstate))
    assert "Spring(damping=0.001, momentum=0.9" in repr(sgn.VMC(HAMILTONIAN, 0.1, vstate))
