"""`snapgrad quantum`: ground states of spin chains under NetKet."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from ..reproduce import claimed
from ._shared import Out, Seed, UserError, console, resumable, write_page


def command(
    system: Annotated[str, typer.Argument(help="tfim, heisenberg or j1j2: a chain of spins.")],
    size: Annotated[int | None, typer.Option(min=1, max=10**5, help="Sites of the chain.")] = None,
    methods: Annotated[
        str, typer.Option(help="Of default, spring, sng and sr, with commas.")
    ] = "default,spring,sr",
    samples: Annotated[int | None, typer.Option(min=1, max=10**7, help="Samples per iteration, k.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, max=10**7, help="Iterations.")] = None,
    step_size: Annotated[float | None, typer.Option(min=0.0, help="η, of all but the default.")] = None,
    momentum: Annotated[float | None, typer.Option(min=0.0, help="μ of SPRING.")] = None,
    damping: Annotated[
        float | None, typer.Option(min=0.0, help="λ, all along, of all but the default.")
    ] = None,
    alpha: Annotated[int | None, typer.Option(min=1, max=10**4, help="Hidden units per site.")] = None,
    seed: Seed = 0,
    out: Out = Path("results"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out: keep what is trained there.")
    ] = False,
) -> None:
    """Trains the ground state of a spin chain: without settings, and by SPRING and NetKet's SR with some."""
    if find_spec("netket") is None:
        raise UserError("`snapgrad quantum` needs NetKet: pip install 'snapgrad[netket]'.")
    from ..netket import study

    chosen: Any = methods.split(",")
    if system not in study.NAMES:
        raise UserError(f"there is no system {system!r}: choose from {', '.join(study.NAMES)}.")
    unknown = [name for name in chosen if name not in study.METHODS]
    if unknown:
        raise UserError(f"--methods must be of {', '.join(study.METHODS)}; got {unknown[0]!r}.")
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
    screen = console()
    with claimed(out):
        with resumable():
            study.run(system, training, methods=chosen, out=out, resume=resume, console=screen)
        page = write_page(out)
    screen.print(f"{page} written")
