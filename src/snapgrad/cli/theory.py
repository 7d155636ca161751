"""`snapgrad theory`: α, β, γ and the rates they predict against the sample size, as a table and a picture."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import jax
import numpy as np
import typer
from jaxtyping import Float

from ..problems import singular_values, spectrum_matrix
from ..reproduce import write_atomic
from ..theory import Interval, TableRow, table
from ._shared import Seed, UserError, console

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
    m: Annotated[int, typer.Option(min=1, help="Rows of the random J.")] = 1000,
    n: Annotated[int, typer.Option(min=1, help="Columns of the random J.")] = 100,
    damping: Annotated[float, typer.Option(min=0.0, help="λ.")] = 0.0,
    sampling: Annotated[str, typer.Option(help="svs or uniform.")] = "svs",
    seed: Seed = 0,
    rtol: Annotated[float, typer.Option(min=0.0, help="Draw until intervals are this narrow.")] = 0.1,
    out: Annotated[Path, typer.Option(help="The picture: .svg, .png or .pdf.")] = Path("constants.svg"),
) -> None:
    """Tabulates and draws α, β, γ and the convergence rates they predict against the sample size."""
    if out.suffix not in PICTURES:
        raise UserError(f"--out must end in {', '.join(PICTURES)}; got {out}.")
    try:
        sizes = [int(size) for size in k.split(",")]
    except ValueError:
        raise UserError(f"--k must be whole numbers with commas between, such as 1,2,5; got {k!r}.") from None
    make, draws = jax.random.split(jax.random.key(seed))
    try:
        J = spectrum_matrix(make, singular_values(spectrum, n), m) if matrix is None else read_matrix(matrix)
        law: Any = sampling  # checked there
        rows = table(J, sizes, draws, damping=damping, sampling=law, rtol=rtol, progress=True)
    except ValueError as error:
        raise UserError(str(error)) from None
    console().print(printed(rows))
    write_atomic(out, picture(rows, out.suffix[1:]))
    print(f"{out} written")


def read_matrix(path: Path) -> Float[np.ndarray, "m n"]:
    """The real matrix in a CSV, NPY or NPZ file; an NPZ file must hold one array, or one named `J`.

    Raises `UserError` where there is none: no such file, text that is not a number, an array of another shape
    or kind. Pickled objects are not read.
    """
    if path.suffix not in (".csv", ".npy", ".npz"):
        raise UserError(f"--matrix must be a .csv, .npy or .npz file; got {path}.")
    try:
        array = _READERS[path.suffix](path)
    except OSError as error:
        raise UserError(f"--matrix {path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, EOFError) as error:
        raise UserError(f"--matrix {path} is not a {path.suffix} file of numbers: {error}") from None
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.size:
        raise UserError(
            f"--matrix must hold one real matrix, [m, n]; {path} holds shape {array.shape}, "
            f"dtype {array.dtype}."
        )
    if not np.isfinite(array).all():
        raise UserError(f"--matrix must hold finite numbers; {path} has some that are not.")
    return array.astype(float)


def _read_csv(path: Path) -> np.ndarray:
    lines = path.read_text(encoding="utf-8").splitlines()
    return np.loadtxt(lines, delimiter=",", ndmin=2) if any(map(str.strip, lines)) else np.zeros((0, 0))


def _read_npy(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _read_npz(path: Path) -> np.ndarray:
    if path.exists() and not zipfile.is_zipfile(path):
        raise ValueError("it is no archive of arrays.")
    with np.load(path, allow_pickle=False) as archive:
        names = list(archive)
        if "J" not in names and len(names) != 1:
            raise ValueError(f"it holds {len(names)} arrays ({', '.join(names)}); name the one to take J.")
        return archive["J" if "J" in names else names[0]]


_READERS = {".csv": _read_csv, ".npy": _read_npy, ".npz": _read_npz}


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
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _curves(left, rows, ("alpha", "beta", "gamma"), "constants")
    _curves(right, rows, ("alpha", "sng", "spring"), r"rate per step, times $\lambda_{\min}(H)/\Vert H\Vert$")
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with rc_context({"svg.hashsalt": "snapgrad"}):
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()


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
