"""What several commands need: options and files read, ways to stop, a console, the page."""

import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from jaxtyping import Float

from ..figures import NAMES
from ..reproduce import write_report

if TYPE_CHECKING:
    from rich.console import Console

FAILED, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes."""
SILENCE = 20.0
"""Seconds between two lines of progress where there is no terminal."""
Out = Annotated[Path, typer.Option(help="The results folder; its report.html shows what was trained.")]
Seed = Annotated[int, typer.Option(min=0, help="The seed of all random numbers.")]


class UserError(Exception):
    """Something the user can put right; the message is one line that says how."""


class StoppedError(Exception):
    """An interruption; the message says how to go on."""


def console(stderr: bool = False) -> "Console":
    """A console that wraps nothing and colours nothing by itself."""
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, markup=False, stderr=stderr)


def live(stderr: bool = False) -> tuple["Console", Any]:
    """A console, and a function that shows one line: in place on a terminal, now and then in a log.

    On `stderr` where the output itself is meant for another program.
    """
    out, spoken = console(stderr), 0.0

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


def whole_numbers(option: str, text: str) -> list[int]:
    """Whole numbers with commas between."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(
            f"{option} must be whole numbers with commas between, such as 1,2,5; got {text!r}."
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
    except (ValueError, EOFError) as error:
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
