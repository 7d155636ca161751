"""The layout shared by the three proxy figures: error after T steps against λ and against η."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np

from ..reproduce import Arrays, Claim, Data, Panel, Tick
from ._sweep import Algorithm, Run, Subject, final_error, sweep

ALGORITHMS = tuple(name for name in get_args(Algorithm) if not name.startswith("spring"))
LABELS = {
    "uniform": "one batch, uniform (realistic)",
    "svs": "one batch, squared volume (proxy)",
    "two-batch": "two independent batches (earlier proxy)",
}


@dataclass(frozen=True)
class ProxySettings:
    """Sizes and grids: `dampings` at `step_size`, and `step_sizes` (per algorithm) at `damping`."""

    num_rows: int
    num_params: int
    sample_size: int
    steps: int
    runs: int
    dampings: tuple[float, ...]
    step_size: float
    step_sizes: Mapping[str, tuple[float, ...]]
    damping: float
    chunks: Mapping[str, int]
    """How many grid points of an algorithm make a panel; the fewer, the finer progress and resume."""


def powers(base: float, first: int, last: int) -> tuple[float, ...]:
    """base^first … base^last."""
    return tuple(float(base**i) for i in range(first, last + 1))


def pretty(value: float) -> str:
    """A power of two or ten as such: 2⁻⁶, 10⁻³."""
    for base in (2, 10):
        exponent = math.log(value, base)
        if math.isclose(exponent, round(exponent), abs_tol=1e-9):
            text = str(round(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
            return f"{base}{text}" if not 0 <= exponent <= 1 else f"{value:g}"
    return f"{value:.3g}"


def panels(
    settings: ProxySettings,
    subjects: Callable[[], Sequence[Subject]],
    identity: Mapping[str, Any],
    costs: Mapping[str, float],
) -> list[Panel]:
    """One panel for each algorithm, sweep and part of its grid.

    `subjects` makes the problems, once in each process; `costs` are seconds per grid point.
    """
    out = []
    sizes = asdict(settings)
    shared = {name: sizes[name] for name in ("num_rows", "num_params", "sample_size", "steps", "runs")}
    for algorithm in ALGORITHMS:
        one = Run(algorithm, settings.sample_size, settings.steps, settings.steps)
        longest = max(len(settings.dampings), len(settings.step_sizes[algorithm]))
        for kind in ("damping", "step_size"):
            values = settings.dampings if kind == "damping" else settings.step_sizes[algorithm]
            size = settings.chunks.get(algorithm, longest)
            for part, start in enumerate(range(0, len(values), size)):
                chunk = values[start : start + size]
                grid = {"damping": settings.damping, "step_size": settings.step_size, kind: list(chunk)}
                out.append(
                    Panel(
                        f"{algorithm}-{kind}-{part}",
                        {**identity, **shared, "algorithm": algorithm, "grid": grid},
                        _computation(one, subjects, grid, size),
                        costs[algorithm] * len(chunk),
                    )
                )
    return out


def _computation(
    one: Run, subjects: Callable[[], Sequence[Subject]], grid: Mapping[str, Any], size: int
) -> Callable[[Tick], dict[str, np.ndarray]]:
    def compute(tick: Tick) -> dict[str, np.ndarray]:
        del tick
        values = {name: np.atleast_1d(np.asarray(x, float)) for name, x in grid.items()}
        count = max(map(len, values.values()))
        # A short part is filled up, so that all parts and both sweeps share one compiled program.
        padded = {
            name: np.pad(np.broadcast_to(x, (count,)), (0, size - count), "edge")
            for name, x in values.items()
        }
        result = sweep(one, subjects(), **padded)
        full = {name: np.broadcast_to(x, (count,)) for name, x in values.items()}
        return {**full, **{name: x[:count] for name, x in result.items()}}

    return compute


def errors(data: Data, algorithm: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The grid of a sweep, and the final errors [grid, runs], infinite where a run diverged."""
    parts = [arrays for name, arrays in _ordered(data) if name.startswith(f"{algorithm}-{kind}-")]
    grid = np.concatenate([arrays[kind] for arrays in parts])
    return grid, np.concatenate([final_error(arrays) for arrays in parts])


def _ordered(data: Data) -> list[tuple[str, Arrays]]:
    return sorted(data.items(), key=lambda item: int(item[0].rsplit("-", 1)[1]))


def at(data: Data, algorithm: str, kind: str, value: float) -> np.ndarray:
    """The final errors of all runs at one grid point."""
    grid, error = errors(data, algorithm, kind)
    return error[int(np.argmin(np.abs(np.log(grid / value))))]


def means(data: Data, algorithm: str, kind: str, values: Sequence[float]) -> np.ndarray:
    """The mean error over the runs at each value of the grid."""
    return np.array([at(data, algorithm, kind, x).mean() for x in values])


def decades(data: Data, first: str, second: str, kind: str, value: float) -> float:
    """log₁₀ of the ratio of two algorithms' mean errors."""
    one, two = means(data, first, kind, [value])[0], means(data, second, kind, [value])[0]
    return float(np.log10(one) - np.log10(two)) if np.isfinite([one, two]).all() else math.nan


FACTOR_TWO = "closely, in the paper's word: within a factor of two, 0.3 decades"


def close(
    data: Data, kind: str, values: Sequence[float], limit: float = 0.3, reason: str = FACTOR_TWO
) -> Claim:
    """The paper's main statement: squared volume and uniform sampling end at about the same error.

    `reason` says where the `limit`, in decades, comes from.
    """
    gaps = np.array([decades(data, "svs", "uniform", kind, x) for x in values])
    name = "λ" if kind == "damping" else "η"
    return Claim(
        f"Squared volume sampling follows uniform sampling at every {name} from {pretty(values[0])} "
        f"to {pretty(values[-1])}",
        float(np.abs(gaps).max()),
        high=limit,
        detail=f"largest gap of the mean errors, in decades; {reason}",
    )


def share_diverged(data: Data, algorithm: str, kind: str, values: Sequence[float]) -> float:
    """The share of runs over part of a grid that diverged."""
    return float(np.mean([np.isinf(at(data, algorithm, kind, x)) for x in values]))


def share_unstable(data: Data, algorithm: str, kind: str, values: Sequence[float]) -> float:
    """The share of part of a grid at which some run diverged, so that the mean error is infinite."""
    return float(np.mean([np.isinf(at(data, algorithm, kind, x)).any() for x in values]))


def largest_stable(data: Data, algorithm: str) -> float:
    """The largest step size up to which no run diverges."""
    grid, error = errors(data, algorithm, "step_size")
    unstable = ~np.isfinite(error).all(axis=1)
    first = int(np.argmax(unstable)) if unstable.any() else len(grid)
    return float(grid[first - 1]) if first else math.nan


def same_limit(data: Data) -> Claim:
    """Uniform and squared volume sampling lose stability at about the same step size."""
    return Claim(
        "Both kinds of sampling lose stability at the same η: ratio of the largest stable ones",
        largest_stable(data, "svs") / largest_stable(data, "uniform"),
        low=0.5,
        high=2.0,
        detail="the same up to one step of the grid",
    )


def best(data: Data, algorithm: str) -> float:
    """The step size with the smallest mean error."""
    grid, error = errors(data, algorithm, "step_size")
    return float(grid[np.argmin(error.mean(axis=1))])


def draw(ax: Any, data: Data, kind: str, floor: float, ceiling: float) -> None:
    """Mean over the runs with the band from the best to the worst; triangles at the top: diverged."""
    from ..report import STYLES

    for algorithm in ALGORITHMS:
        grid, error = errors(data, algorithm, kind)
        style = STYLES[algorithm]
        finite = np.isfinite(error)
        mean = np.where(finite.all(axis=1), np.where(finite, error, 0).mean(axis=1), np.inf)
        shown = np.clip(mean, floor, 10 * ceiling)
        ax.plot(grid, shown, label=LABELS[algorithm], **style)
        ax.fill_between(
            grid,
            np.clip(error.min(axis=1), floor, 10 * ceiling),
            np.clip(error.max(axis=1), floor, 10 * ceiling),
            color=style["color"],
            alpha=0.2,
            linewidth=0,
        )
        lost = ~finite.all(axis=1)
        ax.plot(
            grid[lost],
            np.full(lost.sum(), ceiling * 0.75),
            linestyle="none",
            marker="^",
            color=style["color"],
            markersize=6,
        )
    ax.set(xscale="log", yscale="log", ylim=(floor, ceiling), ylabel="relative error after T steps")
    ax.set_xlabel("regularisation λ" if kind == "damping" else "step size η")
    if kind == "step_size":
        ax.set_xscale("log", base=2)
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0))


def table(data: Data) -> list[dict[str, Any]]:
    """One row for each run."""
    rows = []
    for name, arrays in data.items():
        algorithm, kind, _ = name.rsplit("-", 2)
        error = final_error(arrays)
        for g, r in np.ndindex(error.shape):
            rows.append(
                {
                    "algorithm": algorithm,
                    "sweep": kind,
                    "damping": float(arrays["damping"][g]),
                    "step_size": float(arrays["step_size"][g]),
                    "run": r,
                    "relative_error": float(arrays["error"][g, r, -1]),
                    "diverged": int(math.isinf(error[g, r])),
                }
            )
    return rows
