"""Ground states of spin chains: the driver without settings, SPRING, SNG and NetKet's own SR side by side.

NetKet supplies Hamiltonians, ansätze and samplers (`pip install 'snapgrad[netket]'`); the methods share them
and the seeds, and all but the first, which sets nothing, the step size and the damping.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from .._checks import one_of
from ..report import BLUE, GREEN, ORANGE, PURPLE, Draw, render, standalone
from ..reproduce import ResultsError, read_json, write_atomic, write_json, write_section
from ._ground_state import METHODS, Iteration, Method, Outcome
from ._ground_state import train as train
from ._spin_chains import DEFAULTS, NAMES, Name, Training, checked, exact_energy
from ._spin_chains import heisenberg_energy as heisenberg_energy
from ._spin_chains import tfim_energy as tfim_energy

SHOWN: tuple[Method, ...] = ("default", "spring", "sr")
"""What is trained where nothing else is asked for; SNG takes the steps of SR."""
TITLES = {"default": "without settings", "spring": "SPRING", "sng": "SNG", "sr": "NetKet's SR"}
_RUNS, _TRAINING = "runs.json", "training.json"


def run(
    name: Name,
    training: Training | None = None,
    *,
    methods: Sequence[Method] = SHOWN,
    out: Path | str = "results",
    resume: bool = False,
    console: Any,
) -> list[Outcome]:
    """What `snapgrad quantum` does: trains with each method, live, then writes a table and a picture.

    **Arguments:**

    - `name`: `"tfim"`, `"heisenberg"` or `"j1j2"`.
    - `training`: default `DEFAULTS[name]`; change single fields with `dataclasses.replace`.
    - `methods`: of `"default"` (the driver without settings), `"spring"`, `"sng"` and `"sr"` (NetKet's
      `VMC_SR`); these three take the settings of `training`.
    - `out`: the results folder; data, picture and a section for the page go to `out/quantum/<name>`.
    - `resume`: keep the methods that are stored there, go on with one that was interrupted, and train those
      that are missing. Without it a folder that holds results is refused, never overwritten.
    - `console`: the `rich.console.Console` to write on.
    """
    from rich.progress import BarColumn, Progress, TextColumn

    name, training = checked(name, training or DEFAULTS[one_of("name", name, NAMES)])
    for method in methods:
        one_of("methods", method, METHODS)
    exact = exact_energy(name, training)
    known = "not computed (too large)" if exact is None else f"{exact:.9f}"
    console.print(f"{name}, {training.size} sites, exact ground state energy {known}")
    folder = Path(out) / "quantum" / name
    outcomes = _found(folder, training, resume)
    done = {outcome.method for outcome in outcomes}
    write_json(folder / _TRAINING, asdict(training))
    if outcomes:  # a kill may have come between the data and their picture
        _store(folder, outcomes)
    for method in done:
        (folder / f"{method}.snap").unlink(missing_ok=True)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}")
    with Progress(*columns, console=console) as bar:
        for method in methods:
            if method in done:
                continue
            checkpoint = folder / f"{method}.snap"
            task = bar.add_task(TITLES[method], total=training.steps, now="compiling")

            def live(_: Name, __: Method, point: Iteration, task: Any = task) -> None:
                bar.update(task, completed=point.step + 1, now=describe(point, training.size, exact))

            outcomes.append(train(name, method, training, live, checkpoint))
            _store(folder, outcomes)
            checkpoint.unlink(missing_ok=True)
            bar.update(task, now="done")
    for outcome in outcomes:
        console.print(f"{TITLES[outcome.method]}: {summary(outcome)}")
    console.print(f"{folder / 'energy.svg'} and {folder / 'runs.json'} written")
    return outcomes


def _found(folder: Path, training: Training, resume: bool) -> list[Outcome]:
    """The methods that are stored in a folder; `ResultsError` if they may not be touched."""
    if not (folder / _TRAINING).exists():
        if resume:
            raise ResultsError(f"{folder} holds nothing to resume from. Run without --resume first.")
        return []
    if not resume:
        raise ResultsError(
            f"{folder} holds a run already. Add --resume to go on with it, choose another folder with --out, "
            f"or delete that one."
        )
    wanted = json.loads(json.dumps(asdict(training)))
    stored = read_json(folder / _TRAINING)
    for field, value in wanted.items():
        if stored.get(field) != value:
            raise ResultsError(
                f"{folder} holds a run of other settings ({field}: {stored.get(field)!r}, now {value!r}). "
                f"Choose another folder with --out."
            )
    if not (folder / _RUNS).exists():
        return []
    try:
        return [_outcome(entry, training) for entry in read_json(folder / _RUNS)]
    except (TypeError, KeyError, AttributeError):
        raise ResultsError(f"{folder / _RUNS} is damaged. Delete {folder} and run again.") from None


def _outcome(entry: dict[str, Any], training: Training) -> Outcome:
    """What `_store` wrote, read back; null stands for a number that is not finite."""
    history: Any = [{k: np.nan if v is None else v for k, v in row.items()} for row in entry["history"]]
    numbers = {k: np.nan if v is None and k != "exact" else v for k, v in entry.items()}
    return Outcome(**{**numbers, "training": training, "history": tuple(Iteration(**row) for row in history)})


def _store(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Data, picture and section of the methods trained so far."""
    name, training = outcomes[0].name, outcomes[0].training
    write_json(folder / _RUNS, [_finite(asdict(outcome)) for outcome in outcomes])
    panels = _panels(outcomes)
    write_atomic(folder / "energy.svg", standalone(render(panels, f"quantum-{name}")).encode())
    write_section(
        folder,
        title=f"Ground state: {name}, {training.size} sites",
        source="NetKet",
        caption="Error of the energy against iterations and against time, and the V-score: means over ten "
        "iterations. All methods share model and seed; those with settings share step size and damping.",
        table=[_row(outcome) for outcome in outcomes],
        svgs=[render([panel], f"quantum-{name}-{index}") for index, panel in enumerate(panels)],
        links={"curves (SVG)": "energy.svg", "every iteration (JSON)": "runs.json"},
    )


def _finite(value: Any) -> Any:
    """With null for numbers that JSON does not have, such as the error bar of a single chain."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _row(outcome: Outcome) -> dict[str, str]:
    error = outcome.relative_error
    return {
        "method": TITLES[outcome.method],
        "energy": f"{outcome.energy:.5f} ± {outcome.error:.5f}",
        "relative error": "unknown" if error is None else f"{error:.1e}",
        "V-score": f"{outcome.v_score:.1e}",
        "steps": f"{len(outcome.history)}",
        "seconds": f"{outcome.history[-1].seconds:.0f}",
    }


def describe(point: Iteration, size: int, exact: float | None) -> str:
    """One iteration in a line."""
    text = f"E = {point.energy:.5f} ± {point.error:.5f}, σ² = {point.variance:.1e}"
    text += f", V-score {size * point.variance / point.energy**2:.1e}"
    return text if exact is None else f"{text}, error {(point.energy - exact) / abs(exact):+.1e}"


def summary(outcome: Outcome) -> str:
    """The result of a run in a line."""
    last = replace(outcome.history[-1], energy=outcome.energy, error=outcome.error, variance=outcome.variance)
    text = describe(last, outcome.training.size, outcome.exact)
    text += (
        f"; {len(outcome.history)} steps in {last.seconds:.0f} s, {outcome.compile_seconds:.0f} s to compile"
    )
    return text + (f"; {outcome.rejected} steps refused" if outcome.rejected else "")


def _panels(outcomes: Sequence[Outcome]) -> list[Draw]:
    """Energy against iteration and time, and the V-score; means over ten steps, to show the trend."""
    looks = {"default": (PURPLE, "-"), "spring": (BLUE, "-"), "sng": (ORANGE, "--"), "sr": (GREEN, ":")}
    styles = {method: {"color": colour, "linestyle": line} for method, (colour, line) in looks.items()}
    exact, size = outcomes[0].exact, outcomes[0].training.size

    def panel(ax: Any, against: str, label: str, score: bool = False) -> None:
        for outcome in outcomes:
            names = (against, "energy", "variance")
            x, energy, variance = np.array([[getattr(p, name) for p in outcome.history] for name in names])
            width = min(10, x.size)
            energy, variance = (
                np.convolve(y, np.full(width, 1 / width), "valid") for y in (energy, variance)
            )
            y = energy if exact is None else np.abs(energy - exact) / abs(exact)
            y = size * variance / energy**2 if score else y
            ax.plot(x[width - 1 :], y, label=TITLES[outcome.method], **styles[outcome.method])
        name = "V-score" if score else "energy" if exact is None else "relative error of the energy"
        ax.set(xlabel=label, ylabel=name, yscale="log" if score or exact is not None else "linear")
        ax.legend()

    panels = [("step", "iteration"), ("seconds", "seconds"), ("step", "iteration", True)]
    return [lambda ax, args=args: panel(ax, *args) for args in panels]
