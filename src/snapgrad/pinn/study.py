"""`snapgrad pinn NAME`: train a PINN of the zoo, watch it, and draw what it found."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax

from .. import pinn, report
from ..reproduce import as_records, claim_folder, read_metrics, write_atomic, write_metrics, write_section
from ..training import CHECKPOINT, Team

_COLOURS = {
    "auto": report.BLUE,
    "spring": report.ORANGE,
    "sng": report.GREEN,
    "engd": report.PURPLE,
    "engd-w": report.PURPLE,
    "adam": report.GREY,
    "lbfgs": report.INK,
}


def train(
    name: str,
    *,
    method: str = "auto",
    steps: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    out: Path = Path("results"),
    hidden: tuple[int, ...] | None = None,
    points: tuple[int, ...] | None = None,
    resume: bool = False,
    show: Callable[[str], None] | None = None,
    mesh: Any = None,
) -> dict[str, Any]:
    """Trains one problem of the zoo; writes metrics, checkpoint and pictures under `out/pinn/NAME`.

    **Arguments:**

    - `name`: one of `sg.pinn.NAMES`.
    - `method`: one of `sg.pinn.METHODS`.
    - `steps`, `seconds`: when to stop; 1000 steps if neither is given.
    - `seed`: of weights and points.
    - `out`: the results folder; each method and seed has a folder of its own below it.
    - `hidden`, `points`: other sizes than the problem's own.
    - `resume`: go on from the checkpoint in that folder; `steps` and `seconds` count from the very first
      step.
    - `show`: is called with a line of progress at each record.
    - `mesh`: devices to spread the points over, as in `sg.fit`; of several processes the first one writes.

    Returns the last record with the paths that were written. An interruption leaves a checkpoint. Raises
    `ValueError` for a name it does not know and `ResultsError` for a folder it cannot use, such as one that
    holds a run already while `resume` is not set: nothing is overwritten.
    """
    problem = pinn.zoo(name, hidden=hidden, points=points)
    slabs = pinn.ZOO[name].slabs
    marches = slabs != 1
    solver = partial(pinn.march, slabs=slabs) if marches else pinn.solve
    chosen = pinn.setting(method, problem)._asdict()
    if marches:
        chosen["sampler"] = lambda slab: pinn.setting(method, slab).sampler
    folder = out / "pinn" / name / f"{method}-{seed}"
    team = Team(mesh)
    team.told(lambda: claim_folder(folder, CHECKPOINT, resume))

    def watch(record: dict[str, float], state: Any) -> None:
        del state
        if show is not None:
            show(line(record))

    solution = solver(
        problem,
        jax.random.key(seed),
        steps=steps,
        seconds=seconds,
        callback=watch,
        checkpoint=folder,
        resume=resume,
        mesh=mesh,
        **chosen,
    )
    records = as_records(solution.history)
    if marches:  # the records of a slab tell of that slab
        records[-1] |= {"relative_l2": float(solution.relative_l2)}
    reason = str(solution.reason[-1]) if marches else solution.reason
    end = {**records[-1], "reason": reason}
    if marches and solution.suspect is not None:
        end["suspect"] = solution.suspect
    if not team.leads:
        return {**end, "files": []}
    files = [write_metrics(folder, records), *sorted(folder.rglob(CHECKPOINT))]
    parts = solution.pictures()
    if parts:
        write_atomic(folder / "solution.svg", report.standalone(report.render(parts, "solution")).encode())
        files.append(folder / "solution.svg")
    curves = out / "pinn" / name / "error.svg"
    draw = partial(_curves, out / "pinn" / name, name)
    write_atomic(curves, report.standalone(report.render([draw], f"error-{name}")).encode())
    _describe(out / "pinn" / name, name, f"{method}-{seed}", [draw, *parts])
    return {**end, "files": [*files, curves]}


def _describe(folder: Path, name: str, last: str, draws: list[report.Draw]) -> None:
    """The problem's section on the page: curves of all runs, and the solution of the last one."""
    rows = []
    links = {"curves (SVG)": "error.svg"}
    for run, records in read_metrics(folder):
        end, (method, _, seed) = records[-1], run.name.rpartition("-")
        links[f"{run.name} (JSON lines)"] = f"{run.name}/metrics.jsonl"
        row = {
            "method": method,
            "seed": seed,
            "steps": f"{end['step']:.0f}",
            "seconds": f"{end['seconds']:.1f}",
        }
        row["loss"] = f"{end['loss']:.2e}"
        row["relative L2 error"] = f"{end['relative_l2']:.2e}" if "relative_l2" in end else "unknown"
        rows.append(row)
    caption = "Error against training time for every method run, without compilation."
    if len(draws) > 1:
        caption += f" Then the solution found by {last}, and its error."
    write_section(
        folder,
        title=f"PINN: {name}",
        source="PINN",
        caption=caption,
        table=rows,
        svgs=[report.render([draw], f"{name}-{index}") for index, draw in enumerate(draws)],
        links=links,
    )


def line(record: dict[str, float]) -> str:
    """One record in words for a terminal."""
    words = [f"step {record['step']:.0f}", f"{record['seconds']:.1f} s", f"loss {record['loss']:.2e}"]
    names = {"relative_l2": "error", "step_size": "η", "damping": "λ", "momentum": "μ"}
    words += [f"{text} {record[field]:.2e}" for field, text in names.items() if field in record]
    if "suspect" in record:
        words.append(f"not to be trusted from t = {record['suspect']:.6g} on")
    return "  ".join(words)


def _curves(folder: Path, name: str, ax: Any) -> None:
    """Error (or loss) against time for all methods run so far."""
    for run, records in read_metrics(folder):
        quantity = "relative_l2" if "relative_l2" in records[0] else "loss"
        time_ = [max(record["seconds"], 1e-2) for record in records]
        colour = _COLOURS.get(run.name.rsplit("-", 1)[0], report.GREY)
        ax.plot(time_, [record[quantity] for record in records], color=colour, label=run.name)
        ax.set_ylabel("relative L2 error" if quantity == "relative_l2" else "loss")
    ax.set(xscale="log", yscale="log", xlabel="seconds", title=name)
    ax.legend()
