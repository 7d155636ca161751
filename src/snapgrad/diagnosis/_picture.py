"""The report as a picture."""

from typing import Any

import numpy as np

from ..report import BLUE, GREY, INK, ORANGE, as_bytes
from ._report import Diagnosis


def picture(report: Diagnosis, kind: str) -> bytes:
    """The spectrum, and the rate per second against k, as `"svg"`, `"png"` or `"pdf"`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _spectrum(left, report)
    _rates(right, report)
    return as_bytes(figure, kind)


def _spectrum(ax: Any, report: Diagnosis) -> None:
    values = report.eigenvalues
    ax.plot(np.arange(1, len(values) + 1), values, color=BLUE, marker="o", markersize=3, linewidth=1)
    ax.axhline(report.setting.damping, color=GREY, linestyle=":", label="recommended λ")
    ax.axvline(report.sample_size * report.drawn.outputs, color=ORANGE, linestyle="--", label="recommended k")
    low = max(report.setting.damping / 10, values[-1] / 10) if len(values) > 1 else values[-1] / 10
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="index i",
        ylabel="eigenvalue of the pool's kernel",
        ylim=(min(low, values[-1] / 2), values[0] * 3),
        title=f"spectrum: {report.decay.kind}, rank {report.decay.rank}",
    )
    ax.grid(alpha=0.3)
    ax.legend(loc="lower left")


def _rates(ax: Any, report: Diagnosis) -> None:
    k = np.array([row.sample_size for row in report.sizes])
    seconds = np.array([row.seconds_per_step for row in report.sizes])
    for name, colour, marker in (("SNG", BLUE, "o"), ("SPRING", ORANGE, "s")):
        low, middle, high = np.array([row.of(name).rate for row in report.sizes]).T / seconds
        shown = middle > 0
        errors = [np.maximum(middle - np.maximum(low, middle / 10), 0)[shown], (high - middle)[shown]]
        ax.errorbar(k[shown], middle[shown], yerr=errors, color=colour, marker=marker, capsize=3, label=name)
    row, found = report.chosen, report.expected
    if found.rate.estimate > 0:
        ax.plot(
            row.sample_size,
            found.rate.estimate / row.seconds_per_step,
            marker="*",
            markersize=18,
            color="none",
            markeredgecolor=INK,
            linestyle="none",
            label=f"recommended: {report.name}, k = {row.sample_size}",
        )
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="sample size k",
        ylabel="expected rate per second, −d log(error²)/dt",
        title="best settings at each k, on this machine",
    )
    ax.set_xticks(k, [str(size) for size in k])
    ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    ax.grid(alpha=0.3)
    ax.legend()
