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
from ..reproduce import claim_folder, write_atomic, write_section
from ..training import CHECKPOINT

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
    out: Path = Path("results"),
    resume: bool = False,
    show: Callable[[str], None] | None = None,
    problem: molecules.VMC | None = None,
) -> dict[str, Any]:
    """Trains one molecule; writes metrics, checkpoint, evaluation and pictures under `out/molecule/NAME`.

    **Arguments:**

    - `name`: one of `sg.molecules.NAMES`, or an .xyz file.
    - `ansatz`: `"ferminet"` or `"psiformer"`.
    - `steps`, `seconds`: when to stop; 1000 steps if neither is given.
    - `seed`: of weights and walkers.
    - `charge`, `spin`: as for `sg.molecules.molecule`.
    - `out`: the results folder; each ansatz and seed has a folder of its own below it.
    - `resume`: go on from the checkpoint in that folder; `steps` and `seconds` count from the very first
      step.
    - `show`: is called with a line of progress at each record.
    - `problem`: in place of the default one for the molecule.

    Returns the last record with the evaluation, its words and the paths that were written. An interruption
    leaves a checkpoint. Raises `ValueError` for what is no molecule and `ResultsError` for a folder it cannot
    use, such as one that holds a run already while `resume` is not set: nothing is overwritten.
    """
    molecule = molecules.molecule(name, charge=charge, spin=spin)
    problem = molecules.problem_for(molecule, ansatz) if problem is None else problem
    home = out / "molecule" / _folder_name(molecule)
    folder = home / f"{ansatz}-{seed}"
    claim_folder(folder, CHECKPOINT, resume)

    def watch(record: dict[str, float], state: Any) -> None:
        del state
        if show is not None and record["step"] > 0:
            show(line(record, molecule))

    key = jax.random.key(seed)
    found = molecules.solve(
        problem, key, steps=steps, seconds=seconds, callback=watch, checkpoint=folder, resume=resume
    )
    records = _records(found.history)
    text = "".join(json.dumps(record) + "\n" for record in records)
    write_atomic(folder / "metrics.jsonl", text.encode())
    about = {**found.evaluation._asdict(), "verdict": found.verdict, "exact": molecule.exact}
    write_atomic(folder / "evaluation.json", json.dumps(about, indent=1).encode())
    places = _places(problem, found, jax.random.fold_in(key, 2))
    draws = [partial(_curves, home, molecule), partial(_density, places, molecule)]
    pictures = {"energy.svg": draws[0], "density.svg": draws[1]}
    for file, draw in pictures.items():
        write_atomic(folder / file, report.standalone(report.render([draw], file[:-4])).encode())
    _describe(home, molecule, f"{ansatz}-{seed}", draws)
    files = [folder / file for file in ("metrics.jsonl", "evaluation.json", CHECKPOINT, *pictures)]
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
    return "  ".join(words)


def _folder_name(molecule: molecules.Molecule) -> str:
    ion = f"{molecule.charge:+d}" if molecule.charge else ""
    usual = molecules.Molecule(
        list(zip(molecule.symbols, molecule.places, strict=True)), charge=molecule.charge
    )
    return f"{molecule.name}{ion}" + (f"-spin{molecule.spin}" if molecule.spin != usual.spin else "")


def _records(history: dict[str, np.ndarray]) -> list[dict[str, float]]:
    """The history record by record, without the one before the first step, of which nothing is known."""
    rows = [
        dict(zip(history, map(float, values), strict=True)) for values in zip(*history.values(), strict=True)
    ]
    return [row for row in rows if np.isfinite(row["energy"])]


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
    ax.plot(nuclei[:, along], nuclei[:, across], "+", color="white")
    ax.set(xlabel="xyz"[along] + ", bohr", ylabel="xyz"[across] + ", bohr", title=f"{molecule.name}: density")
    ax.set_aspect("equal")
    ax.grid(False)


def _curves(home: Path, molecule: molecules.Molecule, ax: Any) -> None:
    """The energy (above the exact one, where known) against time for all runs so far."""
    colours = (report.BLUE, report.ORANGE, report.GREEN, report.PURPLE, report.GREY, report.INK)
    for i, (run, records) in enumerate(_runs(home)):
        time_ = [max(record["seconds"], 1e-2) for record in records]
        energy = np.array([record["energy"] for record in records])
        if molecule.exact is not None:
            energy = np.maximum(1e3 * (energy - molecule.exact), 1e-2)
        ax.plot(time_, energy, color=colours[i % len(colours)], label=run)
    ax.set(xscale="log", xlabel="seconds", title=molecule.name, ylabel="energy, Ha")
    if molecule.exact is not None:
        ax.set(yscale="log", ylabel="energy above the exact one, mHa")
        ax.axhline(CHEMICAL, color=report.GREY, linestyle="--", label="chemical accuracy")
        if molecule.hartree_fock is not None and molecule.hartree_fock > molecule.exact:
            above = 1e3 * (molecule.hartree_fock - molecule.exact)
            ax.axhline(above, color=report.GREY, linestyle=":", label="Hartree–Fock")
    ax.legend()


def _describe(home: Path, molecule: molecules.Molecule, last: str, draws: list[report.Draw]) -> None:
    """The molecule's section on the page: curves of all runs, and the density of the last one."""
    rows = []
    for run, records in _runs(home):
        end, (ansatz, _, seed) = records[-1], run.rpartition("-")
        found = json.loads((home / run / "evaluation.json").read_text())
        row = {"ansatz": ansatz, "seed": seed, "steps": f"{end['step']:.0f}"}
        row["seconds"] = f"{end['seconds']:.1f}"
        row["energy, Ha"] = f"{found['energy']:.6f} ± {found['error']:.6f}"
        exact = molecule.exact
        row["above exact, mHa"] = "unknown" if exact is None else f"{1e3 * (found['energy'] - exact):+.2f}"
        row["variance, Ha²"] = f"{found['variance']:.2e}"
        row["V-score"] = f"{found['v_score']:.1e}"
        rows.append(row)
    verdict = json.loads((home / last / "evaluation.json").read_text())["verdict"]
    write_section(
        home,
        title=f"Molecule: {molecule.name}",
        source="molecule",
        caption=f"Energy against training time, without compilation, and where electrons are after {last}: "
        f"{verdict}",
        table=rows,
        svgs=[report.render([draw], f"{home.name}-{index}") for index, draw in enumerate(draws)],
        links={f"{run} (JSON lines)": f"{run}/metrics.jsonl" for run, _ in _runs(home)},
    )


def _runs(home: Path) -> Iterator[tuple[str, list[dict[str, float]]]]:
    for metrics in sorted(home.glob("*/metrics.jsonl")):
        records = [json.loads(row) for row in metrics.read_text().splitlines()]
        if records and (metrics.parent / "evaluation.json").exists():
            yield metrics.parent.name, records
