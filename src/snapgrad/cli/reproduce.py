"""`snapgrad reproduce`: the figures, behind progress bars."""

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._threads import own_threads
from ..figures import NAMES, load
from ..reproduce import FailedError, Plan, Size, claimed, compute, finish, plan
from ._shared import FAILED, SILENCE, Seed, UserError, console, write_page

if TYPE_CHECKING:
    from rich.console import Console

CONNECT = 10.0
"""Seconds to wait for a scheduler."""


def command(
    figures: Annotated[
        list[str] | None, typer.Argument(help="Which figures; default all. See `snapgrad list`.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Small sizes for a trial, or those of the paper.")
    ] = False,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Where results go; finished parts found there are kept.")] = Path(
        "results"
    ),
    jobs: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Processes to use; default one a core, at most 8.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of a Dask cluster to compute on, tcp://HOST:PORT.")
    ] = None,
) -> None:
    """Computes the figures, draws them and checks their claims; goes on where an earlier run stopped."""
    unknown = [name for name in figures or () if name not in NAMES]
    if unknown:
        raise UserError(f"there is no figure {unknown[0]!r}: choose from {', '.join(NAMES)}.")
    if scheduler is not None and jobs is not None:
        raise UserError("give --jobs or --scheduler, not both: a cluster has its own workers.")
    names = [name for name in NAMES if not figures or name in figures]
    size: Size = "quick" if quick else "full"
    screen = console()
    start, failed = time.perf_counter(), []
    with claimed(out), _executor(scheduler, jobs or min(own_threads(), 8)) as on:
        plans = [plan(load(name), out, size, seed) for name in names]
        for name in _computed(screen, plans, size, seed, on):
            entry = finish(load(name), out, size, seed)
            failed += _summarise(screen, entry, out)
        page = write_page(out)
    screen.print(f"{page} written, {time.perf_counter() - start:.0f} s")
    for name, statement in failed:
        screen.print(f"claim failed in {name}: {statement}")
    if failed:
        raise typer.Exit(FAILED)


@contextmanager
def _executor(scheduler: str | None, jobs: int) -> Iterator[int | Executor]:
    """So many processes of this machine, or the workers of a Dask cluster."""
    if scheduler is None:
        yield jobs
        return
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise UserError("--scheduler needs Dask: pip install 'snapgrad[cluster]'.") from None
    # Dask logs a traceback of its own for every connection that ends; what matters is an error here.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = Client(scheduler, timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise UserError(
            f"no Dask scheduler answers at {scheduler!r} ({_first_line(error)}): start one with "
            f"`dask scheduler`, which prints its address."
        ) from None
    with client:
        try:
            yield client.get_executor(pure=False)
        except KilledWorker as error:
            raise FailedError(f"{_first_line(error)} Workers with more memory may live.") from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _computed(
    screen: "Console", plans: Sequence["Plan"], size: Any, seed: int, on: int | Executor
) -> Iterator[str]:
    """Computes what is missing behind progress bars; yields each study when all its panels are there."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    left = {p.study.name: {panel.name: panel.cost for panel in p.missing} for p in plans}
    yield from (name for name, panels in left.items() if not panels)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen) as bar:
        tasks = {
            name: bar.add_task(name, start=False, total=sum(panels.values()))
            for name, panels in left.items()
            if panels
        }
        partial: dict[str, dict[str, float]] = {name: {} for name in tasks}
        finished = dict.fromkeys(tasks, 0.0)
        total = sum(sum(panels.values()) for panels in left.values())
        started = spoken = time.monotonic()
        for event in compute(plans, load, size, seed, on):
            name, panel = event.job.study, event.job.panel
            bar.start_task(tasks[name])
            if event.made is None:
                partial[name][panel] = event.fraction * left[name][panel]
            else:
                partial[name].pop(panel, None)
                finished[name] += left[name].pop(panel)
            bar.update(tasks[name], completed=finished[name] + sum(partial[name].values()))
            now, done = time.monotonic(), sum(finished.values())
            if not screen.is_terminal and done and now - spoken > SILENCE:  # a log shows no bars
                rest = (now - started) * (total - done) / done
                screen.print(
                    f"{100 * done / total:.0f} % after {now - started:.0f} s, about {rest:.0f} s left"
                )
                spoken = now
            if not left[name]:
                yield name


def _summarise(screen: "Console", entry: dict[str, Any], out: Path) -> list[tuple[str, str]]:
    """Prints one line for a finished study; returns the claims that fail."""
    name, claims = entry["name"], [claim for claim in entry["claims"] if claim["judged"]]
    failed = [(name, claim["statement"]) for claim in claims if not claim["passed"]]
    verdict = f"{len(claims) - len(failed)} of {len(claims)} claims hold" if claims else "claims not judged"
    screen.print(f"{name}: {out / name / f'{name}.svg'}, {verdict}, {entry['seconds']:.0f} s of computing")
    return failed
