"""Hartree–Fock by PySCF: energies to compare with, and orbitals to start from."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import Given, positive_int
from .._contracts import Params
from ..training import least_squares, with_options_of
from ._molecule import Molecule
from ._molecule import molecule as as_molecule
from ._sampler import starting_positions

ROWS = 1024
"""A step of pretraining sees about so many values of orbitals."""


def hartree_fock(what: Given[str | os.PathLike[str] | Molecule, ""], basis: str = "cc-pvtz") -> float:
    """The Hartree–Fock energy of a molecule in a basis, in hartree; it lies above that of a complete basis.

    **Arguments:**

    - `what`: a `Molecule`, or what `sg.molecules.molecule` takes.
    - `basis`: the name of a basis that PySCF knows.

    **Returns:** the energy: restricted where all electrons are paired, unrestricted elsewhere. `ImportError`
    without PySCF; `FloatingPointError` if the iteration does not converge.

    ```python
    sg.molecules.hartree_fock("H2", basis="sto-3g")                          # -1.1167
    ```
    """
    return float(_converged(as_molecule(what), basis).e_tot)


@with_options_of(least_squares)
def pretrain(
    network: Any,
    key: PRNGKeyArray,
    *,
    basis: str = "cc-pvdz",
    configurations: int = 2048,
    steps: int = 100,
    **options: Any,
) -> Params:
    """Parameters with which the orbitals of a network are those of Hartree–Fock, to start training from.

    `sg.molecules.FermiNet` and `Psiformer` start from Slater's orbitals of the atoms and do not need it. It
    helps where these are far from the orbitals of the molecule.

    **Arguments:**

    - `network`: `sg.molecules.FermiNet(...)`, or whatever has a `molecule`, `init(key)`, log|ψ| as
      `network(params, x)`, and `orbitals(params, x)`: for each spin that has electrons an array
      [determinants, electrons, orbitals].
    - `key`: the randomness of the weights and of the configurations.
    - `basis`: the name of a basis that PySCF knows.
    - `configurations`: how many places of all electrons the orbitals are compared at, those of
      `sg.molecules.starting_positions`.
    - `steps`: how many steps of training `sg.least_squares` takes; `options` are its other arguments.

    **Returns:** parameters for `sg.molecules.VMC(network, params=...)`. `TypeError` for a network without
    orbitals; `ImportError` without PySCF; `FloatingPointError` if Hartree–Fock does not converge.

    ```python
    network = sg.molecules.FermiNet("H2", width=8, layers=1, determinants=2)
    params = sg.molecules.pretrain(network, jax.random.key(0), configurations=64, steps=5)
    problem = sg.molecules.VMC(network, params=params, walkers=16)
    ```
    """
    for name in ("molecule", "init", "orbitals"):
        if not hasattr(network, name):
            raise TypeError(f"`network` must have `{name}` to be pretrained, as sg.molecules.FermiNet has.")
    molecule: Molecule = network.molecule
    field = _converged(molecule, basis)
    params = network.init(key)
    places, batches = jax.random.split(jax.random.fold_in(key, 1))
    dtype = jnp.result_type(*jax.tree.leaves(params))
    x = starting_positions(places, molecule, positive_int("configurations", configurations), dtype)
    targets = _orbitals(field, molecule, x)
    scales = [float(np.sqrt(np.mean(target**2))) for target in targets]

    def residual(params: Params, row: tuple[Array, list[Array]]) -> Float[Array, " values"]:
        x, wanted = row
        found = network.orbitals(params, x)
        parts = [(f - w[None]) / scale for f, w, scale in zip(found, wanted, scales, strict=True)]
        return jnp.concatenate([part.reshape(-1) for part in parts])

    values = sum(found.size for found in jax.eval_shape(network.orbitals, params, x[0]))
    if "sampler" not in options:
        options.setdefault("batch_size", min(configurations, max(1, ROWS // values)))
    data = x, [jnp.asarray(target, x.dtype) for target in targets]
    return least_squares(residual, params, data, key=batches, steps=steps, **options).params


def _converged(molecule: Molecule, basis: str) -> Any:
    """What PySCF makes of a molecule."""
    try:
        from pyscf import gto, scf
    except ImportError as error:
        raise ImportError("Hartree–Fock needs PySCF: pip install 'snapgrad[molecules]'.") from error
    atoms = list(zip(molecule.symbols, molecule.places, strict=True))
    mole = gto.M(atom=atoms, unit="bohr", basis=basis, charge=molecule.charge, spin=molecule.spin, verbose=0)
    field: Any = scf.RHF(mole) if molecule.spin == 0 else scf.UHF(mole)
    field.kernel()
    if not field.converged:
        raise FloatingPointError(f"Hartree–Fock of {molecule.name} in {basis} did not converge.")
    return field


def _orbitals(field: Any, molecule: Molecule, x: Float[Array, "k n 3"]) -> list[Float[np.ndarray, "k _ _"]]:
    """The occupied orbitals (last axis) at the electrons of each spin that has some."""
    coefficients = np.broadcast_to(field.mo_coeff, (2, *np.shape(field.mo_coeff)[-2:]))
    found, first = [], 0
    for count, mixed in zip((molecule.up, molecule.down), coefficients, strict=True):
        if count:
            places = np.asarray(x[:, first : first + count], float).reshape(-1, 3)
            atomic = field.mol.eval_gto("GTOval", places)
            found.append((atomic @ mixed[:, :count]).reshape(len(x), count, count))
        first += count
    return found
