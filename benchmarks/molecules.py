"""Ground states of atoms and small molecules in a few minutes each, from `sg.molecules` with its defaults.

    python benchmarks/molecules.py --systems He LiH C --seconds 480 --seeds 0 1 --out runs --jobs 3
    python benchmarks/molecules.py --parts --systems C --out runs        # where the time of a step goes
    python benchmarks/molecules.py --report runs --to benchmarks/results/molecules.md

The first trains each system and seed in a process of its own, `--jobs` of them at a time on one device, and
writes what is known so far every few seconds: a run that is killed keeps its curve. The second times moves,
local energies, kernel and solve of one step, beside the same step with the Jacobian stored. The third turns
the files of the other two into a table and a picture; it alone needs matplotlib.
"""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("NPROC", "4")

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

SYSTEMS = ("H2", "He", "Li", "Be", "B", "C", "LiH", "N", "O")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of training; compilation is extra")
    parser.add_argument("--evaluation", type=int, default=300, help="steps after training")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("molecules-runs"))
    for option in ("walkers", "moves", "width", "layers", "determinants"):
        parser.add_argument(f"--{option}", type=int, help="in place of the default")
    parser.add_argument("--ansatz", default="ferminet")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--to", type=Path, default=Path("benchmarks/results/molecules.md"))
    options = parser.parse_args()
    if options.report is not None:
        report(options.report, options.to)
    elif options.one is not None:
        train(options.one, options.seeds[0], options)
    elif options.parts:
        for system in options.systems:
            parts(system, options)
    else:
        spread(options)


def spread(options):
    """Every system and seed in a process of its own, so many at a time."""
    waiting = [(system, seed) for seed in options.seeds for system in options.systems]
    environment = dict(os.environ)
    environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / options.jobs:.3f}"
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp(prefix="jax-cache-"))
    passed = ["--seconds", str(options.seconds), "--evaluation", str(options.evaluation)]
    passed += ["--out", str(options.out), "--ansatz", options.ansatz]
    for option in ("walkers", "moves", "width", "layers", "determinants"):
        if getattr(options, option) is not None:
            passed += [f"--{option}", str(getattr(options, option))]
    running, failed = {}, 0
    while waiting or running:
        while waiting and len(running) < options.jobs:
            system, seed = waiting.pop(0)
            command = [sys.executable, __file__, "--one", system, "--seeds", str(seed), *passed]
            running[system, seed] = subprocess.Popen(command, env=environment)
        for which, process in list(running.items()):
            if process.poll() is not None:
                failed += process.returncode != 0
                del running[which]
        time.sleep(0.2)
    sys.exit(1 if failed else 0)


def make_problem(system, options):
    import jax

    import snapgrad as sg

    usual = sg.molecules.sizes(jax.default_backend())
    size = {name: getattr(options, name) or getattr(usual, name) for name in usual._fields}
    walkers, moves = size.pop("walkers"), size.pop("moves")
    kind = {"ferminet": sg.molecules.FermiNet, "psiformer": sg.molecules.Psiformer}[options.ansatz]
    return sg.molecules.VMC(kind(system, **size), walkers=walkers, moves=moves)


def about(problem):
    import jax

    params = jax.eval_shape(problem.init, jax.random.key(0))
    net = problem.log_psi
    device = jax.devices()[0]
    kind = device.device_kind if device.platform != "cpu" else f"{platform.processor() or 'CPU'}"
    return {
        "device": kind,
        "jax": jax.__version__,
        "ansatz": type(net).__name__,
        "width": net.width,
        "layers": net.layers,
        "determinants": net.determinants,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "walkers": problem.walkers,
        "moves": problem.moves,
        "electrons": problem.molecule.electrons,
        "exact": problem.molecule.exact,
        "hartree_fock": problem.molecule.hartree_fock,
    }


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1))
    part.replace(path)


def train(system, seed, options):
    import jax

    import snapgrad as sg

    problem = make_problem(system, options)
    path = options.out / f"{system}-{seed}.json"
    found = {"system": system, "seed": seed, "seconds": options.seconds, **about(problem), "records": []}
    written = 0.0

    def watch(record, state):
        nonlocal written
        del state
        if record["step"] == 0:
            return
        found["records"].append({name: round(float(value), 9) for name, value in record.items()})
        if time.monotonic() - written > 5:
            write(path, found)
            written = time.monotonic()
            above = 1e3 * (record["energy"] - found["exact"]) if found["exact"] else float("nan")
            print(
                f"{system}-{seed} step {record['step']:.0f} {record['seconds']:.0f} s {record['energy']:.5f} "
                f"({above:+.2f} ± {1e3 * record['energy_error']:.2f} mHa) var {record['variance']:.3f} "
                f"acc {record['acceptance']:.2f} η {record.get('step_size', 0):.2g} "
                f"μ {record.get('momentum', 0):.3f} δ {record.get('length', 0):.2g} "
                f"rejected {record['rejected']:.0f} dropped {record['dropped']:.0f}",
                flush=True,
            )

    key, began = jax.random.key(seed), time.monotonic()
    result = sg.fit(
        problem,
        key,
        method=sg.methods.FisherSpring(),
        seconds=options.seconds,
        callback=watch,
        record_every=25,
    )
    found["trained"] = {"wall": time.monotonic() - began, "rejected": int(result.rejected)}
    write(path, found)
    evaluation = sg.molecules.evaluate(
        problem,
        result.params,
        jax.random.fold_in(key, 1),
        steps=options.evaluation,
        state=result.state.sampler,
    )
    found["evaluation"] = evaluation._asdict()
    found["verdict"] = sg.molecules.verdict(problem.molecule, result.history, evaluation)
    write(path, found)
    print(f"{system}-{seed}: {found['verdict']}", flush=True)


def parts(system, options):
    """Seconds of each part of one step, and of the step with stored rows."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    import snapgrad as sg

    problem = make_problem(system, options)
    params = problem.init(jax.random.key(0))
    sampler = problem.default_sampler(params)
    draw = eqx.filter_jit(lambda params, state: sampler.at(params).draw(jax.random.key(2), state, None)[1])
    state = draw(params, sampler.init(jax.random.key(1)))
    k, method = problem.walkers, sg.methods.FisherSpring()
    weights = jnp.full(k, 1 / k, jnp.float32)
    # A step after a short one, which has the least damping, and not one of those that measure the curvature.
    begun = eqx.tree_at(lambda s: s.step, method.init(params), jnp.array(11))

    def moves(params, state):
        def move(i, carry):
            x, log = carry
            trial = x + 0.1 * jax.random.normal(jax.random.fold_in(jax.random.key(2), i), x.shape, x.dtype)
            new = jax.vmap(lambda x: problem.log_psi(params, x))(trial)
            ok = new > log
            return jnp.where(ok[:, None, None], trial, x), jnp.where(ok, new, log)

        start = state.positions, jnp.zeros(k, jnp.float32)
        return jax.lax.fori_loop(0, problem.moves + 1, move, start)

    def energies(params, state):
        one = lambda x: sg.molecules.local_energy(problem.log_psi, params, x, problem.potential)  # noqa: E731
        return jax.lax.map(one, state.positions, batch_size=problem.block_size)

    def rows(params, state):
        return sg.jacobian(problem.log_psi, params, state.positions).centre(weights).scale(jnp.sqrt(weights))

    def kernel(params, state):
        return rows(params, state).gram()

    def stored(params, state):
        J = rows(params, state).dense()
        return jnp.matmul(J, J.T, precision="highest")

    def solve(params, K):
        least = jnp.maximum(method.damping.astype(K.dtype) * jnp.trace(K) / k, sg.linalg.least_damping(K))
        return sg.linalg.psd_solve(K, K[0], least, "cholesky")

    def products(params, state):
        jac = rows(params, state)
        return jac.mv(jac.rmv(jac.mv(params)))

    def step(params, state):
        batch = sg.molecules.Walkers(state.positions, energies(params, state))
        return method.propose(problem.linearise(params, batch), begun)[0], moves(params, state)

    K = eqx.filter_jit(kernel)(params, state)
    times = {}
    for name, fn in {
        "moves": moves,
        "energies": energies,
        "kernel": kernel,
        "solve": solve,
        "products": products,
        "step": step,
        "kernel of stored rows": stored,
    }.items():
        try:
            program = eqx.filter_jit(jax.default_matmul_precision("highest")(fn))
            args = (params, K if fn is solve else state)
            jax.block_until_ready(program(*args))
            taken = []
            for _ in range(options.repeats):
                began = time.perf_counter()
                jax.block_until_ready(program(*args))
                taken.append(time.perf_counter() - began)
            times[name] = statistics.median(taken)
        except jax.errors.JaxRuntimeError as error:
            times[name] = None
            print(f"{name}: {str(error).splitlines()[0]}", flush=True)
        print(f"{system}: {name} {times[name]}", flush=True)
        write(options.out / f"parts-{system}.json", {"system": system, **about(problem), "times": times})


def report(folder, to):
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    trained = [run for run in runs if run.get("records")]
    timed = [run for run in runs if "times" in run]
    trained.sort(key=lambda run: (run["electrons"], run["system"], run["seed"]))
    lines = ["# Molecules", ""]
    if trained:
        lines += _trained(trained)
        _picture(trained, to.with_suffix(".svg"))
        lines += ["", f"![energy above exact against training time]({to.with_suffix('.svg').name})"]
    if timed:
        lines += ["", *_timed(timed)]
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text("\n".join(lines) + "\n")
    print(f"{to} written")


def _trained(trained):
    first = trained[0]
    lines = [
        f"`sg.molecules` with its defaults on {first['device']}, JAX {first['jax']}, float32: one setting "
        f"for all, {first['ansatz']} with {first['layers']} layers of {first['width']} and "
        f"{first['determinants']} determinants, {first['walkers']} walkers, {first['moves']} moves a step, "
        f"`sg.methods.FisherSpring()`, no pretraining. The energy is that of the frozen parameters after "
        f"training, its error by blocking; where a run was cut off before, the average of its last 100 "
        f"steps, marked *. Seconds are those of training, without compilation.",
        "",
        "| system | seed | parameters | steps | seconds | ms/step | energy, Ha | above exact, mHa "
        "| variance, Ha² | V-score | refused steps | lost walkers |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in trained:
        last, end = run["records"][-1], run.get("evaluation")
        energy, error = (end["energy"], end["error"]) if end else (last["energy"], last["energy_error"])
        variance = end["variance"] if end else last["variance"]
        score = f"{end['v_score']:.1e}" if end else "–"
        above = f"{1e3 * (energy - run['exact']):+.2f} ± {1e3 * error:.2f}" if run["exact"] else "–"
        lines.append(
            f"| {run['system']} | {run['seed']} | {run['parameters']:,} | {last['step']:.0f} | "
            f"{last['seconds']:.0f} | {1e3 * last['seconds'] / last['step']:.0f} | "
            f"{energy:.5f}{'' if end else ' *'} | {above} | {variance:.2e} | {score} | "
            f"{last['rejected']:.0f} | {last['dropped']:.0f} |"
        )
    return lines


def _timed(timed):
    names = list(timed[0]["times"])
    lines = [
        "Where the time of a step goes, in milliseconds, and what the kernel costs where J is stored:",
        "",
        f"| system | parameters | walkers | {' | '.join(names)} |",
        "|---|---|---|" + "---|" * len(names),
    ]
    for run in timed:
        cells = [
            "out of memory" if run["times"].get(name) is None else f"{1e3 * run['times'][name]:.1f}"
            for name in names
        ]
        lines.append(f"| {run['system']} | {run['parameters']:,} | {run['walkers']} | {' | '.join(cells)} |")
    return lines


def _picture(trained, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    systems = defaultdict(list)
    for run in trained:
        if run["exact"]:
            systems[run["system"]].append(run)
    figure, ax = plt.subplots(figsize=(7, 4.5))
    for i, (system, runs) in enumerate(systems.items()):
        for j, run in enumerate(runs):
            time_ = [record["seconds"] for record in run["records"]]
            above = [1e3 * (record["energy"] - run["exact"]) for record in run["records"]]
            ax.plot(time_, above, color=f"C{i % 10}", lw=1, label=system if j == 0 else None)
    ax.axhline(1.6, color="0.5", lw=0.8, ls="--", label="chemical accuracy")
    ax.axhline(0, color="0.5", lw=0.8)
    # Linear around zero, where the averages scatter to both sides.
    ax.set_yscale("symlog", linthresh=2, linscale=1.5)
    ax.set_yticks([-1, 0, 1, 2, 10, 100], ["−1", "0", "1", "2", "10", "100"])
    ax.set_ylim(bottom=-2)
    ax.set(xscale="log", xlabel="seconds of training", ylabel="energy above exact, mHa")
    ax.legend(ncols=3, fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
