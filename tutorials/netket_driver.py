"""Train a neural quantum state with NetKet, swapping only the driver.

    python tutorials/netket_driver.py            # a chain of 10 spins, a minute or two
    python tutorials/netket_driver.py --small    # a chain of 4, for a quick look

Needs NetKet: pip install 'snapgrad[netket]'.
"""

import sys

import netket as nk
import numpy as np
import optax

import snapgrad as sg
import snapgrad.netket as sgn

SMALL = "--small" in sys.argv
SITES, SAMPLES, STEPS = (4, 64, 40) if SMALL else (10, 256, 200)

# 1. The physics is NetKet's: Hilbert space, Hamiltonian, ansatz, sampler.
hilbert = nk.hilbert.Spin(0.5, SITES)
hamiltonian = nk.operator.IsingJax(hilbert, nk.graph.Chain(SITES), h=1.0, J=-1.0)
sampler = nk.sampler.MetropolisLocal(hilbert, n_chains=16)


def new_state():
    """The same initial state for every run."""
    model = nk.models.RBM(alpha=4, param_dtype=float)
    return nk.vqs.MCState(sampler, model, n_samples=SAMPLES, seed=1, sampler_seed=2)


# 2. The driver is ours, and takes any method of snapgrad; `damping` is what NetKet calls `diag_shift`. Where
#    a hyperparameter changes during the run, give a function from the step to the method of that step.
#    `max_norm` bounds a step while the state is still far off.
vstate = new_state()
damping = optax.exponential_decay(1e-2, STEPS, 0.1)
driver = sgn.VMC(
    hamiltonian, 0.02, vstate, method=lambda step: sg.Spring(damping(step), momentum=0.8), max_norm=1.0
)
print(driver.info())
log = nk.logging.RuntimeLog()
driver.run(STEPS, out=log, show_progress=not SMALL)

energies = np.real(log.data["Energy"]["Mean"])
exact = -2 / np.sin(np.pi / (2 * SITES))
found = vstate.expect(hamiltonian)
print(f"SPRING: {found}, exact {exact:.6f}; steps refused: {driver.rejected_steps}")

# 3. One step by hand. A linearisation is what every method of snapgrad understands: the residual
#    r = 2(E_loc − ⟨E⟩)/√k and the centred rows of ∂log ψ, which are never formed.
lin = sgn.linearise(vstate, hamiltonian)
method = sg.SNG(damping=1e-3)
direction, _ = method.direction(lin, method.init(vstate.parameters))
print(f"{lin.jacobian.shape[0]} rows, {lin.jacobian.shape[1]} parameters; how their kernel is made:")
samples = vstate.samples.reshape(-1, SITES).astype(float)
print(sg.jacobian(lambda p, x: vstate.model.apply({"params": p}, x), vstate.parameters, samples).explain())

# 4. Without sampling noise: a full-summation state, in either space, with any parameters.
full = nk.vqs.FullSumState(hilbert, nk.models.RBM(alpha=2, param_dtype=complex), seed=1)
exact_driver = sgn.VMC(hamiltonian, 0.1, full, method=sg.Spring(1e-2, 0.5), holomorphic=True, max_norm=0.1)
exact_driver.run(STEPS, show_progress=False)
full_energy = float(full.expect(hamiltonian).mean.real)
print(f"full summation: {full_energy:.6f}")

# 5. More samples than rows: a pool of configurations, of which each step keeps the part that spans most,
#    with the weights that keep every mean unbiased. Only those need local energies.
pooled = new_state()
selective = sgn.VMC(hamiltonian, 0.02, pooled, method=sg.Spring(1e-3, 0.8), subselect=SAMPLES // 2)
selective.run(STEPS // 4, show_progress=False)
print(f"half of the configurations a step: {pooled.expect(hamiltonian)}")
