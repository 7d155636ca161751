"""α, β, γ and the rates they predict against k: the table and the picture of `snapgrad theory`."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from ..problems import singular_values, spectrum_matrix
from ..theory import Interval, Sampling, alpha, beta, gamma
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


class Row(NamedTuple):
    """The constants at one sample size. Times λ_min(H)/‖H‖, `sng` = α/γ is the rate of SNG (Theorem 5.1)
    and `spring` = √(α/β)/γ that of SPRING (Conjecture 6.2).
    """

    sample_size: int
    alpha: Interval
    beta: Interval
    gamma: Interval
    sng: Interval
    spring: Interval


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
) -> list[Row]:
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
    if not sample_sizes:
        raise ValueError("`sample_sizes` must hold at least one sample size, got none.")
    make, draw_key = jax.random.split(jax.random.key(seed))
    if matrix is None:
        J = spectrum_matrix(make, singular_values(spectrum, num_params), num_rows)
    else:
        J = load_matrix(matrix) if isinstance(matrix, str | Path) else matrix
    shared = {"damping": damping, "sampling": sampling, "rtol": rtol, "num_samples": num_samples}
    rows = []
    for k in sample_sizes:
        keys = jax.random.split(jax.random.fold_in(draw_key, k), 3)
        a, b, g = (
            function(J, sample_size=k, key=key, progress=progress, **shared)
            for function, key in zip((alpha, beta, gamma), keys, strict=True)
        )
        rows.append(_row(k, a if isinstance(a, Interval) else Interval(a, a, a), b, g))
    return rows


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


def as_records(rows: Sequence[Row]) -> list[dict[str, Any]]:
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


def render(rows: Sequence[Row], title: str | None = None) -> Table:
    """A table for the terminal: estimates, and intervals where there is any doubt."""
    table = Table(title=title, caption="exact where no interval is shown; √(α/β)/γ is a conjecture")
    table.add_column("k", justify="right")
    for label in LABELS.values():
        table.add_column(label, justify="right")
    for row in rows:
        table.add_row(str(row.sample_size), *(_text(getattr(row, name)) for name in LABELS))
    return table


def draw(rows: Sequence[Row], path: str | Path, title: str | None = None) -> Path:
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


def _row(k: int, a: Interval, b: Interval, g: Interval) -> Row:
    sng = Interval(a.low / g.high, a.estimate / g.estimate, a.high / g.low)
    spring = Interval(
        math.sqrt(a.low / b.high) / g.high,
        math.sqrt(a.estimate / b.estimate) / g.estimate,
        math.sqrt(a.high / b.low) / g.low,
    )
    return Row(k, a, b, g, sng, spring)


def _panel(axes: Axes, rows: Sequence[Row], names: Sequence[str], label: str) -> None:
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
