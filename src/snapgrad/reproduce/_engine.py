"""From studies to a folder of results: panels, pictures, tables, claims."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import _files, report
from ._section import read_sections
from ._store import (
    FailedError,
    ResultsError,
    load_panel,
    read_json,
    save_panel,
    settings_hash,
    write_atomic,
    write_json,
    write_table,
)
from ._study import Panel, Size, Study
from ._workers import Event, Job, Load, local_pool, run_jobs


@dataclass(frozen=True)
class Plan:
    """A study, the panels it needs, and which of them are still to be computed."""

    study: Study
    folder: Path
    panels: Sequence[Panel]
    missing: Sequence[Panel]
    stored: dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]]


def plan(study: Study, out: Path, size: Size, seed: int) -> Plan:
    """Returns what is there and what is not; raises `ResultsError` if it is damaged or of other settings."""
    folder = out / study.name
    panels = study.panels(size, seed)
    stored, missing = {}, []
    for panel in panels:
        found = load_panel(folder / "data", panel.name, panel.settings)
        if found is None:
            missing.append(panel)
        else:
            stored[panel.name] = found
    return Plan(study, folder, panels, missing, stored)


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """The folder, made if need be, for this process alone; unfinished files of earlier ones are removed."""
    with ExitStack() as stack:
        try:
            stack.enter_context(_files.locked(out))
        except BlockingIOError:
            raise ResultsError(
                f"another run is writing to {out}. Wait for it, or choose another folder with --out."
            ) from None
        except OSError as error:
            raise ResultsError(
                f"cannot write to {out}: {error.strerror}. Choose another folder with --out."
            ) from None
        yield


def compute(plans: Sequence[Plan], load: Load, size: Size, seed: int, on: int | Executor) -> Iterator[Event]:
    """Computes and stores what is missing, the cheapest study first, and yields what happens.

    That order means that something is finished soon, and kept, should the run be stopped. `load` makes each
    study anew, by its name, where it is computed: in so many processes, or `on` any executor.
    """
    ordered = sorted(plans, key=lambda p: sum(panel.cost for panel in p.missing))
    jobs = [Job(load, p.study.name, size, seed, panel.name) for p in ordered for panel in p.missing]
    if not jobs:
        return
    folders = {p.study.name: p.folder / "data" for p in plans}
    with ExitStack() as stack:
        local = isinstance(on, int)
        executor, fractions = stack.enter_context(local_pool(on, len(jobs))) if local else (on, ())
        for event in run_jobs(jobs, executor, fractions):
            if event.made is not None:
                _same_version(event.made.about["versions"]["snapgrad"])
                save_panel(folders[event.job.study], event.job.panel, *event.made)
            yield event


def _same_version(theirs: str) -> None:
    from .. import __version__

    if theirs != __version__:
        raise FailedError(
            f"a worker has snapgrad {theirs}, and this is {__version__}: install the same on all machines."
        )


def finish(study: Study, out: Path, size: Size, seed: int) -> dict[str, Any]:
    """Draws, checks and describes a study whose panels are all stored; returns its description."""
    done, name = plan(study, out, size, seed), study.name
    if done.missing:
        raise ResultsError(f"{done.folder} lacks {done.missing[0].name}. Run `snapgrad reproduce {name}`.")
    folder = done.folder
    data = {panel.name: done.stored[panel.name][0] for panel in done.panels}
    records = [done.stored[panel.name][1] for panel in done.panels]
    draws = [partial(_draw, plot, data) for plot in study.plots]
    picture = report.render(draws, name)
    write_atomic(folder / f"{name}.svg", report.standalone(picture).encode())
    for index, draw in enumerate(draws):
        part = report.render([draw], f"{name}-{index}")
        write_atomic(folder / "plots" / f"{index}.svg", part.encode())
    write_table(folder / f"{name}.csv", study.table(data))
    claims = [
        {
            "statement": claim.statement,
            "value": float(claim.value) if np.isfinite(claim.value) else str(claim.value),
            "wanted": claim.wanted,
            "passed": bool(claim.passed),
            "judged": size == "full",
            "detail": claim.detail,
        }
        for claim in study.claims(data)
    ]
    write_json(folder / "claims.json", claims)
    description = {
        "name": name,
        "title": study.title,
        "source": study.source,
        "caption": study.caption,
        "notes": list(study.notes(data)),
        "size": size,
        "seed": seed,
        "seconds": round(sum(r["seconds"] for r in records), 1),
        "cpu_seconds": round(sum(r["cpu_seconds"] for r in records), 1),
        "versions": records[-1]["versions"],
        "settings": _common([r["settings"] for r in records]),
        "hash": settings_hash({"panels": [r["hash"] for r in records]}),
        "plots": len(draws),
        "panels": [panel.name for panel in done.panels],
    }
    write_json(folder / "study.json", description)
    return {**description, "claims": claims}


def write_report(out: Path, order: Sequence[str]) -> Path:
    """Builds `report.html` from the trained models in a folder and the studies there that `order` names."""
    names = [name for name in order if (out / name / "study.json").exists()]
    sections = read_sections(out)
    if not names and not sections:
        raise ResultsError(f"{out} holds no results. Run `snapgrad reproduce --out {out}` first.")
    studies = []
    for name in names:
        folder = out / name
        entry = read_json(folder / "study.json")
        entry["claims"] = read_json(folder / "claims.json")
        try:
            entry["svgs"] = [
                (folder / "plots" / f"{index}.svg").read_text(encoding="utf-8")
                for index in range(entry["plots"])
            ]
        except (OSError, KeyError, TypeError):
            raise ResultsError(
                f"{folder} is damaged. Run `snapgrad reproduce {name}` to draw it anew."
            ) from None
        studies.append(entry)
    path = out / "report.html"
    write_atomic(path, report.page(studies, sections).encode())
    return path


def _draw(plot: Any, data: Any, ax: Any) -> None:
    plot(ax, data)


def _common(settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The settings in which all panels agree."""
    first, *rest = settings
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in rest)}
