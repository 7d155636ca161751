"""Every public name has an example that runs as printed, after the imports of the documentation."""

import pytest

import snapgrad as sg
from documented import public, run_example, unnamed_arguments

ROOMS = {
    "sg": sg,
    "diagnosis": sg.diagnosis,
    "linalg": sg.linalg,
    "methods": sg.methods,
    "molecules": sg.molecules,
    "operators": sg.operators,
    "pinn": sg.pinn,
    "problems": sg.problems,
    "sampling": sg.sampling,
    "theory": sg.theory,
    "theory.exact": sg.theory.exact,
    "training": sg.training,
}
"""All but `snapgrad.netket`, which needs NetKet and is tested in a folder of its own."""

PUBLIC = dict(public(ROOMS))


@pytest.mark.parametrize("name", PUBLIC)
def test_example(name, tmp_path, monkeypatch):
    if name in ("molecules.hartree_fock", "molecules.pretrain"):
        pytest.importorskip("pyscf")
    monkeypatch.chdir(tmp_path)
    run_example(name, PUBLIC[name])


NEVER_CALLED = {
    "operators.StructuredJacobian",
    "sampling.SquaredVolume",
}  # made by functions that are documented


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_names_every_argument(name):
    missing = unnamed_arguments(PUBLIC[name])
    assert not missing or name in NEVER_CALLED, f"the docstring of {name} does not name {sorted(missing)}"
