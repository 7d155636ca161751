"""`snapgrad theory`: α, β, γ and the rates they predict against the sample size, as a table and a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import jax
import numpy as np
import typer

from ..problems import singular_values, spectrum_matrix
from ..report import as_bytes
from ..reproduce import write_atomic
from ..theory import Interval, TableRow, table
from ._shared import Seed, UserError, console, read_matrix, whole_numbers

if TYPE_CHECKING:
    from rich.table import Table

PICTURES = (".svg", ".png", ".pdf")
LABELS = {"alpha": "α", "beta": "β", "gamma": "γ", "sng": "α/γ", "spring": "√(α/β)/γ"}
# Okabe and Ito's colours, told apart with any colour vision; marker shapes differ as well.
_LOOKS = {
    "alpha": {"color": "#0072B2", "marker": "o"},
    "beta": {"color": "#E69F00", "marker": "s"},
    "gamma": {"color": "#009E73", "marker": "^"},
    "sng": {"color": "#D55E00", "marker": "D"},
    "spring": {"color": "#CC79A7", "marker": "v"},
}


def command(
    k: Annotated[str, typer.Option(help="Sample sizes, with commas between.")] = "1,2,5,10,20",
    matrix: Annotated[
        Path | None, typer.Option(help="J in a .csv, .npy or .npz file; default a random one.")
    ] = None,
    spectrum: Annotated[str, typer.Option(help="Singular values of the random J: flat, power:P, exp:R.")] = (
        "power:2"
    ),
    m: Annotated[int, typer.Option(min=1, max=10**9, help="Rows of the random J.")] = 1000,
    n: Annotated[int, typer.Option(min=1, max=10**7, help="Columns of the random J.")] = 100,
    damping: Annotated[float, typer.Option(min=0.0, help="λ.")] = 0.0,
    sampling: Annotated[str, typer.Option(help="svs or uniform.")] = "svs",
    seed: Seed = 0,
    rtol: Annotated[float, typer.Option(min=0.0, help="Draw until intervals are this narrow.")] = 0.1,
    out: Annotated[Path, typer.Option(help="The picture: .svg, .png or .pdf.")] = Path("constants.svg"),
) -> None:
    """Tabulates and draws α, β, γ and the convergence rates they predict against the sample size."""
    if out.suffix not in PICTURES:
        raise UserError(f"--out must end in {', '.join(PICTURES)}; got {out}.")
    sizes = whole_numbers("--k", k)
    make, draws = jax.random.split(jax.random.key(seed))
    try:
        J = (
            spectrum_matrix(make, singular_values(spectrum, n), m)
            if matrix is None
            else read_matrix("--matrix", matrix)
        )
        law: Any = sampling  # checked there
        rows = table(J, sizes, draws, damping=damping, sampling=law, rtol=rtol, progress=True)
    except ValueError as error:
        raise UserError(str(error)) from None
    console().print(printed(rows))
    write_atomic(out, picture(rows, out.suffix[1:]))
    print(f"{out} written")


def printed(rows: Sequence[TableRow]) -> "Table":
    """A table for the terminal: estimates, and intervals where there is any doubt."""
    from rich.table import Table

    out = Table(caption="exact where no interval is shown; √(α/β)/γ is a conjecture")
    for label in ("k", *LABELS.values()):
        out.add_column(label, justify="right")
    for row in rows:
        out.add_row(str(row.sample_size), *(_text(getattr(row, name)) for name in LABELS))
    return out


def _text(interval: Interval) -> str:
    if interval.low == interval.high:
        return f"{interval.estimate:.4g}"
    return f"{interval.estimate:.4g} [{interval.low:.4g}, {interval.high:.4g}]"


def picture(rows: Sequence[TableRow], kind: str) -> bytes:
    """The constants and the rates against k, with error bars, as `"svg"`, `"png"` or `"pdf"`.

    The same numbers give the same bytes.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _curves(left, rows, ("alpha", "beta", "gamma"), "constants")
    _curves(right, rows, ("alpha", "sng", "spring"), r"rate per step, times $\lambda_{\min}(H)/\Vert H\Vert$")
    return as_bytes(figure, kind)


def _curves(axes: Any, rows: Sequence[TableRow], names: Sequence[str], label: str) -> None:
    k = [row.sample_size for row in rows]
    for name in names:
        low, middle, high = np.array([getattr(row, name) for row in rows]).T
        above = np.where(np.isfinite(high), high, middle) - middle
        axes.errorbar(
            k, middle, yerr=[middle - low, above], label=LABELS[name], markersize=5, capsize=3, **_LOOKS[name]
        )
    axes.set(xscale="log", yscale="log", xlabel="sample size k", ylabel=label)
    axes.set_xticks(k, [str(size) for size in k])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
