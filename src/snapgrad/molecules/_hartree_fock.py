"""Hartree–Fock energies by PySCF, for molecules of which none is stored."""

from typing import Any

from ._molecule import Molecule
from ._molecule import molecule as as_molecule


def hartree_fock(what: Any, basis: str = "cc-pvtz") -> float:
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
    molecule: Molecule = as_molecule(what)
    try:
        from pyscf import gto, scf
    except ImportError as error:
        raise ImportError("Hartree–Fock energies need PySCF: pip install 'snapgrad[molecules]'.") from error
    atoms = list(zip(molecule.symbols, molecule.places, strict=True))
    mole = gto.M(atom=atoms, unit="bohr", basis=basis, charge=molecule.charge, spin=molecule.spin, verbose=0)
    field: Any = scf.RHF(mole) if molecule.spin == 0 else scf.UHF(mole)
    energy = field.kernel()
    if not field.converged:
        raise FloatingPointError(f"Hartree–Fock of {molecule.name} in {basis} did not converge.")
    return float(energy)
