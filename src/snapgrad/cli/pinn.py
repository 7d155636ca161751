"""`snapgrad pinn`: train a PINN of the zoo, live."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..pinn import ZOO
from ..reproduce import claimed
from ._shared import Out, Seed, StoppedError, UserError, console, live, write_page

if TYPE_CHECKING:
    from rich.table import Table


def command(
    problem: Annotated[str, typer.Argument(help="Such as poisson-2d; `list` shows all.")],
    method: Annotated[str, typer.Option(help="auto, spring, sng, engd, engd-w, adam or lbfgs.")] = "auto",
    steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many steps.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Stop after so many seconds.")] = None,
    seed: Seed = 0,
    out: Out = Path("results"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint of this run.")] = False,
) -> None:
    """Trains a PINN of the zoo and draws its solution and its error against time."""
    from ..pinn import study

    if problem == "list":
        console().print(zoo_table())
        return
    screen, show = live()
    with claimed(out), screen.status("compiling") as status:
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
        page = write_page(out)
    screen.print(f"{study.line(result)}  (stopped by {result['reason']})")
    screen.print(f"written: {', '.join(map(str, [*result['files'], page]))}")


def zoo_table() -> "Table":
    """Every problem of the zoo: its equation, its setting, the network and the points that train it."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("equation, setting, network and points per step")
    for name, entry in ZOO.items():
        sizes = (
            f"hidden layers {'-'.join(map(str, entry.hidden))}, points {' + '.join(map(str, entry.points))}"
        )
        table.add_row(name, "\n".join([entry.equation, entry.setting, sizes]))
    return table
