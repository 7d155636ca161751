"""Molecules by name, by hand and from files, and where their electrons start."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snapgrad import molecules
from snapgrad.molecules import _hartree_fock
from snapgrad.molecules._shells import orbitals


@pytest.mark.parametrize("name", molecules.NAMES)
def test_every_named_molecule_is_whole(name):
    found = molecules.molecule(name)
    assert found.up + found.down == found.electrons == sum(found.charges)
    up, down = orbitals(found)
    assert (len(up), len(down)) == (found.up, found.down)
    assert all(orbital.decay > 0 for orbital in up + down)


def test_known_energies_belong_to_the_stored_geometry():
    stretched = molecules.Molecule([("Li", (0, 0, 0)), ("H", (0, 0, 6.0))], name="LiH")
    assert molecules.molecule("LiH").exact == -8.070548 and stretched.exact is None
    assert molecules.molecule("Li", charge=1).exact is None
    for exact, hartree_fock in molecules.ENERGIES.values():
        assert exact <= hartree_fock


def test_units_and_repulsion():
    bohr = molecules.molecule("H2")
    half = 0.7 / 1.8897261246257702
    angstrom = molecules.Molecule([("H", (0, 0, -half)), ("H", (0, 0, half))], unit="angstrom")
    np.testing.assert_allclose(angstrom.nuclei, bohr.nuclei, atol=1e-14)
    np.testing.assert_allclose(bohr.repulsion, 1 / 1.4)


def test_an_xyz_file(tmp_path):
    path = tmp_path / "water.xyz"
    path.write_text("3\nwater\nO 0 0 0.1173\nH 0 0.7572 -0.4692\nh 0 -0.7572 -0.4692\n")
    found = molecules.molecule(path)
    assert found.symbols == ("O", "H", "H") and found.name == "water" and found.electrons == 10
    np.testing.assert_allclose(found.nuclei[0, 2], 0.1173 * 1.8897261246257702)


@pytest.mark.parametrize("text", ["", "2\nonly one\nH 0 0 0\n", "one\n\nH 0 0 0\n", "1\n\nH 0 0 up\n"])
def test_a_file_that_is_no_xyz_file(tmp_path, text):
    path = tmp_path / "bad.xyz"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"bad\.xyz is not an \.xyz file"):
        molecules.molecule(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"atoms": []}, "at least one atom"),
        ({"atoms": [("Xx", (0, 0, 0))]}, "got 'Xx'"),
        ({"atoms": [("H", (0, 0))]}, "three finite coordinates"),
        ({"atoms": [("H", (0, 0, np.nan))]}, "three finite coordinates"),
        ({"atoms": [("H", (0, 0, 0)), ("H", (0, 0, 0))]}, "at different places"),
        ({"atoms": [("H", (0, 0, 0))], "charge": 1}, "at least one electron"),
        ({"atoms": [("H", (0, 0, 0))], "charge": 5}, "at least one electron"),
        ({"atoms": [("He", (0, 0, 0))], "spin": 1}, "even number from 0 to 2"),
        ({"atoms": [("Li", (0, 0, 0))], "spin": 5}, "odd number from 0 to 3"),
        ({"atoms": [("Li", (0, 0, 0))], "spin": -1}, "odd number from 0 to 3"),
        ({"atoms": [("H", (0, 0, 0))], "unit": "metre"}, "`unit` must be one of"),
    ],
)
def test_what_cannot_be_a_molecule(arguments, message):
    with pytest.raises(ValueError, match=message):
        molecules.Molecule(**arguments)


def test_numbers_that_are_not_whole():
    with pytest.raises(TypeError, match="`charge` must be a whole number"):
        molecules.molecule("Li", charge=0.5)  # pyright: ignore
    with pytest.raises(ValueError, match="there is no molecule 'XY'"):
        molecules.molecule("XY")
    with pytest.raises(ValueError, match="cannot be read"):
        molecules.molecule("nowhere.xyz")


def test_ions_and_high_spins_have_orbitals_for_all_electrons():
    for name, charge, spin in (("LiH", 1, 1), ("O", -1, 1), ("N2", 0, 6), ("H", -1, 0), ("He", 0, 2)):
        found = molecules.molecule(name, charge=charge, spin=spin)
        up, down = orbitals(found)
        assert (len(up), len(down)) == (found.up, found.down)


def test_electrons_start_around_their_nuclei():
    found = molecules.molecule("LiH")
    x = molecules.starting_positions(jax.random.key(0), found, 400, jnp.float64)
    near = jnp.argmin(jnp.linalg.norm(x[:, :, None] - found.nuclei[None, None], axis=-1), axis=-1)
    lithium = jnp.mean(jnp.sum(near == 0, axis=1).astype(float))
    assert 2.3 < float(lithium) < 3.5  # three of four electrons belong to lithium


def test_hartree_fock_by_pyscf():
    pytest.importorskip("pyscf")
    found = molecules.hartree_fock("H2", basis="sto-3g")
    np.testing.assert_allclose(found, -1.11671432, atol=1e-6)  # Szabo and Ostlund, at 1.4 bohr
    lithium = molecules.hartree_fock("Li", basis="cc-pvdz")
    assert 0 < lithium - molecules.ENERGIES["Li"][1] < 1e-3  # above the limit of a complete basis


@pytest.mark.parametrize("name", ["Li", "H2"])
def test_pretrained_orbitals_are_those_of_hartree_fock(name):
    """At places that were not trained on; the atomic orbitals of the start are not."""
    pytest.importorskip("pyscf")
    net = molecules.FermiNet(name, width=8, pair_width=4, layers=1, determinants=1, dtype=jnp.float64)
    params = molecules.pretrain(net, jax.random.key(0), basis="sto-3g", configurations=256, steps=60)
    x = molecules.starting_positions(jax.random.key(7), net.molecule, 100, float)
    wanted = _hartree_fock._orbitals(_hartree_fock._converged(net.molecule, "sto-3g"), net.molecule, x)
    orbitals = jax.jit(jax.vmap(net.orbitals, (None, 0)))
    for spin, target in enumerate(wanted):

        def error(params, spin=spin, target=target):
            return np.linalg.norm(orbitals(params, x)[spin][:, 0] - target) / np.linalg.norm(target)

        assert error(params) < min(0.08, error(net.init(jax.random.key(0))) / 5)


def test_what_has_no_orbitals_is_not_pretrained():
    with pytest.raises(TypeError, match=r"`network` must have `molecule` to be pretrained"):
        molecules.pretrain(lambda params, x: x, jax.random.key(0))


def test_without_pyscf_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyscf", None)
    with pytest.raises(ImportError, match=r"snapgrad\[molecules\]"):
        molecules.hartree_fock("H2")
