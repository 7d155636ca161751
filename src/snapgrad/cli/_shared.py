"""What several commands need: options, ways to stop, a console, the page."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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


def console() -> "Console":
    """A console that wraps nothing and colours nothing by itself."""
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, markup=False)


def live() -> tuple["Console", Any]:
    """A console, and a function that shows one line: in place on a terminal, now and then in a log."""
    out, spoken = console(), 0.0

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
