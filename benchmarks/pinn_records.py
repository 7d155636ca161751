"""The canonical problems of the zoo beside the best published errors.

    python benchmarks/pinn_records.py                              # two problems, three methods, for a look
    python benchmarks/pinn_records.py --out runs                    # all canonical problems, ten minutes each
    python benchmarks/pinn_records.py burgers kdv --seconds 300 --seeds 0,1,2 --baselines
    python benchmarks/pinn_records.py --collect runs [more ...]     # results/pinn_records.md and a picture
    python benchmarks/pinn_records.py --collect benchmarks/results/pinn_records.json runs      # old and new

Each run is a process of its own and writes `NAME.METHOD.SEED.json` under `--out` every few seconds, whole or
not at all, so that a run that is killed leaves its curve; `records.json` there holds the end of every run so
far. `--jobs N` runs N of them at once, sharing one GPU. Everything is at its default: the network and the
points that the zoo states, `sg.pinn.solve` without settings, or `sg.pinn.march` where the zoo states slabs;
other methods have the same problem, slabs and time. `--baselines` runs Adam and L-BFGS (optax) beside ours.
What is to be said about the runs stands in `pinn_records_notes.md`, which `--collect` puts below the table.
Seconds do not include compilation; `elapsed` does. The package need not be installed: `PYTHONPATH=src` is
enough.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("NPROC", "4")

RESULTS = Path(__file__).parent / "results"
NOTES = Path(__file__).parent / "pinn_records_notes.md"
BASELINES = ("adam", "lbfgs")
CURVE = ("step", "seconds", "loss", "relative_l2")
KEPT = 60
"""Points of a curve that are stored."""
SAVE_EVERY = 5.0
"""Seconds between two writings of a curve."""


def run(name: str, method: str, seed: int, args: argparse.Namespace) -> None:
    """One run, in this process; its file is written as it goes."""
    import jax

    jax.config.update("jax_enable_x64", not args.float32)
    from snapgrad import pinn

    begin, entry = time.perf_counter(), pinn.ZOO[name]
    problem = pinn.zoo(name, hidden=args.hidden, points=args.points)
    slabs = args.slabs or entry.slabs
    rows, parameters = problem.counts(jax.eval_shape(problem.init, jax.random.key(0)))
    about = {
        "problem": name,
        "method": method,
        "seed": seed,
        "slabs": args.slabs or entry.pieces,
        "precision": "float32" if args.float32 else "float64",
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "date": time.strftime("%Y-%m-%d"),
        "budget": args.seconds,
        "parameters": parameters,
        "rows": rows,
    }
    curve = {field: [] for field in (*CURVE, "slab")}
    saved, before = 0.0, {"step": 0.0, "seconds": 0.0}

    def tell(record, state) -> None:
        nonlocal saved, before
        del state
        slab = float(record.get("slab", 0))
        if curve["slab"] and slab != curve["slab"][-1]:  # a slab counts from its own start
            before = {field: curve[field][-1] for field in before}
        for field in CURVE:
            curve[field].append(float(record.get(field, float("nan"))) + before.get(field, 0.0))
        curve["slab"].append(slab)
        now = time.perf_counter()
        if now - saved > SAVE_EVERY:
            saved = now
            save(args.out, {**about, "elapsed": now - begin, "reason": "running", "curve": curve})
            so_far = f"{curve['seconds'][-1]:.0f} s, slab {slab:.0f}, {curve['relative_l2'][-1]:.2e}"
            print(f"{name} {method} {seed}: {so_far}", flush=True)

    key, options = jax.random.key(seed), {"seconds": args.seconds, "callback": tell}
    options |= pinn.setting(method, problem)._asdict()
    if slabs != 1:
        options["sampler"] = lambda slab: pinn.setting(method, slab).sampler
        solution = pinn.march(problem, key, slabs=slabs, **options)
        end = {"relative_l2": float(solution.relative_l2), "reason": ", ".join(sorted(set(solution.reason)))}
    else:
        solution = pinn.solve(problem, key, **options)
        unknowns = {field: float(value) for field, value in solution.unknowns.items()}
        end = {"reason": solution.reason, "unknowns": unknowns}
    about |= {"elapsed": time.perf_counter() - begin, **end}
    save(args.out, {**about, "curve": curve})


def save(out: Path, record: dict) -> None:
    """Writes one run whole or not at all; the error is that of the end, unless it is there already."""
    record = {"relative_l2": record["curve"]["relative_l2"][-1], **record}
    path = out / f"{record['problem']}.{record['method']}.{record['seed']}.json"
    write(path, json.dumps(record))


def write(path: Path, text: str) -> None:
    """The file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)


def read(places: list[Path]) -> list[dict]:
    """All runs under these folders and in these files of collected ones, in the order of the zoo.

    Of runs with the same settings the last one counts.
    """
    from snapgrad import pinn

    runs = {}
    for place in places:
        files = [place] if place.is_file() else sorted(place.rglob("*.*.*.json"))
        for file in files:
            found = json.loads(file.read_text())
            for one in found if isinstance(found, list) else [found]:
                settings = (one[field] for field in ("problem", "method", "seed", "precision"))
                runs[(*settings, device(one))] = one

    def order(one: dict) -> tuple:
        where = one["device"] == "cpu", device(one)  # cards first
        return pinn.NAMES.index(one["problem"]), pinn.METHODS.index(one["method"]), where, one["seed"]

    return sorted(runs.values(), key=order)


def device(one: dict) -> str:
    """What a run was on: the name of a card, or how many cores."""
    if one["device"] != "cpu":
        return one["device"]
    cores = one.get("cores")
    return "CPU" if cores is None else f"{cores} core{'s' if cores > 1 else ''}"


def summarise(out: Path) -> None:
    """`records.json`: every run so far without its curve."""
    runs = [{k: v for k, v in run.items() if k != "curve"} for run in read([out])]
    write(out / "records.json", json.dumps(runs, indent=1))


def launch(jobs: list[tuple[str, str, int]], args: argparse.Namespace) -> int:
    """Runs all jobs, so many at a time, each in a process of its own; returns how many failed."""
    environment = dict(os.environ)
    environment.setdefault("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=false")
    environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / args.jobs:.3f}"

    def one(job: tuple[str, str, int]) -> int:
        name, method, seed = job
        command = [sys.executable, __file__, "--one", name, "--method", method, "--seeds", str(seed)]
        command += ["--seconds", str(args.seconds), "--out", str(args.out)]
        command += ["--float32"] if args.float32 else []
        for option in ("hidden", "points"):
            if getattr(args, option):
                command += [f"--{option}", ",".join(map(str, getattr(args, option)))]
        command += ["--slabs", str(args.slabs)] if args.slabs else []
        code = subprocess.run(command, env=environment, check=False).returncode
        print(f"{name} {method} {seed}: {'done' if code == 0 else f'failed with code {code}'}", flush=True)
        return code

    failed = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for code in pool.map(one, jobs):
            failed += code != 0
            summarise(args.out)
    return failed


def table(runs: list[dict]) -> list[str]:
    """A line for each problem, method, precision and device: error, time, the record and the ratio to it."""
    from snapgrad import pinn

    head = ("problem", "method", "error", "record", "ratio", "seconds", "device")
    head += ("record by, in", "parameters", "seeds")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    groups: dict[tuple[str, ...], list[dict]] = {}
    for one in runs:
        key = (*(one[field] for field in ("problem", "method", "precision")), device(one))
        groups.setdefault(key, []).append(one)
    for (name, method, precision, where), members in groups.items():
        record, errors = pinn.ZOO[name].record, sorted(one["relative_l2"] for one in members)
        median, used = errors[len(errors) // 2], max(one["curve"]["seconds"][-1] for one in members)
        cells = [name, method if precision == "float64" else f"{method}, {precision}"]
        cells.append(f"{median:.1e}" if len(errors) == 1 else f"{median:.1e} (worst {errors[-1]:.1e})")
        by = ""
        if record is None:
            cells += ["", ""]
        else:
            when = "" if record.seconds is None else f", {record.seconds:,.0f} s"
            by = record.holder + when
            cells += [f"{record.error:.1e}", f"{median / record.error:.2g}"]
        cells += [f"{used:.0f}", where, by, f"{members[0]['parameters']:,}", str(len(members))]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def collect(places: list[Path]) -> None:
    """results/pinn_records.md, its curves as JSON, and the picture."""
    runs = read(places)
    devices, dates = sorted({device(one) for one in runs}), sorted({one["date"] for one in runs})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    text = f"""# Canonical PINN problems beside the best published errors, {when}

`benchmarks/pinn_records.py` on {", ".join(devices)}: relative L2 errors against closed forms and spectral
references, with the network and points that the zoo states and nothing else set. Seconds are those of
training, without compilation (published ones are their authors', on their GPUs). A ratio below one is better
than the record. Methods have the same problem, slabs and time. In slabs of time, curves show the error within
the present slab; the table has that over all times.

{chr(10).join(table(runs))}

![Error against time](pinn_records.svg)

{NOTES.read_text()}"""
    write(RESULTS / "pinn_records.md", text)
    write(RESULTS / "pinn_records.svg", picture(runs))
    write(RESULTS / "pinn_records.json", json.dumps([thinned(one) for one in runs]))
    print("\n".join(table(runs)))


def thinned(one: dict) -> dict:
    """The run with sixty points of its curve, as log time shows them; one that has been thinned stays."""
    count = len(one["curve"]["step"])
    if count <= KEPT:
        return one
    kept = sorted({round(count ** (i / (KEPT - 1))) - 1 for i in range(KEPT)})
    return {**one, "curve": {field: [values[i] for i in kept] for field, values in one["curve"].items()}}


def picture(runs: list[dict]) -> str:
    """Error against time for each problem, the record as a line."""
    import numpy as np

    from snapgrad import pinn, report

    colours = {"auto": report.BLUE, "adam": report.GREY, "lbfgs": report.GREEN}

    def draw(problem: str, ax) -> None:
        seen = set()
        for one in (one for one in runs if one["problem"] == problem):
            method, curve, single = one["method"], thinned(one)["curve"], one["precision"] == "float32"
            name = f"{method}, {device(one).removeprefix('NVIDIA ')}" + (", float32" if single else "")
            label = None if name in seen else name
            seen.add(name)
            seen_at = np.isfinite(curve["relative_l2"])  # some slabs hold no time of the reference
            times = np.maximum(curve["seconds"], 0.1)[seen_at]
            line = ":" if single else "-." if one["device"] == "cpu" else "-"
            look = {"color": colours.get(method, report.INK), "linestyle": line}
            ax.plot(times, np.array(curve["relative_l2"])[seen_at], label=label, **look)
        if (record := pinn.ZOO[problem].record) is not None:
            ax.axhline(record.error, color=report.ORANGE, linestyle="--", label="record")
        ax.set(xscale="log", yscale="log", xlabel="seconds", ylabel="relative L2 error", title=problem)
        ax.legend()

    present = list(dict.fromkeys(one["problem"] for one in runs))
    draws = [lambda ax, p=p: draw(p, ax) for p in present]
    return report.standalone(report.render(draws, "pinn-records", size=(3.6, 2.9), columns=4))


def main() -> int:
    numbers = lambda text: tuple(int(part) for part in text.split(","))  # noqa: E731
    words = lambda text: tuple(text.split(","))  # noqa: E731
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problems", nargs="*", help="names of the zoo; all canonical ones by default")
    parser.add_argument("--method", type=words, default=("auto",), help="such as auto,adam,lbfgs")
    parser.add_argument("--baselines", action="store_true", help=f"also {' and '.join(BASELINES)}")
    parser.add_argument("--seconds", type=float, default=600.0, help="of training, for each run")
    parser.add_argument("--seeds", type=numbers, default=(0,), help="such as 0,1,2")
    parser.add_argument("--out", type=Path, help="folder of the runs; neither it nor names: a quick look")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, sharing one GPU")
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--hidden", type=numbers, help="other widths than the zoo's")
    parser.add_argument("--points", type=numbers, help="other points per step than the zoo's")
    parser.add_argument("--slabs", type=int, help="another number of slabs than the zoo's; 1 for none")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument(
        "--collect", type=Path, nargs="+", metavar="PLACE", help="folders of runs, or collected ones (.json)"
    )
    args = parser.parse_args()
    if args.collect:
        collect(args.collect)
        return 0
    if args.out is None and not args.problems:
        with tempfile.TemporaryDirectory() as folder:
            args.out, args.seconds = Path(folder), 20.0
            jobs = [(n, m, 0) for n in ("helmholtz", "kovasznay") for m in ("auto", *BASELINES)]
            failed = launch(jobs, args)
            print("\n".join(table(read([args.out]))))
        return failed
    args.out = args.out or Path("records")
    if args.one:
        run(args.one, args.method[0], args.seeds[0], args)
        return 0
    from snapgrad import pinn

    unknown = [name for name in args.problems if name not in pinn.NAMES]
    if unknown:
        parser.error(f"there is no problem {unknown[0]!r}: choose from {', '.join(pinn.NAMES)}")
    methods = dict.fromkeys((*args.method, *(BASELINES if args.baselines else ())))
    jobs = [(n, m, s) for s in args.seeds for n in args.problems or pinn.CANONICAL for m in methods]
    return launch(jobs, args)


if __name__ == "__main__":
    sys.exit(main())
