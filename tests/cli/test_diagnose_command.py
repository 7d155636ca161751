"""`snapgrad diagnose`: what it takes, what it prints, what it writes."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from snapgrad.cli import app
from snapgrad.cli._shared import UserError


def run(*args: str):
    return CliRunner().invoke(app, ["diagnose", *args], catch_exceptions=False)


def test_a_matrix_file_gives_text_json_and_a_picture(tmp_path):
    np.save(tmp_path / "J.npy", np.random.default_rng(0).standard_normal((30, 4)))
    out = tmp_path / "out"
    said = run(str(tmp_path / "J.npy"), "--k", "2", "--seconds", "1", "--out", str(out))
    assert said.exit_code == 0 and "Recommended" in said.stdout and "diagnosis.svg" in said.stdout
    found = json.loads((out / "report.json").read_text())
    assert found["recommended"]["sample_size"] == 2 and found["spectrum"]["rank"] == 4
    assert "Recommended" in (out / "report.txt").read_text()
    assert (out / "diagnosis.svg").read_text().startswith("<?xml")


def test_an_ensemble_as_json_is_json_alone():
    said = run("power:1", "--m", "30", "--n", "4", "--k", "2", "--seconds", "1", "--json")
    assert json.loads(said.stdout)["spectrum"]["rank"] == 4


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nope",), r"PROBLEM must be a PINN \(.*poisson-2d.*got 'nope'"),
        (("J.npy",), "PROBLEM J.npy cannot be read"),
        (("power:x",), "spectrum"),
        (("flat", "--k", "a"), "--k must be whole numbers"),
        (("flat", "--m", "20", "--n", "4", "--k", "50"), "`sample_sizes` must be at most"),
        (("flat", "--m", "20", "--n", "4", "--after", "5"), "--after must be 0"),
        (("flat", "--hessian", "none"), "--hessian must be identity, wishart or linear; got 'none'"),
    ],
)
def test_what_it_cannot_do_is_refused_in_one_line(args, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words) as error:
        run(*args)
    assert "\n" not in str(error.value)
