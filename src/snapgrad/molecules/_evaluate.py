"""What a trained wavefunction is worth: its energy with an honest error bar, and whether it has converged."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import Given, positive_int
from .._contracts import Params
from ._molecule import Molecule
from ._problem import VMC
from ._sampler import Metropolis, WalkerState

LEAST_BLOCKS = 16
"""Averages over longer blocks, fewer than this, say too little of an error."""
CHEMICAL = 1.6e-3
"""Chemical accuracy in hartree."""


class Evaluation(NamedTuple):
    """The energy of a wavefunction with frozen parameters, in hartree.

    - `energy`, `error`: the mean of the local energies and its standard error, by `sg.molecules.blocking`.
    - `variance`: the variance of the local energies, which is zero for an exact eigenfunction.
    - `v_score`: electrons × variance / energy², which compares systems of different size.
    - `acceptance`: the part of the moves of walkers that was accepted.
    - `correlation`: how many successive steps carry as much information as one independent step.
    - `walkers`, `steps`: how many walkers were averaged, and how many times each was counted.
    - `dropped`: how many local energies were not finite and are left out.

    ```python
    problem = sg.molecules.VMC(lambda p, x: -p * jnp.sum(jnp.linalg.norm(x, axis=-1)), "H",
                               params=jnp.array(1.0), walkers=16)
    found = sg.molecules.evaluate(problem, problem.params, jax.random.key(0), steps=20)
    found.energy, found.variance                                                       # -0.5, 0
    ```
    """

    energy: float
    error: float
    variance: float
    v_score: float
    acceptance: float
    correlation: float
    walkers: int
    steps: int
    dropped: int


def evaluate(
    problem: VMC,
    params: Params,
    key: PRNGKeyArray,
    *,
    steps: int = 200,
    state: WalkerState | None = None,
    moves: int | None = None,
) -> Evaluation:
    """The energy at given parameters, with the width of moves frozen and no local energy clipped.

    **Arguments:**

    - `problem`, `params`: a `sg.molecules.VMC` and trained parameters, such as `result.params`.
    - `key`: randomness of the moves.
    - `steps`: how many times all walkers are counted; a fifth as many go before, to settle.
    - `state`: the state of the walkers, such as `result.state.sampler`; fresh ones by default, whose width of
      moves adapts before the first count.
    - `moves`: how often walkers move between two counts; by default as often as in the problem.

    **Returns:** an `Evaluation`. `FloatingPointError` if no walker has a finite energy at some step.

    ```python
    problem = sg.molecules.VMC(lambda p, x: -p * jnp.sum(jnp.linalg.norm(x, axis=-1)), "H",
                               params=jnp.array(0.9), walkers=16)
    sg.molecules.evaluate(problem, problem.params, jax.random.key(0), steps=20).energy  # about -0.495
    ```
    """
    if positive_int("steps", steps) < 2:
        raise ValueError(f"`steps` must be at least 2 for an error bar, got {steps}.")
    sampler = problem.default_sampler(params)
    if moves is not None:
        sampler = eqx.tree_at(lambda s: s.moves, sampler, jnp.asarray(positive_int("moves", moves)))
    first, before, after = jax.random.split(key, 3)
    begun = sampler.init(first) if state is None else state
    settled, *_ = _walk(sampler, params, before, begun, max(1, steps // 5))
    frozen = eqx.tree_at(lambda s: s.adapt, sampler, jnp.asarray(False))
    settled = eqx.tree_at(lambda s: s.dropped, settled, jnp.zeros_like(settled.dropped))
    end, means, variances, acceptance = _walk(frozen, params, after, settled, steps)
    means, variances = np.asarray(means, float), np.asarray(variances, float)
    if not np.isfinite(means).all():
        raise FloatingPointError(
            "at some step no walker had a finite local energy: log|ψ| is not finite there."
        )
    energy = float(means.mean())
    variance = float(variances.mean() + means.var())
    error, correlation = blocking(means)
    return Evaluation(
        energy=energy,
        error=error,
        variance=variance,
        v_score=problem.molecule.electrons * variance / energy**2,
        acceptance=float(np.mean(acceptance)),
        correlation=correlation,
        walkers=problem.walkers,
        steps=steps,
        dropped=int(end.dropped),
    )


@eqx.filter_jit
def _walk(sampler: Metropolis, params: Params, key: PRNGKeyArray, state: WalkerState, steps: int) -> Any:
    """The walkers after so many draws, and mean, variance and acceptance at each."""
    here = sampler.at(params)

    def step(state: WalkerState, key: PRNGKeyArray) -> tuple[WalkerState, tuple[Array, Array, Array]]:
        batch, state = here.draw(key, state, None)
        ok = jnp.isfinite(batch.energies)
        energies = jnp.where(ok, batch.energies, jnp.nan)
        return state, (jnp.nanmean(energies), jnp.nanvar(energies), state.acceptance)

    state, (means, variances, acceptance) = jax.lax.scan(step, state, jax.random.split(key, steps))
    return state, means, variances, acceptance


def blocking(series: Given[ArrayLike, " N"]) -> tuple[float, float]:
    """The standard error of the mean of a correlated series, by Flyvbjerg and Petersen's blocking.

    Numbers that follow each other in a Monte Carlo run are alike, and the usual formula makes their error too
    small. Averages of pairs, of pairs of pairs and so on lose this correlation, and the error that they give
    grows until it is lost. The largest error is returned, over all lengths that leave at least 16 blocks.

    **Arguments:**

    - `series`: at least two numbers in the order in which they came, else `ValueError`.

    **Returns:** the standard error of their mean, and how many successive numbers carry as much information
    as one independent number.

    ```python
    noise = np.random.default_rng(0).standard_normal(4096)
    sg.molecules.blocking(noise)                                       # about 1/64, about 1
    ```
    """
    values = np.asarray(series, float)
    if values.ndim != 1 or values.size < 2:
        raise ValueError(f"`series` must be a sequence of at least two numbers, got shape {values.shape}.")
    naive = _standard_error(values)
    largest = naive
    while values.size // 2 >= LEAST_BLOCKS:
        values = values[: values.size // 2 * 2].reshape(-1, 2).mean(axis=1)
        largest = max(largest, _standard_error(values))
    return largest, (largest / naive) ** 2 if naive > 0 else 1.0


def _standard_error(values: Float[np.ndarray, " t"]) -> float:
    return float(np.sqrt(values.var(ddof=1) / values.size))


def verdict(molecule: Molecule, history: dict[str, Any], found: Evaluation) -> str:
    """Says in words how good an energy is, and whether longer training would lower it.

    The energies of the last fifth of the training records are compared with those of the fifth before, and
    the difference with its error. `sg.molecules.solve` has this text as `found.verdict`.

    **Arguments:**

    - `molecule`: a `sg.molecules.Molecule`; where its exact energy is known, the text says how far away it
      is.
    - `history`: the records of training, `result.history`. With fewer than ten the text says that they are
      too few to see a trend.
    - `found`: the energy after training, from `sg.molecules.evaluate`.

    **Returns:** one sentence.

    ```python
    history = {"step": np.arange(50.0), "energy": np.full(50, -0.5), "energy_error": np.full(50, 1e-4)}
    found = sg.molecules.Evaluation(-0.5, 1e-5, 1e-6, 4e-6, 0.5, 1.0, 512, 200, 0)
    print(sg.molecules.verdict(sg.molecules.molecule("H"), history, found))
    ```
    """
    words = [f"E = {found.energy:.6f} ± {found.error:.6f} Ha"]
    if molecule.exact is not None:
        excess = found.energy - molecule.exact
        words[0] += f", {1e3 * excess:+.2f} ± {1e3 * found.error:.2f} mHa from the exact energy"
        if molecule.hartree_fock is not None and molecule.hartree_fock - molecule.exact > 1e-9:
            part = (molecule.hartree_fock - found.energy) / (molecule.hartree_fock - molecule.exact)
            words[0] += f" ({100 * part:.1f} % of the correlation energy)"
    words.append(f"variance {found.variance:.2e} Ha², V-score {found.v_score:.1e}")
    fall, error = _trend(history)
    if not np.isfinite(fall):
        words.append("too few records to see a trend")
    elif fall > max(2 * error, 1e-4):
        words.append(f"still falling, by {1e3 * fall:.2f} mHa over the last fifth: train longer")
    elif error > CHEMICAL:
        words.append(f"no trend to be seen within ±{1e3 * error:.1f} mHa: more walkers would show one")
    else:
        words.append(f"converged within ±{1e3 * max(error, found.error):.2f} mHa for this wavefunction")
    if found.dropped:
        words.append(f"{found.dropped} of {found.walkers * found.steps} local energies were not finite")
    return "; ".join(words) + "."


def _trend(history: dict[str, Any]) -> tuple[float, float]:
    """By how much the energy fell from one fifth of the records to the next, and the error of that."""
    energy = np.asarray(history["energy"], float)
    seen = np.isfinite(energy)
    energy = energy[seen]
    fifth = len(energy) // 5
    if fifth < 2:
        return np.nan, np.nan
    before, last = energy[-2 * fifth : -fifth], energy[-fifth:]
    # Records overlap in what they average: their own errors serve, as if each part were one record.
    errors = np.asarray(history["energy_error"], float)[seen]
    return float(before.mean() - last.mean()), float(
        np.hypot(errors[-fifth:].mean(), errors[-2 * fifth : -fifth].mean())
    )
