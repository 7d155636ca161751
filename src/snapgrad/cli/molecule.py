"""`snapgrad molecule`: the ground state of an atom or a molecule, live."""

from pathlib import Path
from typing import Annotated

import typer

from ..molecules import NAMES
from ..reproduce import claimed
from ._shared import Out, Seed, StoppedError, UserError, console, live, write_page


def command(
    molecule: Annotated[str, typer.Argument(help="Such as LiH, or an .xyz file; `list` shows all names.")],
    ansatz: Annotated[str, typer.Option(help="ferminet or psiformer.")] = "ferminet",
    steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many steps.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Stop after so many seconds.")] = None,
    charge: Annotated[int, typer.Option(help="Of the whole molecule.")] = 0,
    spin: Annotated[int | None, typer.Option(min=0, help="Unpaired electrons.")] = None,
    seed: Seed = 0,
    out: Out = Path("results"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint of this run.")] = False,
) -> None:
    """Trains the ground state of a molecule and draws its energy against time and its density."""
    from ..molecules import study

    if molecule == "list":
        console().print(", ".join(NAMES))
        return
    screen, show = live()
    with claimed(out), screen.status("compiling") as status:
        try:
            result = study.train(
                molecule,
                ansatz=ansatz,
                steps=steps,
                seconds=seconds,
                charge=charge,
                spin=spin,
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
    screen.print(f"{result['verdict']} (stopped by {result['reason']})")
    screen.print(f"written: {', '.join(map(str, [*result['files'], page]))}")
