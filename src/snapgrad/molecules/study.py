"""`snapgrad molecule NAME`: train the ground state of a molecule, watch it, and draw what it found."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from .. import molecules, report
from ..reproduce import (
    as_records,
    claim_folder,
    read_json,
    read_metrics,
    write_atomic,
    write_metrics,
    write_section,
)
from ..training import CHECKPOINT, Team

GRID = 81
"""Cells on each side of the picture of the density."""
PICTURE_STEPS = 100
"""How often all walkers are counted for it."""
CHEMICAL = 1.6
"""Chemical accuracy in mHa."""


def train(
    name: str,
    *,
    ansatz: str = "ferminet",
    steps: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    charge: int = 0,
    spin: int | None = None,
    pretrain: bool = False,
    out: Path = Path("results"),
    resume: bool = False,
    show: Callable[[str], None] | None = None,
    problem: molecules.VMC | None = None,
    mesh: Any = None,
) -> dict[str, Any]:
    """Trains one molecule; writes metrics, checkpoint, evaluation and pictures under `out/molecule/NAME`.

    **Arguments:**

    - `name`: one of `sg.molecules.NAMES`, or an .xyz file.
    - `ansatz`: `"ferminet"` or `"psiformer"`.
    - `steps`, `seconds`: when to stop; 1000 steps if neither is given.
    - `seed`: of weights and walkers.
    - `charge`, `spin`: as for `sg.molecules.molecule`.
    - `pretrain`: as for `sg.molecules.solve`.
    - `out`: the results folder; each ansatz and seed has a folder of its own below it.
    - `resume`: go on from the checkpoint in that folder; `steps` and `seconds` count from the very first
      step.
    - `show`: is called with a line of progress at each record.
    - `problem`: in place of the default one for the molecule.
    - `mesh`: devices to spread the walkers over, as in `sg.fit`; of several processes the first one writes.

    Returns the last record with the evaluation, its words and the paths that were written. An interruption
    leaves a checkpoint. Raises `ValueError` for what is no molecule and `ResultsError` for a folder it cannot
    use, such as one that holds a run already while `resume` is not set: nothing is overwritten.
    """
    molecule = molecules.molecule(name, charge=charge, spin=spin)
    problem = molecules.problem_for(molecule, ansatz) if problem is None else problem
    home = out / "molecule" / _folder_name(molecule)
    folder = home / f"{ansatz}-{seed}"
    team = Team(mesh)
    team.told(lambda: claim_folder(folder, CHECKPOINT, resume))

    def watch(record: dict[str, float], state: Any) -> None:
        del state
        if show is not None and record["step"] > 0:
            show(line(record, molecule))

    key = jax.random.key(seed)
    found = molecules.solve(
        problem,
        key,
        pretrain=pretrain,
        steps=steps,
        seconds=seconds,
        callback=watch,
        checkpoint=folder,
        resume=resume,
        mesh=mesh,
    )
    # Before the first step nothing is known of the energy.
    records = [record for record in as_records(found.history) if "energy" in record]
    about = {**found.evaluation._asdict(), "verdict": found.verdict, "exact": molecule.exact}
    if not team.leads:
        return {**records[-1], **about, "reason": found.reason, "files": []}
    metrics = write_metrics(folder, records)
    write_atomic(folder / "evaluation.json", json.dumps(about, indent=1).encode())
    places = _places(problem, found, jax.random.fold_in(key, 2))
    draws = [partial(_curves, home, molecule), partial(_density, places, molecule)]
    pictures = {"energy.svg": draws[0], "density.svg": draws[1]}
    for file, draw in pictures.items():
        write_atomic(folder / file, report.standalone(report.render([draw], file[:-4])).encode())
    _describe(home, molecule, f"{ansatz}-{seed}", draws)
    files = [metrics, *(folder / file for file in ("evaluation.json", CHECKPOINT, *pictures))]
    return {**records[-1], **about, "reason": found.reason, "files": files}


def line(record: dict[str, float], molecule: molecules.Molecule) -> str:
    """One record in words for a terminal: the energy against what is known."""
    words = [f"step {record['step']:.0f}", f"{record['seconds']:.1f} s"]
    words.append(f"E {record['energy']:.5f} ± {record['energy_error']:.5f} Ha")
    if molecule.exact is not None:
        words.append(f"exact {molecule.exact:.5f} ({1e3 * (record['energy'] - molecule.exact):+.2f} mHa)")
    if molecule.hartree_fock is not None:
        words.append(f"Hartree–Fock {molecule.hartree_fock:.5f}")
    words.append(f"variance {record['variance']:.2e}")
    words.append(f"acceptance {record['acceptance']:.2f}")
    words += [f"{name} {record[name]:.0f}" for name in ("dropped", "rejected") if record[name]]
    return "  ".join(words)


def _folder_name(molecule: molecules.Molecule) -> str:
    ion = f"{molecule.charge:+d}" if molecule.charge else ""
    usual = molecules.Molecule(
        list(zip(molecule.symbols, molecule.places, strict=True)), charge=molecule.charge
    )
    return f"{molecule.name}{ion}" + (f"-spin{molecule.spin}" if molecule.spin != usual.spin else "")


def _places(problem: molecules.VMC, found: molecules.GroundState, key: Any) -> Float[np.ndarray, "s 3"]:
    """Where electrons were seen, over many moves of all walkers."""
    sampler = problem.default_sampler(found.params).at(found.params)

    @eqx.filter_jit
    def walk(sampler: Any, state: Any, key: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            batch, state = sampler.draw(key, state, None)
            return state, batch.positions

        return jax.lax.scan(step, state, jax.random.split(key, PICTURE_STEPS))[1]

    return np.asarray(walk(sampler, found.state.sampler, key)).reshape(-1, 3)


def _density(places: Float[np.ndarray, "s 3"], molecule: molecules.Molecule, ax: Any) -> None:
    """Electrons per square bohr, seen from the side, on a logarithmic scale; crosses are nuclei."""
    nuclei = molecule.nuclei
    spread = np.ptp(nuclei, axis=0)
    across, along = (0 if spread[0] >= spread[1] else 1), 2
    low, high = np.quantile(places, [0.002, 0.998], axis=0)
    reach = max(high[along] - low[along], high[across] - low[across]) / 2
    middle = (low + high) / 2
    edges = [np.linspace(middle[i] - reach, middle[i] + reach, GRID + 1) for i in (along, across)]
    counts, *_ = np.histogram2d(places[:, along], places[:, across], bins=edges)
    cell = (edges[0][1] - edges[0][0]) * (edges[1][1] - edges[1][0])
    density = counts * molecule.electrons / (len(places) * cell)
    seen = density[density > 0]
    shown = np.log10(np.maximum(density, seen.min()))
    image = ax.pcolormesh(*edges, shown.T, rasterized=True)
    ax.figure.colorbar(image, ax=ax, label="log₁₀ electrons per bohr²")
    for symbol, place in zip(molecule.symbols, nuclei, strict=True):
        here = place[along], place[across]
        ax.plot(*here, "+", color="black")
        ax.annotate(symbol, here, xytext=(3, 3), textcoords="offset points", color="black")
    ax.set(xlabel="xyz"[along] + ", bohr", ylabel="xyz"[across] + ", bohr")
    ax.set_title(f"{molecule.name}: electrons seen from the side")
    ax.set_aspect("equal")
    ax.grid(False)


def _curves(home: Path, molecule: molecules.Molecule, ax: Any) -> None:
    """The energy (above the exact one, where known) against time for all runs so far, and their last word."""
    colours = (report.BLUE, report.ORANGE, report.GREEN, report.PURPLE, report.GREY, report.INK)
    zero, unit = (0.0, 1.0) if molecule.exact is None else (molecule.exact, 1e3)
    lows = []
    for i, (run, records, found) in enumerate(_runs(home)):
        colour = colours[i % len(colours)]
        time_, energy, error = (
            np.array([record[name] for record in records]) for name in ("seconds", "energy", "energy_error")
        )
        time_, energy, error = np.maximum(time_, 1e-2), unit * (energy - zero), unit * error
        lows += [min(energy - error), unit * (found["energy"] - zero)]
        ax.plot(time_, energy, color=colour, label=run)
        ax.fill_between(time_, energy - error, energy + error, color=colour, alpha=0.2, linewidth=0)
        ax.errorbar(time_[-1], unit * (found["energy"] - zero), unit * found["error"], fmt="o", color=colour)
    ax.set(xscale="log", xlabel="seconds of training", title=molecule.name, ylabel="energy, Ha")
    ax.xaxis.get_major_locator().set_params(subs=(1, 2, 5))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("")
    if molecule.exact is not None:
        ax.axhline(CHEMICAL, color=report.GREY, linestyle="--", label="chemical accuracy")
        if molecule.hartree_fock is not None and molecule.hartree_fock > molecule.exact:
            above = 1e3 * (molecule.hartree_fock - molecule.exact)
            ax.axhline(above, color=report.GREY, linestyle=":", label="Hartree–Fock")
        high = ax.get_ylim()[1]
        # Linear around zero: averages scatter to both sides of the exact energy.
        ax.set_yscale("symlog", linthresh=CHEMICAL)
        ax.set_yticks([-1, 0, 1, 10, 100, 1000], ["−1", "0", "1", "10", "100", "1000"])
        ax.set(ylabel="energy above the exact one, mHa", ylim=(min(-1, *lows), high))
    ax.legend()


def _describe(home: Path, molecule: molecules.Molecule, last: str, draws: list[report.Draw]) -> None:
    """The molecule's section on the page: curves of all runs, and the density of the last one."""
    rows, verdicts = [], {}
    for run, records, found in _runs(home):
        end, (ansatz, _, seed) = records[-1], run.rpartition("-")
        verdicts[run] = found["verdict"]
        row = {"ansatz": ansatz, "seed": seed, "steps": f"{end['step']:.0f}"}
        row["seconds"] = f"{end['seconds']:.1f}"
        row["energy, Ha"] = f"{found['energy']:.6f} ± {found['error']:.6f}"
        row["above exact, mHa"] = "unknown"
        if molecule.exact is not None:
            above = 1e3 * (found["energy"] - molecule.exact)
            row["above exact, mHa"] = f"{above:+.2f} ± {1e3 * found['error']:.2f}"
        row["variance, Ha²"] = f"{found['variance']:.2e}"
        row["V-score"] = f"{found['v_score']:.1e}"
        rows.append(row)
    write_section(
        home,
        title=f"Molecule: {molecule.name}",
        source="molecule",
        caption="Energy against training time, without compilation: averages over the last hundred steps and "
        "their errors. The dot, and the table, are the energy with frozen parameters after training. Then "
        f"how many electrons {last} has per area, along the line of sight; crosses are nuclei. "
        f"{last}: {verdicts[last]} The V-score is electrons × variance / energy², zero for an exact state.",
        table=rows,
        svgs=[report.render([draw], f"{home.name}-{index}") for index, draw in enumerate(draws)],
        links={f"{run} (JSON lines)": f"{run}/metrics.jsonl" for run in verdicts},
    )


def _runs(home: Path) -> Iterator[tuple[str, list[dict[str, float]], dict[str, Any]]]:
    """Name, records and evaluation of each run that came to its end."""
    for folder, records in read_metrics(home):
        evaluation = folder / "evaluation.json"
        if evaluation.exists():
            yield folder.name, records, read_json(evaluation)
