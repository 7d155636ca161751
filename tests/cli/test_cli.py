"""The command line as a user meets it; in a process of its own where it is stopped from outside."""

import contextlib
import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from snapgrad import __version__ as snapgrad_version
from snapgrad import cli
from snapgrad.reproduce import write_section


class Said(NamedTuple):
    """What a command left behind, under the names that `subprocess` uses."""

    returncode: int
    stdout: str
    stderr: str


def snapgrad(*args: str, cwd: Path) -> Said:
    """The command in this process, which has imported everything already."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        patch.setattr(sys, "argv", ["snapgrad", *args])
        cli.main()
    return Said(end.value.code, out.getvalue(), err.getvalue())


NEEDS_NETKET = pytest.mark.skipif(find_spec("netket") is None, reason="NetKet is not installed")


def in_a_process(*args: str, cwd: Path) -> subprocess.Popen:
    """The command as a user starts it; Ctrl-C works even where the tests run in the background."""
    code = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('snapgrad.cli', run_name='__main__', alter_sys=True)"
    )
    command, pipe = [sys.executable, "-c", code, *args], subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, stdout=pipe, stderr=pipe, text=True)


def ended(process: subprocess.Popen) -> Said:
    out, err = process.communicate(timeout=300)
    return Said(process.returncode, out, err)


def wait_for(there: Callable[[], Any], process: subprocess.Popen) -> None:
    end = time.monotonic() + 300
    while not there() and time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def test_without_arguments_it_shows_its_help_and_succeeds(tmp_path):
    said = snapgrad(cwd=tmp_path)
    assert said.returncode == 0 and "reproduce" in said.stdout and said.stderr == ""


def test_it_knows_its_version(tmp_path):
    said = snapgrad("--version", cwd=tmp_path)
    assert said.returncode == 0 and said.stdout == f"snapgrad {snapgrad_version}\n"


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
        pytest.param(["quantum", "ising"], ["ising", "tfim"], marks=NEEDS_NETKET),
        pytest.param(["quantum", "tfim", "--methods", "newton"], ["methods", "newton"], marks=NEEDS_NETKET),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(args, words, tmp_path):
    result = snapgrad(*args, cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1 and "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


@NEEDS_NETKET
def test_options_of_quantum_reach_the_study(tmp_path, monkeypatch):
    from snapgrad.netket import study

    called = {}
    table = {"title": "Ground state", "source": "NetKet", "caption": "", "table": [], "svgs": [], "links": {}}

    def run(name, training, **options):
        called.update(options, name=name, training=training)
        write_section(options["out"] / "quantum" / name, **table)

    monkeypatch.setattr(study, "run", run)
    given = ("--size", "4", "--steps", "3", "--damping", "0.1", "--methods", "spring,sr", "--resume")
    said = snapgrad("quantum", "tfim", *given, "--out", "out", cwd=tmp_path)
    assert said.returncode == 0 and "report.html written" in said.stdout
    wanted = dataclasses.replace(study.DEFAULTS["tfim"], size=4, steps=3, damping=(0.1, 0.1))
    assert called["name"] == "tfim" and called["training"] == wanted
    assert called["methods"] == ["spring", "sr"] and called["resume"]
    assert "Ground state" in (tmp_path / "out" / "report.html").read_text()

    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "run", stop)
    said = snapgrad("quantum", "tfim", "--out", "out", cwd=tmp_path)
    assert said.returncode == 130 and "add --resume" in said.stderr


def test_a_command_leaves_the_hooks_of_errors_alone(monkeypatch):
    """Ours keeps silent about interruptions that compiled code prints and drops."""
    monkeypatch.setattr(sys, "excepthook", hook := lambda *what: None)
    assert cli._run(["list"]) == 0 and sys.excepthook is hook


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
    result = ended(in_a_process(*QUICK, "out", cwd=cwd))
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


@pytest.mark.skipif(find_spec("distributed") is None, reason="Dask is not installed")
@pytest.mark.filterwarnings("ignore")  # of Dask
def test_a_cluster_computes_the_same_bytes_though_a_worker_is_killed(finished, tmp_path):
    """Two workers of Dask, one of which is killed once a panel is there."""
    from distributed import LocalCluster

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with LocalCluster(**options) as cluster:
        args = ("reproduce", "superlinear", "--quick", "--scheduler", cluster.scheduler_address)
        process = in_a_process(*args, "--out", "out", cwd=tmp_path)
        wait_for(lambda: list((tmp_path / "out").rglob("*.json")), process)
        os.kill(cluster.workers[0].pid, signal.SIGKILL)
        said = ended(process)
    assert said.returncode == 0 and "Traceback" not in said.stderr, said.stderr
    wanted = data_files(finished / "out" / "superlinear")
    assert data_files(tmp_path / "out" / "superlinear") == wanted != {}


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
    out = tmp_path / "out"
    shutil.copytree(finished / "out", out)
    real = cli.reproduce.finish

    def judged(*args):
        entry = real(*args)
        return {**entry, "claims": [{**claim, "judged": True} for claim in entry["claims"]]}

    monkeypatch.setattr(cli.reproduce, "finish", judged)
    result = snapgrad(*QUICK, "out", cwd=tmp_path)
    assert result.returncode == 1
    assert "claim failed in superlinear" in result.stdout


def test_factorisations_keep_to_one_thread():
    """OpenBLAS has started when the command begins: it must be told, not only the environment."""
    code = (
        "from threadpoolctl import threadpool_info\n"
        "from snapgrad.reproduce import settle_environment\n"
        "settle_environment()\n"
        "found = [lib['num_threads'] for lib in threadpool_info() if lib['user_api'] == 'blas']\n"
        "assert found and set(found) == {1}, found"
    )
    plain = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")}
    subprocess.run([sys.executable, "-c", code], env=plain, check=True)
