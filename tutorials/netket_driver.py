"""Train a neural quantum state with NetKet, swapping only the driver.

NetKet has the Hilbert space, the Hamiltonian, the ansatz and the sampler, and snapgrad takes the steps.
NetKet comes with the extra `netket` of the installation. The chain has 10 spins; with `--small` it has 4, for
a quick look.
"""

import sys

import netket as nk
import numpy as np
import optax

import snapgrad as sg
import snapgrad.netket as sgn

SMALL = "--small" in sys.argv
SITES, SAMPLES, STEPS = (4, 64, 40) if SMALL else (10, 256, 200)

# %% The physics
# A chain of spins in a transverse field, whose exact energy is known.
hilbert = nk.hilbert.Spin(0.5, SITES)
hamiltonian = nk.operator.IsingJax(hilbert, nk.graph.Chain(SITES), h=1.0, J=-1.0)
sampler = nk.sampler.MetropolisLocal(hilbert, n_chains=16)


def new_state():
    """The same initial state for every run."""
    model = nk.models.RBM(alpha=4, param_dtype=float)
    return nk.vqs.MCState(sampler, model, n_samples=SAMPLES, seed=1, sampler_seed=2)


# %% The driver
# It has nothing to set: it judges each step on the next samples, and chooses step size, momentum and damping
# from that. What it chose is in the log.
vstate = new_state()
driver = sgn.VMC(hamiltonian, vstate)
print(driver.info())
log = nk.logging.RuntimeLog()
driver.run(STEPS, out=log, show_progress=not SMALL)

exact = -2 / np.sin(np.pi / (2 * SITES))
found = vstate.expect(hamiltonian)
print(f"without settings: {found}, exact {exact:.6f}; steps refused: {driver.rejected_steps}")
for name in ("step_size", "momentum", "curvature"):
    first, last = np.asarray(log.data[name]["value"])[[2, -1]]
    print(f"{name}: {first:.3g} at the start, {last:.3g} at the end")

# %% Another method, with settings
# Any other method of snapgrad runs as well, with settings of your own; `damping` is what NetKet calls
# `diag_shift`. Where one changes during the run, give a function from the step to the method of that step.
tuned = new_state()
damping = optax.exponential_decay(1e-2, STEPS, 0.1)
method = lambda step: sg.Spring(damping(step), momentum=0.8)  # noqa: E731
sgn.VMC(hamiltonian, 0.02, tuned, method=method, max_norm=1.0).run(STEPS, show_progress=False)
print(f"SPRING with settings: {tuned.expect(hamiltonian)}")

# %% One step by hand
# A linearisation is what every method of snapgrad understands: the residual
# r = 2(E_loc − ⟨E⟩)/√k and the centred rows of ∂log ψ, which are never formed.
lin = sgn.linearise(vstate, hamiltonian)
method = sg.SNG(damping=1e-3)
direction, _ = method.direction(lin, method.init(vstate.parameters))
print(f"{lin.jacobian.shape[0]} rows, {lin.jacobian.shape[1]} parameters; how their kernel is made:")
samples = vstate.samples.reshape(-1, SITES).astype(float)
print(sg.jacobian(lambda p, x: vstate.model.apply({"params": p}, x), vstate.parameters, samples).explain())

# %% Without sampling noise
# A full-summation state, in either space, with any parameters.
full = nk.vqs.FullSumState(hilbert, nk.models.RBM(alpha=2, param_dtype=complex), seed=1)
sgn.VMC(hamiltonian, full, holomorphic=True).run(STEPS, show_progress=False)
full_energy = float(full.expect(hamiltonian).mean.real)
print(f"full summation: {full_energy:.6f}")

# %% More samples than rows
# A pool of configurations, of which each step keeps the part that spans most,
# with the weights that keep every mean unbiased. Only those need local energies.
pooled = new_state()
selective = sgn.VMC(hamiltonian, pooled, subselect=SAMPLES // 2)
selective.run(STEPS // 4, show_progress=False)
print(f"half of the configurations a step: {pooled.expect(hamiltonian)}")
