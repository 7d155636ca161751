"""The report as text."""

import textwrap

import numpy as np

from ..theory import Interval
from ._choose import Expected
from ._report import Diagnosis

WIDTH = 100


def text(report: Diagnosis) -> str:
    """What was found, what is recommended and why, and where the theory does not apply."""
    parts = [_head(report), _recommended(report), _table(report), _constants(report), _warnings(report)]
    return "\n\n".join(part for part in parts if part)


def _head(report: Diagnosis) -> str:
    pool = report.drawn
    rows = len(pool.kernel)
    of = f" of {pool.num_rows}" if pool.num_rows is not None and not pool.whole else ""
    lines = [
        f"Pool: {pool.points} points{of}, {rows} rows, of a model with {pool.num_params} parameters "
        f"({pool.dtype}).",
        f"Kernel: {report.decay}.",
        "Effective dimension: "
        + ", ".join(f"{d:.3g} at λ = {lam:g}" for lam, d in report.decay.effective_dimension.items())
        + " (λ relative to the mean squared row).",
    ]
    odd = [
        (pool.dead_rows, "are zero"),
        (pool.repeated_rows, "repeat another row"),
        (pool.near_rows, "have a near neighbour (cosine above 0.99)"),
    ]
    found = [f"{count} {words}" for count, words in odd if count]
    lines.append(f"Rows: {', '.join(found) if found else 'none is zero, none repeats another'}.")
    for path, dead, whole in pool.dead_parameters:
        lines.append(f"Dead parameters: {dead} of {whole} in params{path} change no row of the pool.")
    if report.curvature != (1.0, 1.0):
        low, high = report.curvature
        lines.append(f"Curvature: H has eigenvalues from {low:.3g} to {high:.3g} on the range of J.")
    return "\n".join(_wrapped(line) for line in lines)


def _recommended(report: Diagnosis) -> str:
    lines = [f"Recommended, for the error of the {report.error} to fall to {report.goal:.2g} of what it is:"]
    for advice in report.advice:
        value = f"{advice.value:.3g}" if isinstance(advice.value, float) else str(advice.value)
        lines.append(_wrapped(f"  {advice.about:12} {value:20} [{advice.sure}] {advice.reason}", " " * 35))
    return "\n".join(lines)


def _table(report: Diagnosis) -> str:
    lines = [
        "      k    step     SNG: steps, rate a step, a second         SPRING: steps, rate a step, a second"
    ]
    for row in report.sizes:
        mark = "*" if row.sample_size == report.sample_size else " "
        seconds = row.seconds_per_step
        cells = [_cell(row.of(name), seconds) for name in ("SNG", "SPRING")]
        lines.append(f"{mark} {row.sample_size:5d}  {1e3 * seconds:8.3g} ms  {cells[0]:42}  {cells[1]}")
    return "Expected with the best settings at each k (rate: −d log(error²)/dt):\n" + "\n".join(lines)


def _cell(found: Expected, seconds: float) -> str:
    steps = f"{found.steps:.3g}" if np.isfinite(found.steps) else "never"
    low, middle, high = found.rate
    return f"{steps:>8} {middle:8.3g} [{low:.2g}, {high:.2g}] {middle / seconds:8.3g}"


def _constants(report: Diagnosis) -> str:
    rows = [row for row in report.sizes if row.alpha is not None]
    if not rows:
        return ""
    lines = [f"Theory at λ = {report.setting.damping:.2g}, uniform sampling:"]
    for row in rows:
        proved = row.proved or {}
        rates = [f"{name} {rate:.2g}" for name, rate in proved.items() if rate is not None]
        lines.append(
            f"  {row.sample_size:5d}  α {_interval(row.alpha)}  β {_interval(row.beta)}  "
            f"γ {_interval(row.gamma)}  guaranteed rate a step: {', '.join(rates)}"
        )
    return "\n".join(lines)


def _warnings(report: Diagnosis) -> str:
    return "\n".join(_wrapped(f"! {warning}", "  ") for warning in report.warnings)


def _interval(found: Interval | None) -> str:
    assert found is not None
    return f"{found.estimate:.3g} [{found.low:.2g}, {found.high:.2g}]"


def _wrapped(line: str, indent: str = "  ") -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False)
