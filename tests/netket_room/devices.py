"""Short runs of the driver on however many devices JAX has; as a script it stores them in a file.

NetKet spreads samples over all devices by itself, and draws the same ones on one device and on four as long
as four divide the chains. What four do not divide here are configurations: selected, given, or summed over.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from chains import HAMILTONIAN, HILBERT, MODELS, SAMPLES, L, flat, moved, nk
from flax import serialization

import snapgrad as sg
import snapgrad.netket as sgn

SAMPLER = nk.sampler.MetropolisLocal(HILBERT, n_chains=4, sweep_size=4)
BALANCED = nk.hilbert.Spin(0.5, L, total_sz=0)  # six configurations
SPRING = sg.Spring(1e-3, 0.8)


def state(name, **options):
    options |= {"n_samples": SAMPLES, "n_discard_per_chain": 0, "seed": 1, "sampler_seed": 2}
    return moved(nk.vqs.MCState(SAMPLER, MODELS[name], **options))


def saved():
    """A driver of three steps, as bytes; `resumed` makes two more of them."""
    driver = sgn.VMC(HAMILTONIAN, state("real"))
    driver.run(3, show_progress=False)
    return np.frombuffer(serialization.to_bytes(driver), np.uint8)


def resumed(content):
    driver = serialization.from_bytes(sgn.VMC(HAMILTONIAN, state("real")), content.tobytes())
    driver.run(2, show_progress=False)
    assert driver.step_count == 5
    return everything(driver)


def everything(driver):
    assert driver.rejected_steps == 0
    return np.concatenate([flat(driver.state.parameters), flat(driver.method_state)])


def after(driver):
    driver.run(3, show_progress=False)
    return everything(driver)


def uneven():
    """Three steps on 22 configurations that were not drawn from the state."""
    driver = sgn.VMC(HAMILTONIAN, 0.05, state("phase"), method=SPRING, mode="real", block_size=5)
    for step in range(3):
        rows = np.random.default_rng(step).integers(0, 2, (1, 22, L))
        driver.state._samples = jnp.asarray(2 * rows - 1, SAMPLER.dtype)
        driver.update_parameters(driver.compute_loss_and_update()[1])
    return everything(driver)


def weighted():
    vstate = state("real")
    lin = sgn.linearise(vstate, HAMILTONIAN, weights=np.arange(1.0, SAMPLES + 1))
    direction, _ = jax.jit(lambda lin, state: SPRING.propose(lin, state))(lin, SPRING.init(vstate.parameters))
    return np.concatenate([lin.residual, flat(direction)])


def summed():
    vstate = moved(nk.vqs.FullSumState(BALANCED, MODELS["few, complex"], seed=1))
    heisenberg = nk.operator.Heisenberg(BALANCED, nk.graph.Chain(L)).to_jax_operator()
    return after(sgn.VMC(heisenberg, 0.05, vstate, method=SPRING))


def selected():
    return after(sgn.VMC(HAMILTONIAN, state("phase", chunk_size=2), subselect=7))


RUNS = {
    "weighted": weighted,
    "summed": summed,
    "uneven": uneven,
    "selected": selected,
}


def results():
    return {name: run() for name, run in RUNS.items()}


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)
    assert jax.device_count() == 4
    assert state("real").samples.sharding.num_devices == 4
    content = saved()
    np.savez(sys.argv[1], saved=content, resumed=resumed(content), **results())
