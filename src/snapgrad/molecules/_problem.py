"""The energy of a wavefunction as a problem that every loop and every method takes."""

import os
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Scalar

from .._checks import Given, positive_int, trainable
from .._contracts import AbstractProblem, Linearisation, Params
from ..operators import jacobian
from ._hamiltonian import coulomb, local_energies
from ._molecule import Molecule
from ._molecule import molecule as as_molecule
from ._sampler import Metropolis, Walkers

CLIP = 5.0
"""Local energies further from their median than this times the mean deviation count as that far."""
CPU_BLOCK, GPU_BLOCK = 16, 1024
"""Walkers whose local energies are computed at a time, for the sake of caches and of memory."""


class VMC(AbstractProblem):
    """Variational Monte Carlo: the least energy of a wavefunction ψ of electrons in a molecule.

    A batch is a set of walkers that follow |ψ|². The residual is 2(E_loc − mean)/√k and the rows of the
    Jacobian are the centred ∂log|ψ|/∂θ/√k, so that Jᵀr is the gradient of the energy and JᵀJ Fisher's matrix.
    Train it with `sg.fit(problem, key, method=sg.methods.FisherSpring())`, or in one call with
    `sg.molecules.solve`.

    **Arguments:**

    - `log_psi`: any function `log_psi(params, x)`, the logarithm of |ψ| at one configuration x, [electrons,
      3], those with spin up first; for example `sg.molecules.FermiNet(molecule)`.
    - `molecule`: default `log_psi.molecule`.
    - `params`: where to start; default `log_psi.init(key)`.
    - `walkers`, `moves`: how many there are, and how often they move between two steps.
    - `potential`: a function of x, in place of Coulomb's for the molecule.
    - `block_size`: walkers whose local energies are computed at a time.

    `ValueError` where there is no molecule, or no way to begin.

    ```python
    problem = sg.molecules.VMC(lambda p, x: -p * jnp.sum(jnp.linalg.norm(x, axis=-1)), "H",
                               params=jnp.array(0.8), walkers=16)
    result = sg.fit(problem, jax.random.key(0), method=sg.methods.FisherSpring(), steps=2)
    result.history["energy"][-1], result.params
    ```
    """

    log_psi: Callable
    params: Params | None
    num_rows: int | None = eqx.field(static=True)
    molecule: Molecule = eqx.field(static=True)
    potential: Callable = eqx.field(static=True)
    walkers: int = eqx.field(static=True)
    moves: int = eqx.field(static=True)
    block_size: int = eqx.field(static=True)

    def __init__(
        self,
        log_psi: Callable,
        molecule: Given[str | os.PathLike[str] | Molecule | None, ""] = None,
        *,
        params: Params = None,
        walkers: int = 512,
        moves: int = 10,
        potential: Callable | None = None,
        block_size: int | None = None,
    ):
        molecule = getattr(log_psi, "molecule", None) if molecule is None else molecule
        if molecule is None:
            raise ValueError("`molecule` is missing: `log_psi` does not say which one it is for.")
        if params is None and not hasattr(log_psi, "init"):
            raise ValueError("`params` is missing: `log_psi` has no `init(key)` to begin with.")
        self.log_psi, self.num_rows = log_psi, None
        self.params = None if params is None else trainable("params", params)
        self.molecule = as_molecule(molecule)
        self.potential = _Coulomb(self.molecule) if potential is None else potential
        self.walkers, self.moves = positive_int("walkers", walkers), positive_int("moves", moves)
        usual = CPU_BLOCK if jax.default_backend() == "cpu" else GPU_BLOCK
        self.block_size = min(
            self.walkers, usual if block_size is None else positive_int("block_size", block_size)
        )

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns the parameters to begin with."""
        return self.log_psi.init(key) if self.params is None else self.params  # pyright: ignore

    def linearise(self, params: Params, batch: Walkers) -> Linearisation:
        """Returns residual and Jacobian on a batch of walkers; those without a finite energy have
        no weight.
        """
        ok = jnp.isfinite(batch.energies)
        weights = jnp.where(ok, 1, 0).astype(batch.energies.dtype) / jnp.maximum(jnp.sum(ok), 1)
        # A walker that does not count stands where one that does is: its own row may not be finite.
        good = batch.positions[jnp.argmax(ok)]
        positions = jnp.where(ok[:, None, None], batch.positions, good[None])
        root = jnp.sqrt(weights)
        uniform = jnp.where(jnp.any(ok), weights, 1 / ok.size)
        jac = jacobian(self.log_psi, params, positions).centre(uniform).scale(root)
        after = _ResidualAt(self.log_psi, self.potential, params, positions, root, self.block_size)
        return Linearisation(residual(batch.energies, root), jac, after, params=params, has_loss=False)

    def metrics(self, params: Params) -> dict[str, Scalar]:
        """Returns nothing: what there is to say depends on walkers, and the sampler says it."""
        del params
        return {}

    def default_sampler(self, params: Params) -> Metropolis:
        """Returns walkers that follow |ψ|²."""
        return Metropolis(
            self.log_psi,
            self.potential,
            self.molecule,
            walkers=self.walkers,
            moves=self.moves,
            block_size=self.block_size,
            dtype=jnp.result_type(*jax.tree.leaves(params)),
        )

    def check(self, params: Params, batch: Walkers) -> None:
        """Raises `ValueError` if no walker has a finite energy, or a row of the Jacobian is not finite."""
        ok = np.isfinite(np.asarray(batch.energies))
        if not ok.any():
            raise ValueError(
                f"none of {ok.size} walkers has a finite local energy: log|ψ| or its derivatives are not "
                f"finite, at {np.asarray(batch.positions[0]).tolist()} for example."
            )
        rows = jax.vmap(jax.grad(self.log_psi), (None, 0))(params, batch.positions)
        for leaf in jax.tree.leaves(rows):
            bad = ok & ~np.isfinite(np.asarray(leaf).reshape(ok.size, -1)).all(axis=1)
            if bad.any():
                walker = int(np.argmax(bad))
                raise ValueError(
                    f"the derivative of log|ψ| in a parameter is not finite for walker {walker}, at "
                    f"{np.asarray(batch.positions[walker]).tolist()}."
                )


class _Coulomb:
    """Coulomb's potential, equal for equal molecules, so that compiled programs are found again."""

    def __init__(self, molecule: Molecule):
        self.molecule, self.potential = molecule, coulomb(molecule)

    def __call__(self, x: Float[Array, "n 3"]) -> Float[Array, ""]:
        return self.potential(x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Coulomb) and self.molecule == other.molecule

    def __hash__(self) -> int:
        return hash(self.molecule)

    def __repr__(self) -> str:
        return f"Coulomb({self.molecule})"


def residual(energies: Float[Array, " k"], root: Float[Array, " k"]) -> Float[Array, " k"]:
    """2√w(E − ⟨E⟩) of clipped energies; not finite only if none of them is."""
    clipped = clip(energies, jnp.isfinite(energies) & (root > 0))
    return 2 * root * (clipped - jnp.sum(root**2 * clipped) / jnp.sum(root**2))


def clip(energies: Float[Array, " k"], ok: Bool[Array, " k"]) -> Float[Array, " k"]:
    """Energies within five mean deviations from the median of those that count; others are at the median."""
    middle = jnp.nanmedian(jnp.where(ok, energies, jnp.nan))
    off = jnp.where(ok, energies - middle, 0)
    width = CLIP * jnp.sum(jnp.abs(off)) / jnp.maximum(jnp.sum(ok), 1)
    return middle + jnp.clip(off, -width, width)


class _ResidualAt(eqx.Module):
    """The residual on the same walkers at params − step."""

    log_psi: Callable
    potential: Callable = eqx.field(static=True)
    params: Params
    positions: Float[Array, "k n 3"]
    root: Float[Array, " k"]
    block_size: int = eqx.field(static=True)

    def __call__(self, step: Params) -> Float[Array, " k"]:
        """2√w(E_loc − ⟨E⟩) there, under the same weights."""
        params = jax.tree.map(lambda p, s: p - s.astype(p.dtype), self.params, step)
        energies = local_energies(self.log_psi, params, self.positions, self.potential, self.block_size)
        return residual(energies, self.root)
