"""A molecule: its energy by a neural wavefunction.

Electrons in a molecule have a ground state, whose energy is the least that any wavefunction ψ has. So one
trains ψ, a network, to lower its energy. No wavefunction is below the exact energy: what is lower is
better. Energies are in hartree and lengths in bohr.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import snapgrad as sg

# %% A wavefunction with one parameter
# Any function log|ψ| of parameters and one configuration of the electrons will do. In helium both electrons
# see the nucleus, whose charge of two each of them screens from the other. By hand one finds that they see
# a charge of 27/16 = 1.6875, and an energy of −2.8477.


def screened(charge, x):
    """log|ψ| of electrons at x, [2, 3]."""
    return -charge * jnp.sum(jnp.linalg.norm(x, axis=-1))


helium = sg.molecules.VMC(screened, "He", params=jnp.array(1.0), walkers=256)
simple = sg.molecules.solve(helium, jax.random.key(0), steps=60)
print(f"charge {simple.params:.3f}")
energy, error = simple.evaluation.energy, simple.evaluation.error
print(f"energy {energy:.4f} ± {error:.4f}, exactly {helium.molecule.exact:.4f}")

# %% A network for hydrogen
# A FermiNet knows where electrons and nuclei meet, and starts from atomic orbitals, so no other program is
# needed before. This one is small enough for two cores; `sg.molecules.solve("H2", key)` chooses a size that
# suits the machine. The molecule may also be made by hand, atom by atom.
hydrogen = sg.molecules.molecule("H2")
network = sg.molecules.FermiNet(hydrogen, width=16, pair_width=4, layers=2, determinants=2)
problem = sg.molecules.VMC(network, walkers=256)
found = sg.molecules.solve(problem, jax.random.key(1), steps=200, record_every=4)
print(found.verdict)

# %% How it got there
# Each step averages over walkers, so the energy during training is noisy. The number to quote is the one
# above: after training the parameters are frozen, and the energy is averaged again with its error bar.
step, energy = found.history["step"], found.history["energy"]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.plot(step, np.maximum(1e3 * (energy - hydrogen.exact), 1e-2), lw=1)
axes.axhline(1.6, color="0.6", ls="--", label="chemical accuracy")
axes.set(yscale="log", xlabel="step", ylabel="mHa above the exact energy", title="H₂, 256 walkers")
axes.legend(frameon=False)
figure.savefig("hydrogen.png", dpi=150)

# %% Where the electrons are
# The walkers are what the wavefunction says: places of electrons, drawn from |ψ|². Between the two nuclei
# there are more of them than two atoms side by side would have, and that is the bond. One atom has the part
# (1 + a) exp(−2a)/2 of its electron beyond a plane at distance a from its nucleus.
places = np.asarray(found.state.sampler.positions).reshape(-1, 3)
ends = hydrogen.nuclei[:, np.argmax(np.ptp(hydrogen.nuclei, axis=0))]
along = places[:, np.argmax(np.ptp(hydrogen.nuclei, axis=0))]
between = np.mean((along > ends.min()) & (along < ends.max()))
apart = 0.5 - (1 + np.ptp(ends)) * np.exp(-2 * np.ptp(ends)) / 2
print(f"between the planes of the nuclei: {100 * between:.0f} % of the electrons")
print(f"of two atoms side by side: {100 * apart:.0f} %")
