"""Training on several devices and in several processes: the parameters of one device, to rounding."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import jax
import numpy as np
import pytest
from team import CASES, trained

SCRIPT = Path(__file__).with_name("team.py")


def same(found, wanted):
    for name, params in found.items():
        error = np.linalg.norm(params - wanted[name]) / np.linalg.norm(wanted[name])
        assert error < 1e-10, (name, error)


def run(*commands, **env):
    """`team.py` once for each line of arguments, at the same time."""
    env = dict(os.environ, JAX_PLATFORMS="cpu", **env)
    with ExitStack() as stack:
        runs = [
            stack.enter_context(
                subprocess.Popen([sys.executable, SCRIPT, *map(str, args)], env=env, stderr=subprocess.PIPE)
            )
            for args in commands
        ]
        for one in runs:
            stack.callback(one.kill)
        for one in runs:
            _, errors = one.communicate(timeout=300)
            assert one.returncode == 0, errors.decode()[-3000:]


@pytest.fixture(scope="module")
def alone():
    found = trained(CASES)
    return found | {"resumed": found["fit"]}


def test_four_devices(tmp_path, alone):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    run((tmp_path, ",".join(CASES)), XLA_FLAGS=flags)
    same(np.load(tmp_path / "1-0.npz"), alone)


def test_a_mesh_of_one_device(alone):
    same(trained(CASES, mesh=jax.make_mesh((1,), ("rows",))), alone)


def test_a_mesh_that_others_have_set_for_the_process(alone):
    """As NetKet does when it is imported."""
    with jax.set_mesh(jax.make_mesh((1,), ("S",))):
        same(trained(["fit", "helium"], mesh=jax.make_mesh((1,), ("rows",))), alone)


@pytest.mark.parametrize(
    ("processes", "names"),
    [
        (2, ("fit", "equation", "helium")),
        (4, ("fit",)),
        pytest.param(4, tuple(CASES), marks=pytest.mark.slow),
    ],
)
def test_processes(tmp_path, alone, processes, names):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    run(*[(tmp_path, ",".join(names), processes, process, port) for process in range(processes)])
    for process in range(processes):
        same(np.load(tmp_path / f"{processes}-{process}.npz"), alone)
    same(trained(["fit"], checkpoint=tmp_path / "half", record_every=10), alone)  # goes on alone


def test_what_is_no_mesh():
    for wrong, kind in ((4, TypeError), (jax.make_mesh((1, 1), ("a", "b")), ValueError)):
        with pytest.raises(kind, match="`mesh` must"):
            trained(["fit"], mesh=wrong)
