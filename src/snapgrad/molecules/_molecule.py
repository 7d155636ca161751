"""Nuclei and electrons: by name, from an .xyz file, or by hand."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from .._checks import Given, one_of

SYMBOLS = ("H", "He", "Li", "Be", "B", "C", "N", "O", "F", "Ne", "Na", "Mg", "Al", "Si", "P", "S", "Cl", "Ar")
"""The elements that are known, in the order of their charges."""
GROUND_SPINS = (1, 0, 1, 0, 1, 2, 3, 2, 1, 0, 1, 0, 1, 2, 3, 2, 1, 0)
"""Unpaired electrons of the neutral atoms in their ground state."""
ANGSTROM = 1.8897261246257702
"""In bohr."""
ENERGIES: dict[str, tuple[float, float]] = {
    "H": (-0.5, -0.5),
    "He": (-2.903724377, -2.86168),
    "Li": (-7.478060, -7.43275),
    "Be": (-14.66736, -14.57301),
    "B": (-24.65391, -24.53316),
    "C": (-37.8450, -37.69380),
    "N": (-54.5892, -54.40470),
    "O": (-75.0673, -74.81920),
    "H2": (-1.174476, -1.13362),
    "LiH": (-8.070548, -7.98737),
    "N2": (-109.5423, -108.9940),
}
"""Exact (non-relativistic, fixed nuclei) and Hartree–Fock energies in hartree, where known.

From Be to O, and for N2, the exact ones carry about 0.1 mHa.
"""


class _Stored(NamedTuple):
    atoms: tuple[tuple[str, tuple[float, float, float]], ...]
    spin: int = 0


_STORED: dict[str, _Stored] = {
    "H2": _Stored((("H", (0, 0, -0.7)), ("H", (0, 0, 0.7)))),
    "LiH": _Stored((("Li", (0, 0, 0)), ("H", (0, 0, 3.015)))),
    "N2": _Stored((("N", (0, 0, -1.034)), ("N", (0, 0, 1.034)))),
    "Li2": _Stored((("Li", (0, 0, -2.5255)), ("Li", (0, 0, 2.5255)))),
    "CO": _Stored((("C", (0, 0, -1.0660)), ("O", (0, 0, 1.0660)))),
    "H2O": _Stored((("O", (0, 0, 0.2217)), ("H", (0, 1.4309, -0.8867)), ("H", (0, -1.4309, -0.8867)))),
    "H4": _Stored(tuple(("H", (0, 0, 1.4 * i - 2.1)) for i in range(4))),
}
NAMES = (*SYMBOLS, *_STORED)
"""What `sg.molecules.molecule` knows by name: atoms in their ground state, and molecules at equilibrium."""


class Molecule:
    """Nuclei at fixed places and the electrons around them.

    **Arguments:**

    - `atoms`: pairs of an element's symbol and three coordinates.
    - `unit`: `"bohr"` or `"angstrom"`.
    - `charge`: the charge of the whole molecule; a positive ion lacks electrons.
    - `spin`: how many electrons are unpaired, n_up − n_down. By default that of the ground state for a
      neutral atom, otherwise as few as possible.
    - `name`: a name for titles, and to find known energies by.

    Its `nuclei` [m, 3] are in bohr, `charges` [m] are whole numbers, `up` and `down` count the electrons of
    each spin, of which `electrons` there are in all. `exact` and `hartree_fock` are known energies in
    hartree, or None. `ValueError` for an unknown element, for nuclei at the same place, for a charge that
    leaves no electron, and for a spin that this number of electrons cannot have.

    ```python
    lih = sg.molecules.Molecule([("Li", (0, 0, 0)), ("H", (0, 0, 1.5955))], unit="angstrom")
    lih.electrons, lih.up, lih.down                                                    # 4, 2, 2
    ```
    """

    def __init__(
        self,
        atoms: Given[Sequence[tuple[str, Sequence[float]]], ""],
        unit: str = "bohr",
        charge: Given[int, ""] = 0,
        spin: Given[int | None, ""] = None,
        name: str = "",
    ):
        one_of("unit", unit, ("bohr", "angstrom"))
        if not len(atoms):
            raise ValueError("`atoms` must hold at least one atom, got none.")
        self.symbols = tuple(_symbol(symbol) for symbol, _ in atoms)
        self.charges = tuple(SYMBOLS.index(symbol) + 1 for symbol in self.symbols)
        self.places = _places(atoms, ANGSTROM if unit == "angstrom" else 1.0)
        self.charge = _whole("charge", charge)
        self.electrons = sum(self.charges) - self.charge
        self.name = name or "".join(self.symbols)
        if self.electrons < 1:
            raise ValueError(
                f"`charge` must leave at least one electron: the nuclei have charge {sum(self.charges)}, "
                f"got {charge}."
            )
        self.spin = self._least_spin() if spin is None else _whole("spin", spin)
        if (self.electrons - self.spin) % 2 or not 0 <= self.spin <= self.electrons:
            parity = "odd" if self.electrons % 2 else "even"
            raise ValueError(
                f"`spin` must be an {parity} number from 0 to {self.electrons}, the unpaired ones among "
                f"{self.electrons} electrons; got {spin}."
            )
        self.up = (self.electrons + self.spin) // 2
        self.down = self.electrons - self.up

    def _least_spin(self) -> int:
        alone = len(self.charges) == 1 and self.charge == 0
        return GROUND_SPINS[self.charges[0] - 1] if alone else self.electrons % 2

    @property
    def nuclei(self) -> Float[np.ndarray, "m 3"]:
        """The places of the nuclei in bohr, an array `[nuclei, 3]`."""
        return np.array(self.places)

    @property
    def exact(self) -> float | None:
        """The exact energy in hartree of a molecule that is known by name, else None."""
        return self._known(0)

    @property
    def hartree_fock(self) -> float | None:
        """The Hartree–Fock energy in hartree, in the limit of a complete basis, of a molecule known by name,
        else None.
        """
        return self._known(1)

    @property
    def repulsion(self) -> float:
        """The energy of the nuclei among each other, in hartree."""
        z, x = np.array(self.charges), self.nuclei
        pairs = [(i, j) for i in range(len(z)) for j in range(i)]
        return float(sum(z[i] * z[j] / np.linalg.norm(x[i] - x[j]) for i, j in pairs))

    def _known(self, which: int) -> float | None:
        if self.name not in ENERGIES or self != molecule(self.name):
            return None
        return ENERGIES[self.name][which]

    def _key(self) -> tuple:
        return self.symbols, self.places, self.charge, self.spin, self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Molecule) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        atoms = ", ".join(
            f"{s} ({x:g}, {y:g}, {z:g})" for s, (x, y, z) in zip(self.symbols, self.places, strict=True)
        )
        return f"Molecule({self.name}: {atoms} bohr; charge {self.charge}, spin {self.spin})"


def molecule(
    what: Given[str | os.PathLike[str] | Molecule, ""],
    *,
    charge: Given[int, ""] = 0,
    spin: Given[int | None, ""] = None,
) -> Molecule:
    """A molecule by name, or from an .xyz file, whose coordinates are in ångström.

    **Arguments:**

    - `what`: one of `sg.molecules.NAMES`, the path of an .xyz file, or a `Molecule`, returned as it is.
    - `charge`, `spin`: as for `sg.molecules.Molecule`; with a spin or charge of your own no energies are
      known.

    **Returns:** a `sg.molecules.Molecule`. `ValueError` for a name it does not know or a file that it cannot
    read.

    ```python
    sg.molecules.molecule("LiH").exact                     # -8.070548
    sg.molecules.molecule("Li", charge=1).electrons        # 2
    ```
    """
    if isinstance(what, Molecule):
        return what
    name = os.fspath(what)
    if name.endswith(".xyz"):
        return Molecule(_read_xyz(Path(name)), "angstrom", charge, spin, Path(name).stem)
    if name in SYMBOLS:
        return Molecule([(name, (0.0, 0.0, 0.0))], "bohr", charge, spin, name)
    if name in _STORED:
        stored = _STORED[name]
        spin = stored.spin if spin is None and charge == 0 else spin
        return Molecule(stored.atoms, "bohr", charge, spin, name)
    raise ValueError(f"there is no molecule {name!r}: give one of {', '.join(NAMES)}, or an .xyz file.")


def _symbol(symbol: Any) -> str:
    if symbol not in SYMBOLS:
        raise ValueError(f"`atoms` must have symbols of {', '.join(SYMBOLS)}; got {symbol!r}.")
    return symbol


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"`{name}` must be a whole number, got {value!r}.")
    return int(value)


def _places(atoms: Sequence[tuple[str, Any]], scale: float) -> tuple[tuple[float, float, float], ...]:
    places = []
    for symbol, place in atoms:
        array = np.asarray(place, float)
        if array.shape != (3,) or not np.isfinite(array).all():
            raise ValueError(f"`atoms` must have three finite coordinates each; {symbol} has {place!r}.")
        x, y, z = (scale * array).tolist()
        places.append((x, y, z))
    if len(set(places)) < len(places):
        raise ValueError("`atoms` must be at different places, got two at the same.")
    return tuple(places)


def _read_xyz(path: Path) -> list[tuple[str, tuple[float, ...]]]:
    """Symbols and coordinates: the number of atoms, a line of comment, a line for each atom."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        lines = []
    try:
        count = int(lines[0])
        rows = [line.split() for line in lines[2 : 2 + count]]
        atoms = [(row[0].capitalize(), tuple(float(number) for number in row[1:4])) for row in rows]
    except (ValueError, IndexError):
        atoms, count = [], -1
    if count < 1 or len(atoms) != count:
        raise ValueError(
            f"{path} is not an .xyz file: it must have the number of atoms, a line of comment, and then "
            f"a symbol and three coordinates for each atom."
        )
    return atoms
