"""The command line as a user meets it: in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


def snapgrad(*args: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "snapgrad.cli", *args]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_reproduce_draws_checks_and_goes_on(tmp_path):
    """A quick figure: picture, data, claims and page; the second run only reads."""
    first = snapgrad("reproduce", "gaussian_proxy", "--quick", "--out", "out", cwd=tmp_path)
    assert first.returncode in (0, 1), first.stderr  # small sizes need not satisfy the paper's claims
    folder = tmp_path / "out" / "gaussian_proxy"
    assert (folder / "gaussian_proxy.svg").read_text().lstrip().startswith("<?xml")
    assert "gaussian_proxy.svg" in first.stdout and "report.html" in first.stdout
    assert json.loads((folder / "claims.json").read_text())
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()
    panels = {path: path.read_bytes() for path in folder.rglob("*.npz")}
    assert panels
    for path in panels:
        with np.load(path, allow_pickle=False) as arrays:
            assert len(arrays.files) > 0
    again = snapgrad("reproduce", "gaussian_proxy", "--quick", "--out", "out", cwd=tmp_path)
    assert again.returncode == first.returncode
    assert {path: path.read_bytes() for path in folder.rglob("*.npz")} == panels


def test_theory_tabulates_and_draws_a_matrix(tmp_path):
    np.save(tmp_path / "J.npy", np.random.default_rng(0).normal(size=(12, 4)))
    result = snapgrad("theory", "--matrix", "J.npy", "--k", "1,2", "--out", "c.svg", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "α" in result.stdout and "c.svg written" in result.stdout
    assert (tmp_path / "c.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["reproduce", "figure-7"], ["figure-7", "gaussian_proxy"]),
        (["theory", "--k", "1,x"], ["--k", "1,x"]),
        (["theory", "--matrix", "missing.npy"], ["matrix", "missing.npy"]),
        (["theory", "--spectrum", "steep"], ["spectrum", "steep"]),
        (["reproduce", "--seed", "-1"], ["seed"]),
        (["rerpoduce"], ["rerpoduce"]),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(args, words, tmp_path):
    result = snapgrad(*args, cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1 and "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_list_names_every_figure(tmp_path):
    lines = snapgrad("list", cwd=tmp_path).stdout.splitlines()
    assert len(lines) >= 6 and any("spring" in line for line in lines)
