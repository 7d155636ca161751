"""`snapgrad molecule`: the ground state of an atom or a molecule, live."""

from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import typer

from ..molecules import NAMES
from ._shared import Distributed, Out, Resume, Seconds, Seed, Steps, console, train_live


def command(
    molecule: Annotated[str, typer.Argument(help="Such as LiH, or an .xyz file; `list` shows all names.")],
    ansatz: Annotated[str, typer.Option(help="ferminet or psiformer.")] = "ferminet",
    steps: Steps = None,
    seconds: Seconds = None,
    charge: Annotated[int, typer.Option(help="Of the whole molecule.")] = 0,
    spin: Annotated[int | None, typer.Option(min=0, help="Unpaired electrons.")] = None,
    pretrain: Annotated[
        bool, typer.Option("--pretrain", help="Start from Hartree–Fock orbitals, by PySCF.")
    ] = False,
    seed: Seed = 0,
    out: Out = Path("results"),
    resume: Resume = False,
    distributed: Distributed = False,
) -> None:
    """Trains the ground state of a molecule and draws its energy against time and its density."""
    from ..molecules import study

    if molecule == "list":
        console().print(", ".join(NAMES))
        return
    train = partial(
        study.train,
        molecule,
        ansatz=ansatz,
        steps=steps,
        seconds=seconds,
        charge=charge,
        spin=spin,
        pretrain=pretrain,
        seed=seed,
        out=out,
        resume=resume,
    )
    train_live(out, distributed, train, itemgetter("verdict"))
