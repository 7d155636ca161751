"""Every public name of the room has an example that runs as printed, and names its arguments."""

import pytest
from chains import MARKS

import snapgrad.netket as sgn
from documented import public, run_example, unnamed_arguments

pytestmark = MARKS
PUBLIC = dict(public({"netket": sgn}))


@pytest.mark.parametrize("name", PUBLIC)
def test_example(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_example(name, PUBLIC[name])


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_names_every_argument(name):
    missing = unnamed_arguments(PUBLIC[name])
    assert not missing, f"the docstring of {name} does not name {sorted(missing)}"
