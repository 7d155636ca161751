"""Where electrons are to begin with: atomic shells by Slater's rules, without a computation."""

from typing import NamedTuple

import numpy as np

from ._molecule import Molecule

_FILLING = ((1, 1), (2, 1), (2, 3), (3, 1), (3, 3))
"""Shells and how many orbitals they have, s and p, in the order in which a spin fills them."""
_STEP = {1: (0.30,), 2: (0.35, 0.85), 3: (0.35, 0.85, 1.0)}
"""How much an electron of the same shell screens, one of the shell below, and one of those further in."""


class Orbital(NamedTuple):
    """An atomic orbital: its nucleus, its decay ζ/n per bohr, the axis of a p orbital, if it is inner."""

    nucleus: int
    decay: float
    axis: int | None
    core: bool


def orbitals(molecule: Molecule) -> tuple[list[Orbital], list[Orbital]]:
    """An orbital for each electron with spin up and for each with spin down, by neutral atoms."""
    counts = _electrons(molecule)
    spins = ([], [])
    surplus = 0  # unpaired electrons alternate between the atoms, as in a bond
    for atom, electrons in enumerate(counts):
        more, less = electrons - electrons // 2, electrons // 2
        if len(counts) == 1:
            more, less = molecule.up, molecule.down
        elif surplus > 0:
            more, less = less, more
        surplus += more - less
        spins[0].extend(_shell_orbitals(molecule.charges[atom], electrons, more, atom))
        spins[1].extend(_shell_orbitals(molecule.charges[atom], electrons, less, atom))
    return _balance(*spins, molecule.up)


def _electrons(molecule: Molecule) -> list[int]:
    """Electrons of each atom; a charge is taken from, or given to, the heaviest ones in turn."""
    counts, charge = list(molecule.charges), molecule.charge
    while charge:
        atom = int(np.argmax(counts)) if charge > 0 else int(np.argmin(counts))
        counts[atom] -= int(np.sign(charge))
        charge -= int(np.sign(charge))
    return counts


def _balance(up: list[Orbital], down: list[Orbital], wanted: int) -> tuple[list[Orbital], list[Orbital]]:
    """Turns the spins of the outermost electrons until as many are up as wanted."""
    while len(up) != wanted:
        giver, taker = (up, down) if len(up) > wanted else (down, up)
        outermost = min(range(len(giver)), key=lambda i: giver[i].decay)
        taker.append(giver.pop(outermost))
    return up, down


def _shell_orbitals(charge: int, electrons: int, count: int, atom: int) -> list[Orbital]:
    """The first `count` orbitals of one spin on an atom with so many electrons."""
    axes = {1: (None,), 3: (2, 0, 1)}
    filling = [(shell, axis) for shell, size in _FILLING for axis in axes[size]]
    filling += [(3, axis) for axis in range(3)] * (1 + count // 3)  # far more spin than an atom has
    outer = filling[max(0, (electrons + 1) // 2 - 1)][0]
    return [
        Orbital(atom, slater_exponent(charge, electrons, shell) / shell, axis, shell < outer)
        for shell, axis in filling[:count]
    ]


def slater_exponent(charge: int, electrons: int, shell: int) -> float:
    """Slater's effective charge for an electron of this shell."""
    sizes = {1: 2, 2: 8, 3: 8}
    left, filled = electrons, {}
    for n, size in sizes.items():
        filled[n] = min(left, size)
        left -= filled[n]
    same = max(filled[shell] - 1, 0)
    screening = _STEP[shell][0] * same
    for below in range(1, shell):
        screening += _STEP[shell][min(shell - below, 2)] * filled[below]
    return max(charge - screening, 0.5)
