"""`snapgrad pinn`: train a PINN of the zoo, live."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..pinn import ZOO, Record
from ._shared import Distributed, Out, Resume, Seconds, Seed, Steps, console, train_live

if TYPE_CHECKING:
    from rich.table import Table


def command(
    problem: Annotated[str, typer.Argument(help="Such as poisson-2d; `list` shows all.")],
    method: Annotated[str, typer.Option(help="auto, spring, sng, engd, engd-w, adam or lbfgs.")] = "auto",
    steps: Steps = None,
    seconds: Seconds = None,
    seed: Seed = 0,
    out: Out = Path("results"),
    resume: Resume = False,
    distributed: Distributed = False,
    as_json: Annotated[bool, typer.Option("--json", help="Of `list`: for programs.")] = False,
) -> None:
    """Trains a PINN of the zoo and draws its solution and its error against time."""
    from ..pinn import study

    if problem == "list":
        if as_json:
            typer.echo(zoo_json())
        else:
            console().print(zoo_table())
        return
    train = partial(
        study.train, problem, method=method, steps=steps, seconds=seconds, seed=seed, out=out, resume=resume
    )
    train_live(out, distributed, train, study.line)


def zoo_table() -> "Table":
    """Every problem of the zoo: equation, setting, the network that solves it, the record to beat."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("equation, setting, network and points per step, best published error")
    for name, entry in ZOO.items():
        sizes = f"{entry.layers}; points {' + '.join(map(str, entry.points))}"
        if entry.pieces > 1:
            sizes += f"; {entry.pieces} slabs of time"
        lines = [entry.equation, entry.setting, sizes]
        if entry.record is not None:
            lines.append(f"record {record_words(entry.record)}")
        table.add_row(name, "\n".join(lines))
    return table


def record_words(record: Record) -> str:
    """The best published error, by whom, and how long it took."""
    time = "" if record.seconds is None else f", {record.seconds:,.0f} s"
    return f"{record.error:.1e} by {record.holder}{time}{record.note and f' ({record.note})'}"


def zoo_json() -> str:
    """The same for programs: a list of objects."""
    rows = []
    for name, entry in ZOO.items():
        row = {field: value for field, value in entry._asdict().items() if field != "make"}
        row["record"] = None if entry.record is None else entry.record._asdict()
        rows.append({"name": name, **row})
    return json.dumps(rows, ensure_ascii=False, indent=1)
