"""`snapgrad diagnose`: what a problem's kernel says about how to train it, as text, JSON and a picture."""

from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from .. import pinn
from .._contracts import AbstractProblem
from ..diagnosis import diagnose
from ..problems import LeastQuadratics, spectrum_llq
from ..reproduce import write_atomic
from ..training import fit
from ._shared import READERS, Seed, UserError, live, read_matrix, whole_numbers


def command(
    problem: Annotated[
        str,
        typer.Argument(
            help="A PINN of the zoo (`snapgrad pinn list`), singular values of a random J (flat, power:P, "
            "exp:R), or J in a .csv, .npy or .npz file."
        ),
    ],
    k: Annotated[str | None, typer.Option(help="Sample sizes to choose from, with commas between.")] = None,
    m: Annotated[int, typer.Option(min=1, max=10**9, help="Rows of the random J.")] = 1000,
    n: Annotated[int, typer.Option(min=1, max=10**7, help="Columns of the random J.")] = 100,
    hessian: Annotated[str, typer.Option(help="identity, wishart or linear (κ = 100).")] = "identity",
    noise: Annotated[float, typer.Option(min=0.0, help="Relative noise of the right-hand side.")] = 0.0,
    after: Annotated[int, typer.Option(min=0, help="Train the PINN for so many steps first.")] = 0,
    pool: Annotated[int, typer.Option(min=1, max=2000, help="How many rows to look at.")] = 1000,
    tolerance: Annotated[float | None, typer.Option(help="How far the error is to fall.")] = None,
    seconds: Annotated[float, typer.Option(help="About how long it may take, without compilation.")] = 20.0,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="A folder for report.txt, report.json and diagnosis.svg.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of text.")] = False,
) -> None:
    """Recommends method, k, λ, η, μ, precision and sampler for a problem, each with its reason."""
    sizes = None if k is None else whole_numbers("--k", k)
    if hessian not in ("identity", "wishart", "linear"):
        raise UserError(f"--hessian must be identity, wishart or linear; got {hessian!r}.")
    make, look = jax.random.split(jax.random.key(seed))
    screen, show = live(stderr=True)
    with screen.status("starting") as status:
        try:
            chosen = _problem(problem, make, m, n, hessian, noise)
            params = _trained(chosen, make, after, lambda text: show(status, text))
            report = diagnose(
                chosen,
                look,
                params=params,
                pool=pool,
                sample_sizes=sizes,
                tolerance=tolerance,
                seconds=seconds,
                show=lambda text: show(status, text),
            )
        except ValueError as error:
            raise UserError(str(error)) from None
    if out is not None:
        write_atomic(out / "report.txt", f"{report}\n".encode())
        write_atomic(out / "report.json", report.to_json().encode())
        report.plot(out / "diagnosis.svg")
    print(report.to_json() if json else report)
    if out is not None and not json:
        print(f"\nwritten: {out}/report.txt, {out}/report.json, {out}/diagnosis.svg")


def _problem(name: str, key: Any, m: int, n: int, hessian: Any, noise: float) -> AbstractProblem:
    """A PINN of the zoo, least squares with the matrix of a file, or a random problem."""
    if name in pinn.NAMES:
        return pinn.zoo(name)
    if Path(name).suffix in READERS:
        J = read_matrix("PROBLEM", Path(name))
        return LeastQuadratics(J, solution=jax.random.normal(key, J.shape[1:]))
    if name.partition(":")[0] not in ("flat", "power", "exp"):
        raise UserError(
            f"PROBLEM must be a PINN ({', '.join(pinn.NAMES)}), flat, power:P or exp:R, or a "
            f"{', '.join(READERS)} file; got {name!r}."
        )
    return spectrum_llq(key, name, m, n, hessian=hessian, noise=noise)


def _trained(problem: AbstractProblem, key: Any, steps: int, show: Any) -> Any:
    """Parameters after some steps of training; None for those at the start."""
    if not steps:
        return None
    if not isinstance(problem, pinn.PINN):
        raise UserError("--after must be 0 for a linear problem, which is the same everywhere.")
    show(f"training for {steps} steps")
    return fit(problem, key, steps=steps).params
