"""Spin chains: their settings, Hamiltonians, ansätze and exact ground state energies."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from scipy.sparse.linalg import eigsh

from .. import _memory
from .._checks import one_of, positive_int, real_scalar

Name: TypeAlias = Literal["tfim", "heisenberg", "j1j2"]
NAMES: tuple[Name, ...] = get_args(Name)
MOST_STATES = 200_000  # beyond this many configurations exact diagonalisation takes minutes
MOST_SITES = 4096  # beyond this many the Bethe equations take long


@dataclass(frozen=True)
class Training:
    """What is trained and how.

    - `size`: sites of the periodic chain; `field`: h of the Ising chain; `j2`: second coupling of J1–J2.
    - `alpha`: hidden units per site of the restricted Boltzmann machine (of its translation-symmetric form,
      for the Heisenberg and J1–J2 chains).
    - `samples`, `chains`, `steps`, `step_size`, `momentum`: k, Markov chains, iterations, η, and μ of SPRING.
    - `damping`: λ at the first and at the last step, geometric between them.
    - `max_norm`: bound on the norm of a step.
    - `final_samples`: of the energy after training.
    """

    size: int
    field: float = 1.0
    j2: float = 0.2
    alpha: int = 4
    samples: int = 512
    chains: int = 256
    steps: int = 300
    step_size: float = 0.02
    momentum: float = 0.8
    damping: tuple[float, float] = (1e-2, 1e-4)
    max_norm: float | None = 0.1
    final_samples: int = 8192
    seed: int = 0


DEFAULTS: dict[Name, Training] = {
    "tfim": Training(10, samples=256, chains=16, steps=200, damping=(1e-3, 1e-3), max_norm=None),
    "heisenberg": Training(22, alpha=8),
    "j1j2": Training(14),
}


def tfim_energy(size: int, field: float) -> float:
    """The ground state energy of −Σ σᶻσᶻ − h Σ σˣ on a ring, by free fermions."""
    momenta = (2 * np.arange(size) + 1) * np.pi / size
    return float(-np.sum(np.sqrt(1 + field**2 - 2 * field * np.cos(momenta))))


def heisenberg_energy(size: int) -> float:
    """The ground state energy of Σ σ·σ on a ring of even size, by the Bethe ansatz.

    N θ₁(x_j) = 2π I_j + Σ_l θ₂(x_j − x_l) with θ_n(x) = 2 arctan(2x/n) and I_j = −(M − 1)/2 … (M − 1)/2, for
    M = N/2 rapidities; E = N − 8 Σ_j 1/(1 + 4x_j²).
    """
    half = size // 2
    numbers = np.arange(half) - (half - 1) / 2
    x = np.tan(np.pi * numbers / size) / 2
    for _ in range(10_000):
        phases = 2 * np.arctan(x[:, None] - x[None, :])
        new = np.tan((2 * np.pi * numbers + phases.sum(axis=1)) / (2 * size)) / 2
        if np.max(np.abs(new - x)) < 1e-14 * (1 + np.max(np.abs(x))):
            break
        x = (x + new) / 2
    return float(size - 8 * np.sum(1 / (1 + 4 * x**2)))


@cache
def exact_energy(name: Name, training: Training) -> float | None:
    """E₀ from a closed form, or by exact diagonalisation where that is feasible, else None."""
    if name == "tfim":
        return tfim_energy(training.size, training.field)
    if name == "heisenberg":
        return heisenberg_energy(training.size) if training.size <= MOST_SITES else None
    hamiltonian = hamiltonian_of(name, training)
    if hamiltonian.hilbert.n_states > MOST_STATES:
        return None
    start = np.ones(hamiltonian.hilbert.n_states)
    return float(eigsh(hamiltonian.to_sparse(), k=1, which="SA", v0=start, return_eigenvectors=False)[0])


def checked(name: Any, training: Training) -> tuple[Name, Training]:
    """The same, with no more chains than samples; `ValueError` if a chain cannot have these settings."""
    one_of("name", name, NAMES)
    least = {"tfim": 3, "heisenberg": 4, "j1j2": 6}[name]
    if positive_int("size", training.size) < least or (name != "tfim" and training.size % 2):
        raise ValueError(
            f"`size` must be {'at least' if name == 'tfim' else 'an even number of at least'} {least} "
            f"for {name}, got {training.size}."
        )
    for field in ("alpha", "samples", "chains", "steps", "final_samples"):
        positive_int(field, getattr(training, field))
    for field in ("field", "step_size", "momentum"):
        real_scalar(field, getattr(training, field), low=0, below=1 if field == "momentum" else np.inf)
    for value in training.damping:
        real_scalar("damping", value, low=0)
    _memory.require(
        16 * training.alpha * training.size * (1 if name != "tfim" else training.size),
        f"a model with {training.alpha} hidden units for each of {training.size} sites",
        "a smaller `size` or `alpha` takes less",
    )
    if training.chains > training.samples:
        training = replace(training, chains=training.samples)
    return name, training


def hamiltonian_of(name: Name, training: Training) -> Any:
    """The chain's Hamiltonian."""
    import netket as nk

    if name == "tfim":
        ising: Any = nk.operator.IsingJax
        hilbert = nk.hilbert.Spin(0.5, training.size)
        return ising(hilbert, nk.graph.Chain(training.size), h=training.field, J=-1.0)
    hilbert = nk.hilbert.Spin(0.5, training.size, total_sz=0)
    # Marshall's rotation of every other spin: without frustration the ground state is then positive.
    if name == "heisenberg":
        return nk.operator.Heisenberg(
            hilbert, nk.graph.Chain(training.size), sign_rule=True
        ).to_jax_operator()
    graph = nk.graph.Chain(training.size, max_neighbor_order=2)
    couplings = {"J": [1.0, training.j2], "sign_rule": [True, False]}
    return nk.operator.Heisenberg(hilbert, graph, **couplings).to_jax_operator()


def state_of(name: Name, training: Training, hilbert: Any) -> Any:
    """A restricted Boltzmann machine with the sampler that fits the chain."""
    import netket as nk

    chain = nk.graph.Chain(training.size)
    if name == "tfim":
        sampler = nk.sampler.MetropolisLocal(hilbert, n_chains=training.chains)
        model = nk.models.RBM(alpha=training.alpha, param_dtype=float)
    else:
        sampler = nk.sampler.MetropolisExchange(hilbert, graph=chain, d_max=2, n_chains=training.chains)
        kind = float if name == "heisenberg" else complex
        model = nk.models.RBMSymm(chain.translation_group(), alpha=training.alpha, param_dtype=kind)
    options: dict[str, Any] = {"seed": training.seed, "sampler_seed": training.seed + 1}
    return nk.vqs.MCState(sampler, model, n_samples=training.samples, n_discard_per_chain=2, **options)
