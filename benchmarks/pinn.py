"""PINNs: the default of `sg.pinn.solve` beside Adam, L-BFGS, ENGD and SPRING with fixed settings.

    .venv/bin/python benchmarks/pinn.py [--quick] [--methods auto,adam]  # Poisson 2d and heat 1d, ten seeds
    .venv/bin/python benchmarks/pinn.py --problem poisson-5d --seconds 540 --out FILE [--points 17254,2876]
    .venv/bin/python benchmarks/pinn.py --collect FILE ...               # table and picture of such runs

The first compares methods with the same network, points and time, and writes benchmarks/results/pinn.md.
The second runs one problem with one method (`--method auto`) and appends each record to FILE, a line of
JSON each, as it goes, so that a run that is cut off leaves its curve. `--problem` may be any name of
`sg.pinn.NAMES`; 10-d and 100-d Poisson keep their 150 points per step. Compilation is not in the seconds.
The third prints a table and writes curves and picture to benchmarks/results/pinn_h200.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("NPROC", "4")

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np

from snapgrad import pinn

RESULTS = Path(__file__).parent / "results" / "pinn.md"
PUBLISHED = {"poisson-5d": 2.62e-7, "poisson-10d": 6.15e-5, "poisson-100d": 3.6e-3}
"""Absolute root mean square errors of the best published runs: SPRING, after a sweep."""


def one(
    name: str,
    method: str,
    seed: int,
    *,
    seconds=None,
    steps=None,
    tol=None,
    points=None,
    hidden=None,
    record_every=25,
    out=None,
):
    problem = pinn.zoo(name, points=points, hidden=hidden)
    print(
        f"# {name}, {method}, seed {seed}, {jax.devices()[0].device_kind}: {pinn.advice(problem)}", flush=True
    )
    begin = time.perf_counter()

    def tell(record, state):
        del state
        sizes = [block.points for block in problem.blocks]
        record = {"problem": name, "method": method, "seed": seed, "points": sizes, **record}
        record["elapsed"] = time.perf_counter() - begin
        if out is not None:
            with open(out, "a") as file:
                file.write(json.dumps(record) + "\n")
        if record["elapsed"] >= tell.next:
            tell.next = record["elapsed"] + 10
            watched = {k: f"{v:.3g}" for k, v in record.items() if isinstance(v, float)}
            print(" ".join(f"{k}={v}" for k, v in watched.items()), flush=True)

    tell.next = 0.0
    chosen = pinn.setting(method, problem)._asdict()
    return pinn.solve(
        problem,
        jax.random.key(seed),
        seconds=seconds,
        steps=steps,
        tol=tol,
        record_every=record_every,
        callback=tell,
        **chosen,
    )


def compare(seeds: int, budget: float, baseline_budget: float, methods: list[str]) -> str:
    """The table of the acceptance problems."""
    lines = [
        f"# PINNs on CPU, float64, {time.strftime('%Y-%m-%d')}",
        "",
        f"`benchmarks/pinn.py`, {os.cpu_count()} cores; same network and points per step. The default",
        "stops at 1e-7; baselines run for the seconds in the last column. Errors are relative L2.",
        "",
        "| problem | method | seeds | seconds to 1e-6, median (worst) | error, median (worst) | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("poisson-2d", "heat-1d"):
        for method in methods:
            count = seeds if method == "auto" else 1
            limit = budget if method == "auto" else baseline_budget
            results = [one(name, method, seed, seconds=limit, tol=1e-7) for seed in range(count)]
            errors = np.array([r.history["relative_l2"][-1] for r in results])
            reached = np.array([_reached(r.history, 1e-6) for r in results])
            hit = np.isfinite(reached).sum()
            when = f"{np.median(reached):.1f} ({reached.max():.1f}), {hit} of {count}" if hit else "never"
            used = max(r.history["seconds"][-1] for r in results)
            error = f"{np.median(errors):.1e} ({errors.max():.1e})"
            lines.append(f"| {name} | {method} | {count} | {when} | {error} | {used:.0f} |")
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def _reached(history, tol: float) -> float:
    below = np.flatnonzero(np.asarray(history["relative_l2"]) <= tol)
    return float(history["seconds"][below[0]]) if below.size else np.inf


def collect(files: list[Path], out: Path) -> None:
    """Table, curves and picture of runs of the second kind, errors as absolute root mean squares."""
    runs = []
    for file in files:
        records = [json.loads(line) for line in file.read_text().splitlines()]
        about = {name: records[0][name] for name in ("problem", "method", "seed", "points")}
        scale = float(np.sqrt(np.mean(np.asarray(pinn.zoo(about["problem"]).test[1]) ** 2)))
        kept = sorted({round(i) for i in np.geomspace(1, len(records), 60)})  # as a curve in log time shows
        names = ("step", "seconds", "loss", "relative_l2")
        curve = {name: [records[i - 1][name] for i in kept] for name in names}
        whole = {name: [record[name] for record in records] for name in names}
        runs.append({**about, "scale": scale, "curve": curve, "whole": whole})
    runs.sort(key=lambda run: (list(PUBLISHED).index(run["problem"]), run["method"], run["seed"]))
    head = ("problem", "method", "points per step", "seed", "RMS error", "relative L2", "steps", "seconds")
    lines = [f"| {' | '.join(head)} | published RMS | reached after |", "|---" * (len(head) + 2) + "|"]
    for run in runs:
        whole, goal = run.pop("whole"), PUBLISHED[run["problem"]]
        error, after = whole["relative_l2"][-1], _reached(whole, goal / run["scale"])
        cells = [run["problem"], run["method"], "+".join(map(str, run["points"])), str(run["seed"])]
        cells += [f"{error * run['scale']:.2e}", f"{error:.2e}"]
        cells += [f"{whole['step'][-1]:.0f}", f"{whole['seconds'][-1]:.0f}", f"{goal:.2e}"]
        cells.append(f"{after:.0f} s" if np.isfinite(after) else "not")
        lines.append(f"| {' | '.join(cells)} |")
    out.mkdir(parents=True, exist_ok=True)
    (out / "curves.json").write_text(json.dumps(runs))
    (out / "error.svg").write_text(_picture(runs))
    print("\n".join(lines))


def _picture(runs: list[dict]) -> str:
    from snapgrad import report

    colours = {"auto": report.BLUE, "engd-w": report.PURPLE, "adam": report.GREY}

    def draw(problem: str, ax) -> None:
        seen = set()
        for run in (run for run in runs if run["problem"] == problem):
            times = np.maximum(run["curve"]["seconds"], 0.05)
            label = None if run["method"] in seen else run["method"]
            seen.add(run["method"])
            errors = np.array(run["curve"]["relative_l2"]) * run["scale"]
            ax.plot(times, errors, color=colours.get(run["method"], report.INK), label=label)
        ax.axhline(PUBLISHED[problem], color=report.ORANGE, linestyle="--", label="published")
        ax.set(xscale="log", yscale="log", xlabel="seconds on one H200", ylabel="RMS error", title=problem)
        ax.legend()

    present = [name for name in PUBLISHED if any(run["problem"] == name for run in runs)]
    return report.standalone(report.render([lambda ax, p=p: draw(p, ax) for p in present], "pinn-h200"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problem", choices=pinn.NAMES)
    parser.add_argument("--method", choices=pinn.METHODS, default="auto")
    parser.add_argument("--methods", default="auto,engd,lbfgs,adam", help="of the comparison")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tol", type=float)
    numbers = lambda text: tuple(int(part) for part in text.split(","))  # noqa: E731
    parser.add_argument("--points", type=numbers, help="points per step of each block, such as 20000,4000")
    parser.add_argument("--hidden", type=numbers, help="widths of the hidden layers")
    parser.add_argument("--record-every", type=int, default=25)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--collect", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="two seeds and short baselines")
    args = parser.parse_args()
    if args.collect:
        collect(args.collect, args.out or RESULTS.parent / "pinn_h200")
        return
    if args.problem is None:
        table = compare(2 if args.quick else 10, 300, 20 if args.quick else 300, args.methods.split(","))
        (args.out or RESULTS).parent.mkdir(parents=True, exist_ok=True)
        (args.out or RESULTS).write_text(table)
        print(f"{args.out or RESULTS} written")
        return
    solution = one(
        args.problem,
        args.method,
        args.seed,
        seconds=args.seconds,
        steps=args.steps,
        tol=args.tol,
        points=args.points,
        hidden=args.hidden,
        record_every=args.record_every,
        out=args.out,
    )
    final = {k: float(v[-1]) for k, v in solution.history.items()}
    print("final", solution.reason, json.dumps(final))


if __name__ == "__main__":
    sys.exit(main())
