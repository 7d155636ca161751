"""α, β, γ and the rates they predict against k: the table and the picture of `snapgrad theory`."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from ..problems import singular_values, spectrum_matrix
from ..theory import Interval, Sampling, TableRow, table
from ._store import write_atomic

COLOURS = {
    "alpha": "#0072B2",
    "beta": "#E69F00",
    "gamma": "#009E73",
    "sng": "#D55E00",
    "spring": "#CC79A7",
}
"""Okabe and Ito's colours, told apart with any colour vision; marker shapes differ as well."""
LABELS = {"alpha": "α", "beta": "β", "gamma": "γ", "sng": "α/γ", "spring": "√(α/β)/γ"}
_MARKERS = {"alpha": "o", "beta": "s", "gamma": "^", "sng": "D", "spring": "v"}


def theory_table(
    sample_sizes: Sequence[int],
    *,
    matrix: Any = None,
    spectrum: str = "power:2",
    num_rows: int = 1000,
    num_params: int = 100,
    damping: float = 0.0,
    sampling: Sampling = "svs",
    seed: int = 0,
    rtol: float = 0.1,
    num_samples: int | None = None,
    progress: bool = False,
) -> list[TableRow]:
    """One row for each sample size, with intervals.

    **Arguments:**

    - `sample_sizes`: the k.
    - `matrix`: J itself, or the path of an `.npy` file; without it, a random matrix with singular values
      named by `spectrum` (as in `sg.problems.singular_values`), `num_rows` rows and `num_params` columns.
    - `damping`, `sampling`: λ and the sampling law.
    - `seed`: of the random matrix and of the draws.
    - `rtol`, `num_samples`, `progress`: as in `sg.theory.gamma`.

    ```python
    rows = theory_table([1, 2, 5, 10], spectrum="power:2", num_rows=1000, num_params=100)
    rich.print(render(rows))
    draw(rows, "constants.svg")
    ```
    """
    make, draws = jax.random.split(jax.random.key(seed))
    if matrix is None:
        J = spectrum_matrix(make, singular_values(spectrum, num_params), num_rows)
    else:
        J = load_matrix(matrix) if isinstance(matrix, str | Path) else matrix
    return table(
        J,
        sample_sizes,
        draws,
        damping=damping,
        sampling=sampling,
        num_samples=num_samples,
        rtol=rtol,
        progress=progress,
    )


def load_matrix(path: str | Path) -> np.ndarray:
    """A real matrix from an `.npy` file."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"`matrix` must be a readable .npy file of numbers, got {path}: {error}") from None
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "fiu":
        given = f"shape {array.shape}, dtype {array.dtype}" if isinstance(array, np.ndarray) else "an archive"
        raise ValueError(f"`matrix` must hold one real matrix, [m, n]; {path} holds {given}.")
    return array


def as_records(rows: Sequence[TableRow]) -> list[dict[str, Any]]:
    """Plain numbers, one dictionary a row, for a CSV or JSON file."""
    return [
        {"sample_size": row.sample_size}
        | {
            name + suffix: getattr(getattr(row, name), end)
            for name in LABELS
            for suffix, end in (("", "estimate"), ("_low", "low"), ("_high", "high"))
        }
        for row in rows
    ]


def render(rows: Sequence[TableRow], title: str | None = None) -> Table:
    """A table for the terminal: estimates, and intervals where there is any doubt."""
    printed = Table(title=title, caption="exact where no interval is shown; √(α/β)/γ is a conjecture")
    printed.add_column("k", justify="right")
    for label in LABELS.values():
        printed.add_column(label, justify="right")
    for row in rows:
        printed.add_row(str(row.sample_size), *(_text(getattr(row, name)) for name in LABELS))
    return printed


def draw(rows: Sequence[TableRow], path: str | Path, title: str | None = None) -> Path:
    """The constants and the rates against k, with error bars, as SVG, PNG or PDF by the suffix of `path`."""
    path = Path(path)
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"`path` must end in .svg, .png or .pdf, got {path}.")
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _panel(left, rows, ("alpha", "beta", "gamma"), "constants")
    _panel(right, rows, ("alpha", "sng", "spring"), r"rate a step, times $\lambda_{\min}(H)/\Vert H\Vert$")
    if title:
        figure.suptitle(title)
    buffer = io.BytesIO()
    metadata: Mapping[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(
        path.suffix, {}
    )
    with rc_context({"svg.hashsalt": "snapgrad"}):  # the same file for the same numbers
        figure.savefig(buffer, format=path.suffix[1:], dpi=150, metadata=metadata)
    write_atomic(path, buffer.getvalue())
    return path


def _panel(axes: Axes, rows: Sequence[TableRow], names: Sequence[str], label: str) -> None:
    k = [row.sample_size for row in rows]
    for name in names:
        low, middle, high = np.array([getattr(row, name) for row in rows]).T
        axes.errorbar(
            k,
            middle,
            yerr=[middle - low, np.where(np.isfinite(high), high, middle) - middle],
            label=LABELS[name],
            color=COLOURS[name],
            marker=_MARKERS[name],
            markersize=5,
            capsize=3,
        )
    axes.set(xscale="log", yscale="log", xlabel="sample size k", ylabel=label)
    axes.set_xticks(k, [str(size) for size in k])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()


def _text(interval: Interval) -> str:
    if interval.low == interval.high:
        return f"{interval.estimate:.4g}"
    return f"{interval.estimate:.4g} [{interval.low:.4g}, {interval.high:.4g}]"
