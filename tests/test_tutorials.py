"""The tutorials run as they are printed, and what they claim comes out."""

import math
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

FOLDER = Path(__file__).parents[1] / "tutorials"


def run(name: str, tmp_path, monkeypatch) -> dict:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


def test_fit_a_model(tmp_path, monkeypatch):
    pytest.importorskip("flax")
    names = run("fit_a_model", tmp_path, monkeypatch)
    distance = names["distance"]
    assert max(distance(names["fitted"]), distance(names["looped"])) < 0.03  # the noise was 0.05
    assert (tmp_path / "fit.png").exists()


def test_linear_system(tmp_path, monkeypatch):
    names = run("linear_system", tmp_path, monkeypatch)
    measured, predicted = names["measured"], names["predicted"]
    assert abs(predicted["flat"] - 2 / 15) < 1e-6 and abs(measured["flat"] - 2 / 15) < 0.01
    assert measured["decaying"] > predicted["decaying"]
    assert names["accelerated"][2].rate > names["plain"][2].rate


def test_diagnose(tmp_path, monkeypatch):
    names = run("diagnose", tmp_path, monkeypatch)
    loss = names["result"].history["loss"]
    assert loss[-1] < 1e-2 * loss[0]


def test_sweep(tmp_path, monkeypatch):
    names = run("sweep", tmp_path, monkeypatch)
    assert names["errors"].shape == (8, 5) and names["errors"].min() < 1e-4


def test_several_devices(tmp_path):
    done = subprocess.run(
        [sys.executable, str(FOLDER / "several_devices.py")],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "4 devices" in done.stdout and "[64, 64, 64, 64]" in done.stdout
    differences = [float(text) for text in re.findall(r"largest difference (\S+)", done.stdout)]
    assert len(differences) == 3 and max(differences) < 1e-10


def test_pinn(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pinn.py", "100"])
    assert run("pinn", tmp_path, monkeypatch)["error"] < 1e-3


def test_pinn_inverse(tmp_path, monkeypatch):
    names = run("pinn_inverse", tmp_path, monkeypatch)
    low, high = names["bars"].intervals["diffusivity"]
    assert low < 0.3 < high and high - low < 0.03
    assert (tmp_path / "temperature.png").exists()


def test_pinn_network(tmp_path, monkeypatch):
    names = run("pinn_network", tmp_path, monkeypatch)
    assert names["solution"].history["relative_l2"][-1] < 1e-4
    assert (tmp_path / "gated.png").exists()


def test_pinn_geometry(tmp_path, monkeypatch):
    names = run("pinn_geometry", tmp_path, monkeypatch)
    assert abs(names["shape"].volume - (2 - math.pi / 16 - 0.16)) < 0.01
    assert names["solution"].history["relative_l2"][-1] < 1e-4
    assert (tmp_path / "temperature.png").exists()


def test_pinn_time(tmp_path, monkeypatch):
    names = run("pinn_time", tmp_path, monkeypatch)
    assert names["marched"].relative_l2 < 0.15 < names["whole"].history["relative_l2"][-1]


def test_pinn_weak(tmp_path, monkeypatch):
    names = run("pinn_weak", tmp_path, monkeypatch)
    speed, finer = names["speed"], names["speed"](names["finer"])
    assert abs(finer.min() + 0.2341) < 0.002  # that of degree 24
    assert max(abs(speed(names["weak"]) - finer)) < 0.02 < 0.1 < max(abs(speed(names["pointwise"]) - finer))
    assert (tmp_path / "cavity.png").exists()


def test_molecule(tmp_path, monkeypatch):
    names = run("molecule", tmp_path, monkeypatch)
    assert abs(names["simple"].params - 27 / 16) < 0.05
    assert -2.9 < names["simple"].evaluation.energy < -2.8
    assert abs(names["found"].evaluation.energy - names["hydrogen"].exact) < 5e-3
    assert (tmp_path / "hydrogen.png").exists()


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("[a-z]*.py")))
def test_every_tutorial_is_run_by_a_test(name):
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    assert f'run("{name}"' in tests or f"{name}.py" in tests, f"no test runs {name}.py"
