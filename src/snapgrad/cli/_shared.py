"""What several commands need: options and files read, ways to stop, a console, the page."""

import os
import signal
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from jaxtyping import Float

from .._signals import as_interruptions
from ..figures import NAMES
from ..reproduce import FailedError, claimed, write_report
from ..training import Team

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from rich.console import Console

FAILED, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes."""
SILENCE = 20.0
"""Seconds between two lines of progress where there is no terminal."""
Out = Annotated[Path, typer.Option(help="The results folder; its report.html shows what was trained.")]
Seed = Annotated[int, typer.Option(min=0, max=2**62, help="The seed of all random numbers.")]
Steps = Annotated[int | None, typer.Option(min=1, max=10**9, help="Stop after so many steps.")]
Seconds = Annotated[float | None, typer.Option(min=0.0, help="Stop after so many seconds.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint of this run.")]
Distributed = Annotated[
    bool,
    typer.Option(
        "--distributed",
        help="Spread each step over all devices: of this process, or of all that SLURM, Open MPI or "
        "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID tell of.",
    ),
]


class UserError(Exception):
    """Something the user can put right; the message is one line that says how."""


class StoppedError(Exception):
    """An interruption; the message says how to go on."""


def console(stderr: bool = False, quiet: bool = False) -> "Console":
    """A console that wraps nothing and colours nothing by itself."""
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, markup=False, stderr=stderr, quiet=quiet)


def live(stderr: bool = False, quiet: bool = False) -> tuple["Console", Any]:
    """A console, and a function that shows one line: in place on a terminal, now and then in a log.

    On `stderr` where the output itself is meant for another program.
    """
    out, spoken = console(stderr, quiet), 0.0

    def show(status: Any, text: str) -> None:
        nonlocal spoken
        status.update(text)
        if not out.is_terminal and time.monotonic() - spoken > SILENCE:
            out.print(text)
            spoken = time.monotonic()

    return out, show


def write_page(out: Path) -> Path:
    """`report.html` of a results folder: the figures in the order of the paper, then trained models."""
    return write_report(out, NAMES)


@contextmanager
def resumable() -> Iterator[None]:
    """Training with a checkpoint: what goes wrong in words, and after an interruption what to do."""
    try:
        with as_interruptions():
            yield
    except ValueError as error:
        raise UserError(str(error)) from None
    except FloatingPointError as error:
        raise FailedError(str(error)) from None
    except KeyboardInterrupt:
        raise StoppedError(
            "add --resume to go on from its checkpoint; one that has none begins again without it."
        ) from None


def train_live(
    out: Path, distributed: bool, train: Callable[..., Any], summary: Callable[[Any], str]
) -> None:
    """Trains in a results folder, shows how it goes, and ends with a summary and what was written.

    `train(show=..., mesh=...)` does it. Of several processes the first one alone shows and writes.
    """
    mesh = all_devices() if distributed else None
    team = Team(mesh)
    screen, show = live(quiet=not team.leads)
    if mesh is not None:
        processes = len({device.process_index for device in mesh.devices.flat})
        screen.print(f"devices: {mesh.size}, processes: {processes}")

    def claim() -> None:
        stack.enter_context(claimed(out))

    with ExitStack() as stack:
        team.told(claim)
        status = stack.enter_context(screen.status("compiling"))
        with resumable():
            result = train(show=lambda text: show(status, text), mesh=mesh)
            if not team.leads:
                return
            page = write_page(out)
    screen.print(f"{summary(result)} (stopped by {result['reason']})")
    screen.print(f"written: {', '.join(map(str, [*result['files'], page]))}")


def all_devices() -> "Mesh":
    """A mesh of all devices, those of other processes included where there are any."""
    import jax

    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    given = {name: os.environ[name] for name in names if name in os.environ}
    try:
        count, process = (int(given[name]) if name in given else None for name in names[1:])
        if (count, process) != (None, None) and (count is None or process not in range(count)):
            raise ValueError("these are no number of processes and one of them")
        jax.distributed.initialize(num_processes=count, process_id=process)
    except ValueError as error:
        if given:
            raise UserError(
                f"--distributed: {', '.join(names)} must all be set and fit together: an address such as "
                f"node1:1234, the number of processes, and which this one is, from 0; got {given} ({error})."
            ) from None
    except RuntimeError as error:
        raise UserError(f"--distributed: the processes do not find each other: {error}") from None
    # It has taken SIGTERM for itself, without the knowledge of Python.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    return jax.make_mesh((jax.device_count(),), ("rows",))


def whole_numbers(option: str, text: str) -> list[int]:
    """Whole numbers with commas between."""
    try:
        found = [int(part) for part in text.split(",")]
        if not all(1 <= number < 2**31 for number in found):
            raise ValueError
        return found
    except ValueError:
        raise UserError(
            f"{option} must be whole numbers of at least 1 with commas between, such as 1,2,5; got {text!r}."
        ) from None


def read_matrix(option: str, path: Path) -> Float[np.ndarray, "m n"]:
    """The real matrix in the CSV, NPY or NPZ file that an option names.

    An NPZ file must hold one array, or one named `J`.

    Raises `UserError` where there is none: no such file, text that is not a number, an array of another shape
    or kind. Pickled objects are not read.
    """
    if path.suffix not in READERS:
        raise UserError(f"{option} must be a .csv, .npy or .npz file; got {path}.")
    try:
        array = READERS[path.suffix](path)
    except OSError as error:
        raise UserError(f"{option} {path} cannot be read: {error.strerror or error}.") from None
    except (
        ValueError,
        EOFError,
        MemoryError,
        OverflowError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise UserError(f"{option} {path} is not a {path.suffix} file of numbers: {error}") from None
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.size:
        raise UserError(
            f"{option} must hold one real matrix, [m, n]; {path} holds shape {array.shape}, "
            f"dtype {array.dtype}."
        )
    if not np.isfinite(array).all():
        raise UserError(f"{option} must hold finite numbers; {path} has some that are not.")
    return array.astype(float)


def _read_csv(path: Path) -> np.ndarray:
    lines = path.read_text(encoding="utf-8").splitlines()
    return np.loadtxt(lines, delimiter=",", ndmin=2) if any(map(str.strip, lines)) else np.zeros((0, 0))


def _read_npy(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _read_npz(path: Path) -> np.ndarray:
    if path.exists() and not zipfile.is_zipfile(path):
        raise ValueError("it is no archive of arrays.")
    with np.load(path, allow_pickle=False) as archive:
        names = list(archive)
        if "J" not in names and len(names) != 1:
            raise ValueError(f"it holds {len(names)} arrays ({', '.join(names)}); name the one to take J.")
        return archive["J" if "J" in names else names[0]]


READERS = {".csv": _read_csv, ".npy": _read_npy, ".npz": _read_npz}
