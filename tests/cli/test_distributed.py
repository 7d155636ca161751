"""`--distributed`: two processes train together, and the first one alone shows and writes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from snapgrad import cli


def together(folder, *args, stop=None, processes=2, begun="checkpoint.snap"):
    """Exit codes and outputs of the command on processes; `stop` is sent to the last once a file is there."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    with ExitStack() as stack:
        runs = []
        for process in range(processes):
            given = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(processes)}
            env = dict(os.environ, JAX_PLATFORMS="cpu", JAX_PROCESS_ID=str(process), **given)
            command = [sys.executable, "-m", "snapgrad.cli", *args, "--distributed", "--out", "out"]
            run = subprocess.Popen(
                command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            runs.append(stack.enter_context(run))
            stack.callback(run.kill)
        if stop is not None:
            deadline = time.monotonic() + 120
            while not any((folder / "out").rglob(begun)) and time.monotonic() < deadline:
                time.sleep(0.1)
            runs[-1].send_signal(stop)
        outputs = [run.communicate(timeout=200) for run in runs]
        return [(run.returncode, *said) for run, said in zip(runs, outputs, strict=True)]


def test_two_processes_train_write_once_and_refuse_together(tmp_path):
    (code, shown, errors), (other, quiet, _) = together(tmp_path, "pinn", "poisson-1d", "--steps", "30")
    assert code == other == 0, errors
    assert "devices: 2, processes: 2" in shown and "stopped by steps" in shown and "step" not in quiet
    lines = (tmp_path / "out/pinn/poisson-1d/auto-0/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 30
    (code, _, first), (other, _, second) = together(tmp_path, "pinn", "poisson-1d", "--steps", "60")
    assert (code, other) == (2, 1) and "holds a run already" in first and "first process" in second
    assert "Traceback" not in first + second


ENDLESS = ("pinn", "poisson-1d", "--steps", "100000000", "--seconds", "300")


@pytest.mark.slow
def test_an_interruption_of_one_stops_both_with_a_checkpoint(tmp_path):
    ends = together(tmp_path, *ENDLESS, stop=signal.SIGTERM)
    assert [code for code, *_ in ends] == [143, 143], ends


def test_one_process_alone_hears_sigterm(tmp_path):
    """JAX's runtime takes it for itself where processes meet."""
    ((code, _, said),) = together(tmp_path, *ENDLESS, stop=signal.SIGTERM, processes=1, begun=".lock")
    assert code == 143 and "stopped" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("number", ["two", "-1"])
def test_a_number_of_processes_that_is_none(tmp_path, monkeypatch, capsys, number):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_NUM_PROCESSES", number)
    monkeypatch.setattr(sys, "argv", ["snapgrad", "pinn", "poisson-1d", "--distributed"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().err
    assert end.value.code == 2 and "must all be set" in said and len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())
