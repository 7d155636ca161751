"""Stopped at any moment, by Ctrl-C, by SIGTERM or outright, and started again: the same bytes at the end.

What must be the same is every number that a run stores and every picture of them. Elapsed seconds are no
results, nor are pictures that draw them.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

COMMANDS = {
    "fit": ["fit"],
    "pinn": ["pinn", "poisson-1d", "--steps", "500", "--out", "out"],
    "molecule": ["molecule", "H", "--steps", "300", "--out", "out"],
    "quantum": ["quantum", "tfim", "--methods", "spring", "--out", "out"],
    "reproduce": ["reproduce", "superlinear", "--quick", "--jobs", "1", "--out", "out"],
}
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
PATIENCE = 12_000
"""How often it is looked whether a command has begun: a minute."""
PICTURES = ("solution.svg", "density.svg", "superlinear.svg")  # of results alone


class Forker:
    """Runs commands in processes that have imported everything; see forker.py."""

    def __init__(self, cache: Path):
        environment = {
            **os.environ,
            "SNAPGRAD_COMPILATION_CACHE": "on",
            "XDG_CACHE_HOME": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__).with_name("forker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, folder: Path, args: list[str], stop: tuple[int, float] | None = None) -> tuple[int, str]:
        """Exit code and errors of a command, with a signal after so many seconds."""
        (folder / "begun").unlink(missing_ok=True)
        self.process.stdin.write(json.dumps([str(folder), args]) + "\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        if stop is not None:
            for _ in range(PATIENCE):
                if (folder / "begun").exists():
                    break
                time.sleep(0.005)
            time.sleep(stop[1])
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, stop[0])
        code = int(self.process.stdout.readline())
        return code, (folder / "said").read_text()


@pytest.fixture(scope="module")
def forker(tmp_path_factory):
    forker = Forker(tmp_path_factory.mktemp("cache"))
    yield forker
    forker.process.communicate(timeout=60)


def timeless(value):
    """Without what is time."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if "seconds" not in k and k != "spent"}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def results(folder: Path) -> dict[str, object]:
    """What must not depend on how a run was interrupted."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name, content = str(path.relative_to(folder)), path.read_bytes() if path.is_file() else b""
        if path.suffix in (".npz", ".csv") or path.name in PICTURES:
            found[name] = content
        elif path.suffix == ".snap":  # a line of magic, a line of JSON, arrays
            magic, header, arrays = content.split(b"\n", 2)
            found[name] = magic, json.dumps(timeless(json.loads(header))), arrays
        elif path.suffix == ".jsonl":
            found[name] = [timeless(json.loads(line)) for line in content.splitlines()]
        elif path.suffix == ".json" and path.name not in ("section.json", "study.json"):
            found[name] = timeless(json.loads(content))
    return json.loads(json.dumps(found, default=lambda b: b.hex()))


def begun(out: Path) -> bool:
    """Whether there is something to resume, as a user would look for it."""
    return any(out.rglob("checkpoint.snap")) or any(out.rglob("training.json"))


def chain(forker, folder: Path, command: list[str], kills: int, seed: int) -> None:
    """Stops a command so many times at random moments of its run; compares it each time it comes through."""
    whole = folder / "whole"
    whole.mkdir()
    for _ in range(2):  # the second time with programs compiled, as all those that are stopped
        shutil.rmtree(whole / "out", ignore_errors=True)
        start = time.monotonic()
        code, said = forker.run(whole, command)
        duration = time.monotonic() - start
        assert code == 0, said
    wanted, draw, killed, rounds = results(whole / "out"), random.Random(seed), 0, 0
    assert wanted
    while killed < kills:
        here = folder / f"round-{rounds}"
        here.mkdir()
        code, rounds = 1, rounds + 1
        while code != 0:
            resume = ["--resume"] if command[0] not in ("fit", "reproduce") and begun(here / "out") else []
            last = killed >= kills
            stop = None if last else (draw.choice(list(CODES)), draw.uniform(0, duration))
            code, said = forker.run(here, command + resume, stop)
            assert "Traceback" not in said and "Exception ignored" not in said, said
            assert len(said.splitlines()) <= 2, said
            if code != 0:  # outside the library SIGTERM kills a process, which a shell reports as 143 too
                ended = 143 if code == -signal.SIGTERM else code
                assert stop is not None and ended == CODES[stop[0]], (stop, code, said)
                killed += 1
        assert results(here / "out") == wanted
        assert not list((here / "out").rglob(".*")), "nothing unfinished is left"


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", COMMANDS)
def test_stopped_at_random_moments(forker, name, kills, tmp_path):
    if name == "quantum" and find_spec("netket") is None:
        pytest.skip("NetKet is not installed")
    chain(forker, tmp_path, COMMANDS[name], kills, seed=kills)
