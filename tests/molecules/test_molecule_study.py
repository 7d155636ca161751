"""`snapgrad molecule`: files, pictures, a section of the page, resume and errors in words."""

import json

import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from snapgrad import molecules
from snapgrad.cli import app
from snapgrad.molecules import study
from snapgrad.reproduce import ResultsError


def exponential(p, x):
    return -p * jnp.sum(jnp.linalg.norm(x, axis=-1))


def test_a_run_leaves_curves_density_metrics_and_a_section(tmp_path):
    problem = molecules.VMC(exponential, "H", params=jnp.array(0.8), walkers=16)
    said = []
    result = study.train("H", steps=4, out=tmp_path, problem=problem, show=said.append)
    assert all(path.exists() for path in result["files"])
    assert {path.name for path in result["files"]} >= {"metrics.jsonl", "energy.svg", "density.svg"}
    assert "exact -0.50000" in said[-1] and "±" in said[-1]
    section = json.loads((tmp_path / "molecule" / "H" / "section.json").read_text())
    assert section["title"] == "Molecule: H" and section["plots"] == 2
    assert "±" in section["table"][0]["energy, Ha"]
    with pytest.raises(ResultsError, match="Add --resume"):
        study.train("H", steps=4, out=tmp_path, problem=problem)
    end = {"dropped": 3.0, "rejected": 0.0}
    record = json.loads(
        (tmp_path / "molecule" / "H" / "ferminet-0" / "metrics.jsonl").read_text().splitlines()[-1]
    )
    assert study.line({**record, **end}, problem.molecule) == said[-1] + "  dropped 3"
    longer = study.train("H", steps=8, out=tmp_path, problem=problem, resume=True)
    assert longer["step"] == 8 and result["step"] == 4


def test_errors_in_words(tmp_path):
    run = lambda *words: CliRunner().invoke(app, ["molecule", *words, "--out", str(tmp_path)])  # noqa: E731
    assert "there is no molecule 'Xx'" in str(run("Xx").exception)
    assert "at least one electron" in str(run("H", "--charge", "1").exception)
    assert "even number" in str(run("He", "--spin", "1").exception)
    assert "`ansatz` must be one of" in str(run("He", "--ansatz", "slater").exception)
    assert "no checkpoint" in str(run("He", "--resume").exception)
    assert "LiH" in run("list").output
