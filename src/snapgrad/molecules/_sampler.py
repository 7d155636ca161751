"""Walkers: many Markov chains that follow |ψ|² as ψ is trained."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Scalar

from .._checks import Given, positive_int, real_scalar
from .._contracts import AbstractSampler, Batch, Linearisation, Params
from ._hamiltonian import local_energies
from ._molecule import Molecule
from ._shells import orbitals

ACCEPTANCE = 0.5
"""What the width of moves is adapted to."""
RATE = 0.1
"""How fast: the width is multiplied by exp(RATE (acceptance − ACCEPTANCE)) after each move."""
MEMORY = 100
"""The reported energy is averaged over about so many steps."""


class Walkers(NamedTuple):
    """A batch of walkers: configurations of the electrons, drawn from |ψ|², and their local energies.

    - `positions`: where the electrons of each of the k walkers are, `[k, electrons, 3]` in bohr.
    - `energies`: the local energy of each walker, `[k]` in hartree. A walker whose energy is not finite is
      left out of all averages.

    `sg.molecules.Metropolis` draws such batches.

    ```python
    sg.molecules.Walkers(jnp.zeros((16, 1, 3)), jnp.full(16, -0.5))
    ```
    """

    positions: Float[Array, "k n 3"]
    energies: Float[Array, " k"]


class WalkerState(eqx.Module):
    """Where the walkers are, how they move, and what was seen of the energy."""

    positions: Float[Array, "k n 3"]
    width: Float[Array, ""]
    acceptance: Float[Array, ""]
    drawn: Int[Array, ""]
    energy: Float[Array, ""]  # averages over the last steps, of the means over walkers
    square: Float[Array, ""]  # of the squared deviation of these means from their average
    variance: Float[Array, ""]
    dropped: Int[Array, ""]  # walkers without a finite energy, over all steps


class Metropolis(AbstractSampler):
    """Walkers that move all their electrons at once, by Metropolis' rule, `moves` times between two batches.

    They start around the nuclei, electrons near the atoms that they belong to, and walk for a while before
    the first batch. The width of a move adapts to an acceptance of one half. A batch has the local energies
    as well; the state is part of a checkpoint.

    **Arguments:**

    - `log_psi`, `potential`, `molecule`: as in `sg.molecules.VMC`, whose `default_sampler` makes one.
    - `walkers`: how many walkers there are.
    - `moves`: how often each of them moves between two batches.
    - `warm_up`: how often each of them moves before the first batch.
    - `width`: the standard deviation of the first moves, in bohr.
    - `adapt`: whether the width adapts. Switch it off where averages are to be exact.
    - `block_size`: walkers whose local energies are computed at a time.
    - `dtype`: the floating-point type of the positions.

    ```python
    problem = sg.molecules.VMC(lambda p, x: -p * jnp.sum(jnp.linalg.norm(x, axis=-1)), "H",
                               params=jnp.array(1.0), walkers=16)
    sampler = problem.default_sampler(problem.params).at(problem.params)
    batch, state = sampler.draw(jax.random.key(1), sampler.init(jax.random.key(2)), None)
    batch.positions.shape, batch.energies.shape                                   # (16, 1, 3), (16,)
    ```
    """

    log_psi: Callable
    potential: Callable
    params: Params | None
    moves: Int[Array, ""]
    warm_up: Int[Array, ""]
    width: Float[Array, ""]
    adapt: Bool[Array, ""]
    num_rows: int | None = eqx.field(static=True)
    molecule: Molecule = eqx.field(static=True)
    walkers: int = eqx.field(static=True)
    block_size: int = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    def __init__(
        self,
        log_psi: Callable,
        potential: Callable,
        molecule: Molecule,
        *,
        walkers: int,
        moves: int = 10,
        warm_up: int = 300,
        width: Given[ArrayLike, ""] = 0.3,
        adapt: bool = True,
        block_size: int | None = None,
        dtype: Given[DTypeLike, ""] = jnp.float32,
    ):
        self.log_psi, self.potential, self.molecule = log_psi, potential, molecule
        self.params, self.num_rows = None, None
        self.walkers = positive_int("walkers", walkers)
        # Arrays, so that training and evaluation share one compiled program.
        self.moves = jnp.asarray(positive_int("moves", moves))
        self.warm_up = jnp.asarray(positive_int("warm_up", warm_up))
        self.width = real_scalar("width", width, low=0).astype(dtype)
        self.adapt = jnp.asarray(adapt)
        self.block_size = walkers if block_size is None else positive_int("block_size", block_size)
        self.dtype = jnp.dtype(dtype)

    def at(self, params: Params) -> "Metropolis":
        """Returns the sampler of |ψ|² at these parameters."""
        return eqx.tree_at(lambda s: s.params, self, params, is_leaf=lambda x: x is None)

    def init(self, key: PRNGKeyArray) -> WalkerState:
        """Returns walkers around the nuclei."""
        zero = jnp.zeros((), self.dtype)
        return WalkerState(
            positions=starting_positions(key, self.molecule, self.walkers, self.dtype),
            width=self.width,
            acceptance=zero,
            drawn=jnp.zeros((), int),
            energy=zero,
            square=zero,
            variance=zero,
            dropped=jnp.zeros((), int),
        )

    @jax.default_matmul_precision("highest")
    def draw(
        self, key: PRNGKeyArray, state: WalkerState, linearise: Callable[[Batch], Linearisation] | None
    ) -> tuple[Walkers, WalkerState]:
        """Returns walkers after some moves, with their local energies."""
        del linearise
        if self.params is None:
            raise ValueError("a Metropolis sampler draws at parameters: use `sampler.at(params).draw(...)`.")
        log_psi: Callable = jax.vmap(lambda x: self.log_psi(self.params, x))
        count = jnp.where(state.drawn == 0, self.warm_up, self.moves)

        def move(i: Int[Array, ""], carry: tuple) -> tuple:
            x, log, width, accepted = carry
            noise, luck = jax.random.split(jax.random.fold_in(key, i))
            trial = x + width * jax.random.normal(noise, x.shape, x.dtype)
            new = log_psi(trial)
            ok = _accept(luck, log, new)
            x = jnp.where(ok[:, None, None], trial, x)
            rate = jnp.mean(ok.astype(x.dtype))
            width = jnp.where(self.adapt, width * jnp.exp(RATE * (rate - ACCEPTANCE)), width)
            return x, jnp.where(ok, new, log), width, accepted + rate

        start = state.positions, log_psi(state.positions), state.width, jnp.zeros((), self.dtype)
        x, _, width, accepted = jax.lax.fori_loop(0, count, move, start)
        energies = local_energies(self.log_psi, self.params, x, self.potential, self.block_size)
        seen = _averaged(state, energies)
        moved = WalkerState(x, width, accepted / count.astype(self.dtype), state.drawn + 1, *seen)
        return Walkers(x, energies), moved

    def report(self, state: WalkerState) -> dict[str, Scalar]:
        """Returns `energy` over the last steps, its `energy_error`, `variance`, `acceptance`, `width`,
        `dropped`.

        The error takes successive steps as independent; `sg.molecules.evaluate` does not.
        """
        unknown = state.drawn == 0
        steps = jnp.clip(state.drawn, 1, MEMORY).astype(self.dtype)
        error = jnp.sqrt(jnp.maximum(state.square, state.variance / self.walkers) / steps)
        return {
            "energy": jnp.where(unknown, jnp.nan, state.energy),
            "energy_error": jnp.where(unknown, jnp.nan, error),
            "variance": jnp.where(unknown, jnp.nan, state.variance),
            "acceptance": state.acceptance,
            "width": state.width,
            "dropped": state.dropped,
        }


def _accept(key: PRNGKeyArray, old: Float[Array, " k"], new: Float[Array, " k"]) -> Bool[Array, " k"]:
    """Metropolis' rule for |ψ|²; from where ψ vanishes or is unknown, to anywhere else."""
    log_u = jnp.log(jax.random.uniform(key, old.shape, old.dtype, minval=jnp.finfo(old.dtype).tiny))
    return jnp.isfinite(new) & (~jnp.isfinite(old) | (log_u < 2 * (new - old)))


def _averaged(state: WalkerState, energies: Float[Array, " k"]) -> tuple[Any, Any, Any, Any]:
    """The averages of the state with one more step."""
    ok = jnp.isfinite(energies)
    count = jnp.maximum(jnp.sum(ok), 1).astype(energies.dtype)
    # Deviations from the average, since squares of energies would cancel in float32.
    middle = jnp.where(state.drawn == 0, jnp.nanmedian(jnp.where(ok, energies, jnp.nan)), state.energy)
    middle = jnp.where(jnp.isfinite(middle), middle, 0)
    off = jnp.where(ok, energies - middle, 0)
    mean = jnp.sum(off) / count
    variance = jnp.sum(jnp.where(ok, (off - mean) ** 2, 0)) / count
    weight = 1 / jnp.clip(state.drawn + 1, 1, MEMORY).astype(energies.dtype)
    return (
        middle + jnp.where(state.drawn == 0, 1, weight) * mean,
        state.square + weight * (jnp.where(state.drawn == 0, 0, mean**2) - state.square),
        state.variance + weight * (variance - state.variance),
        state.dropped + jnp.sum(~ok),
    )


def starting_positions(
    key: PRNGKeyArray, molecule: Molecule, walkers: int, dtype: Given[DTypeLike, ""]
) -> Float[Array, "k n 3"]:
    """Random places for electrons to start from, each near the nucleus of the orbital that it belongs to.

    **Arguments:**

    - `key`: a JAX random key; the same key gives the same result.
    - `molecule`: a `sg.molecules.Molecule`.
    - `walkers`: how many configurations to draw.
    - `dtype`: the floating-point type of the coordinates.

    **Returns:** an array `[walkers, electrons, 3]` in bohr, electrons with spin up first. The distances are
    about as large as the orbitals.

    ```python
    molecule = sg.molecules.molecule("LiH")
    sg.molecules.starting_positions(jax.random.key(0), molecule, 16, float).shape          # (16, 4, 3)
    ```
    """
    chosen = [orbital for spin in orbitals(molecule) for orbital in spin]
    homes = jnp.asarray(np.stack([molecule.nuclei[orbital.nucleus] for orbital in chosen]), dtype)
    sizes = jnp.asarray([1 / orbital.decay for orbital in chosen], dtype)
    noise = jax.random.normal(key, (walkers, molecule.electrons, 3), dtype)
    return homes[None] + sizes[None, :, None] * noise
