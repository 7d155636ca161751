"""The command line: `snapgrad reproduce`, `list`, `report`, `theory`, `pinn`, `quantum`."""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from .studies._reproduce import Plan

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)
_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130
_SILENCE = 20.0  # seconds between two lines of progress where there is no terminal
_CLICK_ERROR: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class UserError(Exception):
    """Something the user can put right; the message is one line that says how."""


class StoppedError(Exception):
    """An interruption; the message says how to go on."""


@app.callback()
def _about() -> None:
    """Sketch-and-project natural gradients: reproduce the paper, train PINNs and quantum states."""


@app.command("list")
def list_studies() -> None:
    """Lists the figures that `snapgrad reproduce` makes."""
    from .studies import NAMES, load

    width = max(map(len, NAMES))
    for name in NAMES:
        study = load(name)
        print(f"{name:{width}}  {study.source:9}  {study.title}")


@app.command()
def reproduce(
    figures: Annotated[
        list[str] | None, typer.Argument(help="Which figures; default all. See `snapgrad list`.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Small sizes for a trial, or those of the paper.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="The seed of all random numbers.")] = 0,
    out: Annotated[Path, typer.Option(help="Where results go; finished parts found there are kept.")] = Path(
        "results"
    ),
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes to use; default one a core, at most 8.")
    ] = None,
) -> None:
    """Computes the figures, draws them and checks their claims; goes on where an earlier run stopped."""
    from . import studies
    from .studies import _reproduce

    unknown = [name for name in figures or () if name not in studies.NAMES]
    if unknown:
        raise UserError(f"there is no figure {unknown[0]!r}: choose from {', '.join(studies.NAMES)}.")
    names = [name for name in studies.NAMES if not figures or name in figures]
    size: studies.Size = "quick" if quick else "full"
    console = _console()
    start, failed = time.perf_counter(), []
    with _reproduce.claimed(out):
        plans = [_reproduce.plan(name, out, size, seed) for name in names]
        for name in _computed(console, plans, size, seed, jobs or _cores()):
            entry = _reproduce.finish(name, out, size, seed)
            failed += _summarise(console, entry, out)
        page = _reproduce.write_report(out)
    console.print(f"{page} written, {time.perf_counter() - start:.0f} s")
    for name, statement in failed:
        console.print(f"claim failed in {name}: {statement}")
    if failed:
        raise typer.Exit(_FAILED)


@app.command("report")
def make_report(folder: Annotated[Path, typer.Argument(help="A folder of results.")]) -> None:
    """Builds report.html anew from the results in a folder."""
    from .studies import _reproduce

    print(f"{_reproduce.write_report(folder)} written")


@app.command()
def theory(
    k: Annotated[str, typer.Option(help="Sample sizes, with commas between.")] = "1,2,5,10,20",
    matrix: Annotated[Path | None, typer.Option(help="An .npy file with J; default a random one.")] = None,
    spectrum: Annotated[str, typer.Option(help="Singular values of the random J: flat, power:P, exp:R.")] = (
        "power:2"
    ),
    m: Annotated[int, typer.Option(min=1, help="Rows of the random J.")] = 1000,
    n: Annotated[int, typer.Option(min=1, help="Columns of the random J.")] = 100,
    damping: Annotated[float, typer.Option(min=0.0, help="λ.")] = 0.0,
    sampling: Annotated[str, typer.Option(help="svs or uniform.")] = "svs",
    seed: Annotated[int, typer.Option(min=0, help="The seed of all random numbers.")] = 0,
    rtol: Annotated[float, typer.Option(min=0.0, help="Draw until intervals are this narrow.")] = 0.1,
    out: Annotated[Path, typer.Option(help="The picture: .svg, .png or .pdf.")] = Path("constants.svg"),
) -> None:
    """Tabulates and draws α, β, γ and the convergence rates they predict against the sample size."""
    from .studies import constants

    try:
        sizes = [int(size) for size in k.split(",")]
    except ValueError:
        raise UserError(f"--k must be whole numbers with commas between, such as 1,2,5; got {k!r}.") from None
    try:
        table = constants.theory_table(
            sizes,
            matrix=matrix,
            spectrum=spectrum,
            num_rows=m,
            num_params=n,
            damping=damping,
            sampling=sampling,  # pyright: ignore[reportArgumentType]  # checked there
            seed=seed,
            rtol=rtol,
            progress=True,
        )
        _console().print(constants.render(table))
        print(f"{constants.draw(table, out)} written")
    except ValueError as error:
        raise UserError(str(error)) from None


_OUT = Annotated[Path, typer.Option(help="The results folder; its report.html shows what was trained.")]
_SEED = Annotated[int, typer.Option(min=0, help="The seed of all random numbers.")]


@app.command()
def pinn(
    problem: Annotated[str, typer.Argument(help="Such as poisson-2d; `list` for all names.")],
    method: Annotated[str, typer.Option(help="auto, spring, sng, engd, engd-w, adam or lbfgs.")] = "auto",
    steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many steps.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Stop after so many seconds.")] = None,
    seed: _SEED = 0,
    out: _OUT = Path("results"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint of this run.")] = False,
) -> None:
    """Trains a PINN of the zoo and draws its solution and its error against time."""
    from .studies import _reproduce
    from .studies import pinn as study

    if problem == "list":
        print("\n".join(study.pinn.NAMES))
        return
    console, show = _live()
    with _reproduce.claimed(out), console.status("compiling") as status:
        try:
            result = study.train(
                problem,
                method=method,
                steps=steps,
                seconds=seconds,
                seed=seed,
                out=out,
                resume=resume,
                show=lambda text: show(status, text),
            )
        except (ValueError, FloatingPointError) as error:
            raise UserError(str(error)) from None
        except KeyboardInterrupt:
            raise StoppedError("add --resume to go on from the checkpoint.") from None
        page = _reproduce.write_report(out)
    console.print(f"{study.line(result)}  (stopped by {result['reason']})")
    console.print(f"written: {', '.join(map(str, [*result['files'], page]))}")


@app.command()
def quantum(
    system: Annotated[str, typer.Argument(help="tfim, heisenberg or j1j2: a chain of spins.")],
    size: Annotated[int | None, typer.Option(min=1, help="Sites of the chain.")] = None,
    methods: Annotated[str, typer.Option(help="Of spring, sng and sr, with commas.")] = "spring,sng,sr",
    samples: Annotated[int | None, typer.Option(min=1, help="Samples an iteration, k.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Iterations.")] = None,
    step_size: Annotated[float | None, typer.Option(min=0.0, help="η.")] = None,
    momentum: Annotated[float | None, typer.Option(min=0.0, help="μ of SPRING.")] = None,
    damping: Annotated[float | None, typer.Option(min=0.0, help="λ, all along; default decreasing.")] = None,
    alpha: Annotated[int | None, typer.Option(min=1, help="Hidden units a site.")] = None,
    seed: _SEED = 0,
    out: _OUT = Path("results"),
) -> None:
    """Trains the ground state of a spin chain under NetKet: SPRING and SNG beside NetKet's own SR."""
    from dataclasses import replace
    from importlib.util import find_spec

    from .studies import _reproduce
    from .studies import quantum as study

    chosen: Any = methods.split(",")
    if system not in study.NAMES:
        raise UserError(f"there is no system {system!r}: choose from {', '.join(study.NAMES)}.")
    unknown = [name for name in chosen if name not in study.METHODS]
    if unknown:
        raise UserError(f"--methods must be of {', '.join(study.METHODS)}; got {unknown[0]!r}.")
    if find_spec("netket") is None:
        raise UserError("`snapgrad quantum` needs NetKet: pip install 'snapgrad[netket]'.")
    given = {
        "size": size,
        "samples": samples,
        "steps": steps,
        "step_size": step_size,
        "momentum": momentum,
        "damping": None if damping is None else (damping, damping),
        "alpha": alpha,
        "seed": seed,
    }
    training = replace(study.DEFAULTS[system], **{k: v for k, v in given.items() if v is not None})
    console = _console()
    with _reproduce.claimed(out):
        try:
            study.run(system, training, methods=chosen, out=out, console=console)
        except ValueError as error:
            raise UserError(str(error)) from None
        except KeyboardInterrupt:
            raise StoppedError("the methods that had ended are stored.") from None
        page = _reproduce.write_report(out)
    console.print(f"{page} written")


def _live() -> tuple["Console", Any]:
    """A console, and a function that shows one line: in place on a terminal, now and then in a log."""
    console, spoken = _console(), 0.0

    def show(status: Any, text: str) -> None:
        nonlocal spoken
        status.update(text)
        if not console.is_terminal and time.monotonic() - spoken > _SILENCE:
            console.print(text)
            spoken = time.monotonic()

    return console, show


def _computed(
    console: "Console", plans: Sequence["Plan"], size: Any, seed: int, workers: int
) -> Iterator[str]:
    """Computes what is missing behind progress bars; yields each study when all its panels are there."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from .studies import ResultsError, _reproduce

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
    with Progress(*columns, console=console) as bar:
        tasks = {
            name: bar.add_task(name, start=False, total=sum(panels.values()))
            for name, panels in left.items()
            if panels
        }
        partial: dict[str, dict[str, float]] = {name: {} for name in tasks}
        finished = dict.fromkeys(tasks, 0.0)
        total = sum(sum(panels.values()) for panels in left.values())
        started = spoken = time.monotonic()
        for event in _reproduce.compute(plans, size, seed, workers):
            name, panel = event.job.study, event.job.panel
            if event.kind == "refused":
                raise ResultsError(event.text)
            if event.kind == "crash":
                raise RuntimeError(event.text)
            bar.start_task(tasks[name])
            if event.kind == "tick":
                partial[name][panel] = event.fraction * left[name][panel]
            else:
                partial[name].pop(panel, None)
                finished[name] += left[name].pop(panel)
            bar.update(tasks[name], completed=finished[name] + sum(partial[name].values()))
            now, done = time.monotonic(), sum(finished.values())
            if not console.is_terminal and done and now - spoken > _SILENCE:  # a log shows no bars
                rest = (now - started) * (total - done) / done
                console.print(
                    f"{100 * done / total:.0f} % after {now - started:.0f} s, about {rest:.0f} s left"
                )
                spoken = now
            if not left[name]:
                yield name


def _summarise(console: "Console", entry: dict[str, Any], out: Path) -> list[tuple[str, str]]:
    """Prints one line for a finished study; returns the claims that fail."""
    name, claims = entry["name"], [claim for claim in entry["claims"] if claim["judged"]]
    failed = [(name, claim["statement"]) for claim in claims if not claim["passed"]]
    verdict = f"{len(claims) - len(failed)} of {len(claims)} claims hold" if claims else "claims not judged"
    console.print(f"{name}: {out / name / f'{name}.svg'}, {verdict}, {entry['seconds']:.0f} s of computing")
    return failed


def _console() -> "Console":
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, markup=False)


def _cores() -> int:
    import os

    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)


def main() -> None:
    """The `snapgrad` command."""
    from .studies import ResultsError, settle_environment

    settle_environment()
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        code = app(standalone_mode=False)
    except (UserError, ResultsError) as error:
        code = _complain(str(error))
    except _CLICK_ERROR as error:
        code = _complain(f"{error.format_message()} See `snapgrad --help`.")
    except StoppedError as stop:
        print(f"snapgrad: stopped; {stop}", file=sys.stderr)
        code = _INTERRUPTED
    except (typer.Abort, KeyboardInterrupt):
        code = _stopped()
    else:
        code = _stopped() if code == _INTERRUPTED else code  # what typer makes of an interruption
    sys.exit(code or 0)


def _stopped() -> int:
    print("snapgrad: stopped; finished parts are kept, the same command goes on.", file=sys.stderr)
    return _INTERRUPTED


def _complain(message: str) -> int:
    print(f"snapgrad: {message}", file=sys.stderr)
    return _USAGE


if __name__ == "__main__":
    main()
