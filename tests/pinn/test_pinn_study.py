"""What `snapgrad pinn` does: trains, stores, goes on, and overwrites nothing."""

import json
from functools import partial

import pytest
from typer.testing import CliRunner

from snapgrad import pinn
from snapgrad.cli import app
from snapgrad.pinn import study
from snapgrad.reproduce import ResultsError


def test_the_list_shows_equation_and_setting_of_every_problem():
    shown = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["pinn", "list"], catch_exceptions=False).stdout
    shown = " ".join(shown.split())
    for name, entry in pinn.ZOO.items():
        assert name in shown and entry.equation in shown and entry.setting in shown and entry.layers in shown
        assert entry.record is None or entry.record.holder in shown


def test_the_list_for_programs():
    said = CliRunner().invoke(app, ["pinn", "list", "--json"], catch_exceptions=False)
    rows = {row["name"]: row for row in json.loads(said.stdout)}
    assert tuple(rows) == pinn.NAMES
    assert rows["kdv"]["record"]["error"] == 8.2e-11 and rows["kdv"]["slabs"] == 80
    assert rows["poisson-1d"]["record"] is None


def test_study_writes_and_resumes(tmp_path, monkeypatch):
    size = {"hidden": (8,), "points": (30, 2), "out": tmp_path}
    small = partial(pinn.zoo, hidden=(8,), points=(30, 2))
    with monkeypatch.context() as patch:
        patch.setattr(study.pinn, "zoo", lambda name, **sizes: small(name))
        args = ["pinn", "poisson-1d", "--steps", "25", "--out", str(tmp_path)]
        said = CliRunner(env={"COLUMNS": "500"}).invoke(app, args, catch_exceptions=False)
    assert said.exit_code == 0 and "loss" in said.stdout and "error" in said.stdout
    folder = tmp_path / "pinn" / "poisson-1d" / "auto-0"
    records = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 25] and {"seconds", "loss"} <= records[0].keys()
    page = (tmp_path / "report.html").read_text()
    assert "PINN: poisson-1d" in page and "<td>auto</td>" in page and page.count('<svg role="img"') == 3
    assert "pinn/poisson-1d/auto-0/metrics.jsonl" in page
    lines = []
    more = study.train("poisson-1d", steps=50, resume=True, show=lines.append, **size)
    assert more["step"] == 50 and all(path.exists() for path in more["files"]) and "error" in lines[0]
    whole = study.train("poisson-1d", steps=50, **{**size, "out": tmp_path / "other"})
    assert whole["relative_l2"] == more["relative_l2"]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ResultsError, match=r"holds a run already\. Add --resume .*--out"):
        study.train("poisson-1d", steps=1, **size)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with pytest.raises(ValueError, match="another problem"):
        study.train("poisson-1d", steps=1, resume=True, **{**size, "hidden": (7,)})
    with pytest.raises(ResultsError, match="no checkpoint"):
        study.train("poisson-1d", steps=1, resume=True, method="adam", **size)
