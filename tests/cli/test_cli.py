"""The command line as a user meets it: in a process of its own."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest


def snapgrad(*args: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "snapgrad.cli", *args]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["reproduce", "figure-7"], ["figure-7", "gaussian_proxy"]),
        (["theory", "--k", "1,x"], ["--k", "1,x"]),
        (["theory", "--matrix", "missing.npy"], ["matrix", "missing.npy"]),
        (["theory", "--spectrum", "steep"], ["spectrum", "steep"]),
        (["reproduce", "--seed", "-1"], ["seed"]),
        (["rerpoduce"], ["rerpoduce"]),
        (["pinn", "poisson-3d"], ["poisson-3d", "poisson-2d"]),
        (["pinn", "poisson-1d", "--method", "newton"], ["newton", "lbfgs"]),
        (["pinn", "poisson-1d", "--resume"], ["no checkpoint", "--resume"]),
        (["quantum", "ising"], ["ising", "tfim"]),
        (["quantum", "tfim", "--methods", "newton"], ["methods", "newton"]),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(args, words, tmp_path):
    result = snapgrad(*args, cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1 and "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_a_pinn_is_trained_drawn_and_put_on_the_page(tmp_path):
    train = ("pinn", "poisson-1d", "--seed", "3", "--out", "out", "--steps")
    first = snapgrad(*train, "50", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "loss" in first.stdout and "error" in first.stdout and "report.html" in first.stdout
    folder = tmp_path / "out" / "pinn" / "poisson-1d"
    rows = [json.loads(row) for row in (folder / "auto-3" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 25, 50]
    assert rows[-1]["relative_l2"] < rows[0]["relative_l2"] and {"seconds", "loss"} <= rows[0].keys()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "PINN: poisson-1d" in page and "<td>auto</td>" in page and page.count('<svg role="img"') == 3
    assert "pinn/poisson-1d/auto-3/metrics.jsonl" in page


def test_a_ground_state_is_trained_and_put_on_the_page(tmp_path):
    pytest.importorskip("netket", reason="NetKet is not installed")
    options = ("--size", "4", "--steps", "3", "--samples", "32", "--alpha", "1", "--methods", "spring")
    result = snapgrad("quantum", "tfim", *options, "--out", "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "V-score" in result.stdout and "report.html" in result.stdout
    runs = json.loads((tmp_path / "out" / "quantum" / "tfim" / "runs.json").read_text())
    assert [run["method"] for run in runs] == ["spring"] and len(runs[0]["history"]) == 3
    assert "Ground state: tfim, 4 sites" in (tmp_path / "out" / "report.html").read_text()


def test_list_names_every_figure(tmp_path):
    lines = snapgrad("list", cwd=tmp_path).stdout.splitlines()
    assert len(lines) >= 6 and any("spring" in line for line in lines)


def data_files(folder: Path) -> dict[str, bytes]:
    """What must not depend on how a run was interrupted: arrays, table, claims."""
    kept = [
        path for path in folder.rglob("*") if path.suffix in (".npz", ".csv") or path.name == "claims.json"
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


QUICK = ("reproduce", "superlinear", "--quick", "--jobs", "1", "--out")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """One quick figure, computed without interruption."""
    cwd = tmp_path_factory.mktemp("finished")
    result = snapgrad(*QUICK, "out", cwd=cwd)
    assert result.returncode == 0, result.stderr
    return cwd


def test_reproduce_draws_checks_and_goes_on(finished):
    """Picture, data, claims and page; a second run only reads."""
    folder = finished / "out" / "superlinear"
    assert (folder / "superlinear.svg").read_text().lstrip().startswith("<?xml")
    assert json.loads((folder / "claims.json").read_text())
    assert "<svg" in (finished / "out" / "report.html").read_text()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.npz")}
    assert before
    again = snapgrad(*QUICK, "out", cwd=finished)
    assert again.returncode == 0, again.stderr
    assert "superlinear.svg" in again.stdout and "report.html" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.npz")} == before


def test_killed_runs_go_on_to_the_same_bytes(finished, tmp_path):
    """Killed outright three times at random moments, the data files end up identical."""
    rng = np.random.default_rng(0)
    command = [sys.executable, "-m", "snapgrad.cli", *QUICK, "out"]
    for delay in rng.uniform(3, 9, 3):
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(delay)
        process.kill()
        process.wait()
    result = snapgrad(*QUICK, "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert data_files(tmp_path / "out") == data_files(finished / "out") != {}
    assert not list((tmp_path / "out").rglob("*.part"))


def test_interrupting_stops_the_workers_and_says_so(tmp_path):
    command = [sys.executable, "-m", "snapgrad.cli", *QUICK, "out"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    while not (tmp_path / "out" / ".lock").exists():  # from then on it computes
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "finished parts are kept" in stderr and "Traceback" not in stderr


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: next(folder.rglob("*.npz")).write_bytes(b"not an archive"), ["damaged", "Delete"]),
        (lambda folder: next(folder.rglob("data/*.json")).write_text("{"), ["damaged", "Delete"]),
        (lambda folder: next(folder.rglob("*.npz")).unlink(), ["damaged", "Delete"]),
    ],
    ids=["arrays", "record", "missing"],
)
def test_a_damaged_folder_is_refused_and_left_alone(finished, tmp_path, spoil, words):
    out = tmp_path / "out"
    shutil.copytree(finished / "out", out)
    spoil(out)
    before = data_files(out)
    result = snapgrad(*QUICK, "out", cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1 and all(word in result.stderr for word in words)
    assert data_files(out) == before


def test_another_seed_does_not_overwrite(finished):
    before = data_files(finished / "out")
    result = snapgrad(*QUICK, "out", "--seed", "1", cwd=finished)
    assert result.returncode == 2 and "seed: 0, now 1" in result.stderr and "--out" in result.stderr
    assert data_files(finished / "out") == before


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = snapgrad(*QUICK, "file/out", cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1 and "--out" in result.stderr
    assert (tmp_path / "file").read_text() == "in the way"


def test_report_is_built_anew_from_a_folder(finished, tmp_path):
    page = finished / "out" / "report.html"
    before = page.read_bytes()
    page.unlink()
    assert snapgrad("report", "out", cwd=finished).returncode == 0
    assert page.read_bytes() == before
    empty = snapgrad("report", str(tmp_path), cwd=tmp_path)
    assert empty.returncode == 2 and "reproduce" in empty.stderr


def test_a_claim_that_fails_is_named_and_sets_the_exit_code(finished, tmp_path, monkeypatch):
    """With a quick run taken for a full one: small sizes do not show what the paper shows."""
    from typer.testing import CliRunner

    from snapgrad import cli

    out = tmp_path / "out"
    shutil.copytree(finished / "out", out)
    real = cli.reproduce.finish

    def judged(*args):
        entry = real(*args)
        return {**entry, "claims": [{**claim, "judged": True} for claim in entry["claims"]]}

    monkeypatch.setattr(cli.reproduce, "finish", judged)
    result = CliRunner().invoke(cli.app, [*QUICK, str(out)])
    assert result.exit_code == 1
    assert "claim failed in superlinear" in result.stdout
