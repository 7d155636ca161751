"""From findings to recommendations, each with its reason; and where the theory does not apply."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from ..linalg import rank_cutoff
from ._decay import Decay
from ._drawn import Drawn
from ._linearity import Linearity
from ._reduced import LEAST_SQUARES, System
from ._rehearsal import Setting
from ._report import Advice, SampleSize, Sure

CLEAR = 1.5
"""A choice is clear where the next one takes this many times as long."""
NOISY = 1e-3
"""A larger part of the residual outside the range of J than this is noise that training meets soon."""
CLUSTERED = 0.3
"""Rows are clustered where this part of them have a near neighbour."""


def advise(
    drawn: Drawn,
    system: System,
    decay: Decay,
    straight: Linearity,
    rows: Sequence[SampleSize],
    chosen: SampleSize,
    name: str,
    setting: Setting,
    targets: tuple[float, float],
) -> tuple[tuple[Advice, ...], tuple[str, ...]]:
    """All recommendations and warnings; `targets` are the tolerance, and what replaces it out of reach."""
    found, goal = chosen.of(name), targets[1]
    trusted = straight.nearly and drawn.mismatch is not None
    advice = [
        _method(chosen, name, trusted),
        _size(drawn, rows, chosen, name, trusted),
        _damping(drawn, system, straight, setting),
        _step(system, straight, found.setting, setting, trusted),
        _momentum(name, chosen, setting, trusted),
        _precision(system, chosen, setting, goal),
        _sampler(drawn, system, chosen),
    ]
    return tuple(advice), tuple(_warnings(drawn, system, decay, straight, chosen, name, targets))


def _method(chosen: SampleSize, name: str, trusted: bool) -> Advice:
    other = "SNG" if name == "SPRING" else "SPRING"
    mine, theirs = chosen.of(name).steps, chosen.of(other).steps
    ratio = theirs / mine if np.isfinite(mine) else 1.0
    if not np.isfinite(mine):
        reason = f"neither method is expected to arrive; {name} got lowest in the rehearsals."
    elif not np.isfinite(ratio):
        reason = f"{name} is expected to arrive in {mine:.3g} steps, {other} not at all."
    else:
        reason = (
            f"{name} is expected to take {mine:.3g} steps, {other} {theirs:.3g} with its own best settings."
        )
    clear = ratio >= CLEAR or (name == "SNG" and ratio >= 1)
    return Advice("method", f"sg.{'SNG' if name == 'SNG' else 'Spring'}", reason, _sure(clear, trusted))


def _size(drawn: Drawn, rows: Sequence[SampleSize], chosen: SampleSize, name: str, trusted: bool) -> Advice:
    def cost(row: SampleSize) -> float:
        return min(row.sng.steps, row.spring.steps) * row.seconds_per_step

    mine = chosen.of(name).steps * chosen.seconds_per_step
    if drawn.batch is not None:
        text = f"the problem's own batches; a step takes {_time(chosen.seconds_per_step)}."
        return Advice("sample_size", chosen.sample_size, text, "medium")
    others = [row for row in rows if row is not chosen]
    text = f"a step takes {_time(chosen.seconds_per_step)}, {_time(mine)} to the tolerance"
    if not others or not np.isfinite(mine):
        return Advice("sample_size", chosen.sample_size, f"{text}.", "low")
    second = min(others, key=cost)
    text += f"; k = {second.sample_size} would take {_time(cost(second))}."
    sure = _sure(cost(second) >= CLEAR * mine, trusted)
    if chosen is rows[-1] and len(rows) > 1 and not (drawn.whole and chosen.sample_size == drawn.points):
        text += " It is the largest that was tried: a still larger one may be faster."
        sure = "low" if sure == "low" else "medium"
    return Advice("sample_size", chosen.sample_size, text, sure)


def _damping(drawn: Drawn, system: System, straight: Linearity, setting: Setting) -> Advice:
    relative = setting.damping / (float(np.trace(drawn.kernel)) / len(drawn.kernel))
    share = f"{relative:.1g} of the mean squared row"
    if not straight.nearly:
        text = f"{share}: the model is not linear, and smaller damping sends it far away."
        if straight.raised:
            text = f"{share}, raised tenfold {_often(straight.raised)} until the model followed a step."
        return Advice("damping", setting.damping, text, "low")
    if system.inconsistency > NOISY and relative >= 1e-4:
        text = f"{share}: damping keeps noise out of directions that batches see rarely."
    elif relative < 1e-4:
        text = f"{share}, next to nothing: more damping was slower in the rehearsals."
    else:
        text = f"{share}: less damping was slower in the rehearsals."
    return Advice("damping", setting.damping, text, "high" if relative < 1e-4 else "medium")


def _step(system: System, straight: Linearity, rehearsed: Setting, setting: Setting, trusted: bool) -> Advice:
    if setting.step_size < rehearsed.step_size:
        text = (
            f"halved {_often(straight.halved)} from the {rehearsed.step_size:.3g} that is best for a linear "
            f"model: over a longer step the residual departs from it by more than half."
        )
        return Advice("step_size", setting.step_size, text, "low")
    text = "the fastest in the rehearsals that was steady in all of them"
    if system.action is not system.rows:
        text += f"; the curvature ‖H‖ on the range of J is {system.curvature[1]:.3g}"
    return Advice("step_size", setting.step_size, f"{text}.", "high" if trusted else "low")


def _momentum(name: str, chosen: SampleSize, setting: Setting, trusted: bool) -> Advice:
    if name == "SNG":
        text = "no momentum: at this sample size it gains nothing in the rehearsals."
    else:
        text = "the fastest in the rehearsals"
        if chosen.alpha is not None and chosen.beta is not None and chosen.alpha.estimate > 0:
            rho = np.sqrt(chosen.alpha.estimate / chosen.beta.estimate)
            text += f"; ρ = √(α/β), of the slowest direction, would give {(1 - rho) / (1 + rho):.3g}"
        text += "."
    return Advice("momentum", setting.momentum, text, "high" if trusted else "low")


def _precision(system: System, chosen: SampleSize, setting: Setting, target: float) -> Advice:
    """float32 sees a batch's kernel down to its cut-off; what lies below must not matter."""
    rows = chosen.sample_size * system.outputs
    floor = rank_cutoff(rows, jnp.dtype("float32")) * system.values[0] * min(1.0, rows / len(system.rows))
    weight = np.ones_like(system.values) if system.full else system.values
    share = weight * system.error**2
    lost = float(np.sqrt(share[system.values < floor].sum() / share.sum()))
    if setting.damping >= floor:
        text = "λ is above what float32 resolves in the kernel, so nothing is lost in it."
        return Advice("precision", "float32", text, "medium")
    if lost <= target:
        text = f"what lies in directions too small for it, {lost:.1g} of the error, is below the tolerance."
        return Advice("precision", "float32", text, "medium")
    text = f"directions too small for float32 carry {lost:.2g} of the error, more than the tolerance."
    return Advice("precision", "float64", text, "high")


def _sampler(drawn: Drawn, system: System, chosen: SampleSize) -> Advice:
    if drawn.batch is not None:
        text = "the problem's own: it knows its domain."
        return Advice("sampler", "default", text, "medium")
    if chosen.sample_size == drawn.num_rows:
        return Advice("sampler", "sg.sampling.AllRows", "all rows at each step.", "high")
    clustered = drawn.near_rows / len(drawn.kernel)
    if clustered > CLUSTERED and system.inconsistency > NOISY:
        text = (
            f"cheap, and what was rehearsed; but {100 * clustered:.0f} % of the rows have a near neighbour "
            "and the residual is noisy, where sg.sampling.Pool, which picks diverse rows of a larger draw, "
            "can end at a lower error."
        )
        return Advice("sampler", "sg.sampling.Uniform", text, "low")
    if clustered > CLUSTERED:
        text = "rows have near neighbours, but the residual is consistent: choosing among them gains nothing."
    else:
        text = "rows are different enough that choosing among them gains nothing."
    return Advice("sampler", "sg.sampling.Uniform", text, "high")


def _warnings(
    drawn: Drawn,
    system: System,
    decay: Decay,
    straight: Linearity,
    chosen: SampleSize,
    name: str,
    targets: tuple[float, float],
) -> list[str]:
    out, (tolerance, goal) = [], targets
    if drawn.mismatch is None:
        out.append(
            "The problem offers no `residual_at`, so it is taken for least squares: if it is not, η is wrong "
            "by the factor ‖H‖."
        )
    if not straight.linear:
        out.append(
            f"The model is not linear. On the way to the solution of its linear model, the residual departs "
            f"from what that says by {_percent(straight.way.residual)} of its change, and the kernel changes "
            f"by {_percent(straight.way.kernel)}; over one recommended step by "
            f"{_percent(straight.step.residual)} and {_percent(straight.step.kernel)}."
        )
        if straight.nearly:
            out[-1] += " That is little: the theory is a guide from here to the end."
        else:
            out[-1] += (
                " Rates hold for the first steps alone; diagnose again with `params` of a trained model."
            )
        if drawn.mismatch is not None and drawn.mismatch <= LEAST_SQUARES:
            out.append(
                "For nonlinear least squares sg.Auto() is the better choice: it sets λ, η and μ at every "
                "step (`sg.fit(problem, key)`). The fixed settings here are for loops that cannot have it."
            )
    if len(system.values) == len(system.rows):
        out.append(
            f"The pool's {len(system.rows)} rows are independent: parameters can fit all of them, so the "
            "pool cannot tell signal from noise."
        )
    elif system.noisy and drawn.num_params >= len(system.rows):
        out.append(
            f"{_percent(system.inconsistency)} of the residual on the pool lies in directions whose "
            "eigenvalues are below rounding: out of reach."
        )
    elif system.noisy:
        out.append(
            f"No parameters remove {_percent(system.inconsistency)} of the residual on the pool: with a "
            "constant η the error ends on a floor. Lower η or average the later iterates to get below it."
        )
    if goal != tolerance:
        out.append(
            f"No setting is expected to reach the tolerance of {tolerance:g}; the recommendation is for "
            f"{goal:.2g}, 1.2 times the lowest error that was rehearsed."
        )
    if np.isfinite(chosen.of(name).steps) and not chosen.of(name).reached:
        out.append(
            "Rehearsals were too short to reach the tolerance; steps are extrapolated from their pace."
        )
    if chosen.rehearsed * system.outputs >= len(system.values):
        out.append(
            f"A batch has as many rows as the kernel has rank ({decay.rank}): one batch determines "
            "everything, and the rates of subsampling say little. A direct solver may do as well."
        )
    if chosen.rehearsed < chosen.sample_size:
        out.append(f"Rehearsed with {chosen.rehearsed} of the {chosen.sample_size} rows of a batch.")
    return out


def _percent(part: float) -> str:
    if not np.isfinite(part):
        return "more than numbers can hold"
    return f"{100 * part:.2g} %" if part < 10 else f"a factor of {part:.2g}"


def _often(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _sure(clear: bool, trusted: bool) -> Sure:
    if not trusted:
        return "low"
    return "high" if clear else "medium"


def _time(seconds: float) -> str:
    if not np.isfinite(seconds):
        return "for ever"
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
