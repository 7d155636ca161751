"""The time of a step on 1, 2 and 4 processes of this machine, and what to expect of 8 and 64 cards.

    .venv/bin/python benchmarks/scaling.py [--steps 40] [--out benchmarks/results/scaling.md]
    .venv/bin/python benchmarks/scaling.py --project

Each process has one device and is bound to one core (process i to core i mod cores), so that more processes
mean more cores as far as there are any. All of them train the same problem, its rows shared out by `mesh=`.
The projection divides what was measured on one card, and adds what moves between cards.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

CASES = ("perceptron", "pinn", "molecule")
PROCESSES = (1, 2, 4)
RECORD = 10
"""Steps between two readings of the clock."""
CARDS = (1, 8, 64)


class Card(NamedTuple):
    """Milliseconds of a step on one H200 (kernel_h200.md and molecules.md), and the sizes of what moves."""

    shared: float  # divided by the number of cards
    solve: float  # done on each card
    rows: int
    parameters: int
    factors: int  # numbers for each row that pass round the ring: `jac.source(k).factors(0)`, counted
    bytes: int  # of a number
    calls: int  # collective operations: 25 of SPRING, counted, and about two for each move of walkers


MEASURED = {
    "perceptron, n = 1.07e6, k = 2048, float64": Card(2.95 - 1.67, 1.67, 2048, 1_068_481, 6_521, 8, 25),
    "transformer, n = 3.2e5, k = 2048, float64": Card(49.0 - 2.0, 2.0, 2048, 319_776, 178_704, 8, 25),
    "carbon, FermiNet, 2048 walkers, float32": Card(31.6 - 1.7, 1.7, 2048, 647_282, 24_424, 4, 55),
}
LINKS = {"NVLink": 450e9, "InfiniBand": 50e9}
"""Bytes a second into one card: NVLink of the fourth generation within a host, 400 Gbit/s between hosts."""
LATENCY = 30e-6
"""Seconds of a collective operation of NCCL, however little it moves."""


def projected(card: Card, count: int) -> tuple[float, float]:
    """Milliseconds of a step on so many cards, and how many of them are spent on moving bytes."""
    k, size = card.rows, card.bytes
    if count == 1:
        return card.shared + card.solve, 0.0
    ring = k * card.factors * size / 2 + k**2 * size / (2 * count)  # half way round, and blocks sent back
    gathered = k**2 * size  # the kernel on each card, for the solve
    summed = 2 * card.parameters * size  # Jᵀu
    link = LINKS["NVLink" if count <= 8 else "InfiniBand"]
    moving = 1e3 * ((ring + gathered + summed) / link + card.calls * LATENCY)
    return card.shared / count + card.solve + moving, moving


def projection() -> str:
    """The table of the projection."""
    lines = [
        "| model | " + " | ".join(f"{count} card{'s' * (count > 1)}" for count in CARDS) + " |",
        "|---|" + "---|" * len(CARDS),
    ]
    for name, card in MEASURED.items():
        cells = []
        for count in CARDS:
            total, moving = projected(card, count)
            one = projected(card, 1)[0]
            cells.append(
                f"{total:.1f} ms"
                if count == 1
                else f"{total:.1f} ms ({one / total:.1f}×; {moving:.1f} moving)"
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def worker(case: str, steps: int, processes: int, process: int, port: int) -> None:
    """Trains on the devices of all processes; the first one prints milliseconds for each step."""
    os.sched_setaffinity(0, {process % (os.cpu_count() or 1)})
    import jax
    import jax.numpy as jnp

    import snapgrad as sg
    from snapgrad import molecules, pinn

    jax.config.update("jax_enable_x64", True)
    if processes > 1:
        jax.distributed.initialize(f"localhost:{port}", processes, process)
    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    key = jax.random.key(0)
    options = {"steps": steps, "record_every": RECORD, "mesh": mesh}
    if case == "perceptron":
        sizes = (64, 256, 256, 1)
        weights = [
            jax.random.normal(jax.random.fold_in(key, i), pair) / pair[0] ** 0.5
            for i, pair in enumerate(pairwise(sizes))
        ]

        def residual(params: list, row: tuple) -> jax.Array:
            out = row[0]
            for W in params[:-1]:
                out = jnp.tanh(out @ W)
            return (out @ params[-1])[0] - row[1]

        x = jax.random.normal(key, (4096, sizes[0]))
        problem = sg.LeastSquares(residual, (x, jnp.sin(x[:, 0])), weights)
        result = sg.fit(problem, key, batch_size=512, method=sg.Spring(1e-3, 0.9), optimizer=0.1, **options)
    elif case == "pinn":
        result = pinn.solve(pinn.zoo("poisson-5d", hidden=(48, 48), points=(400, 112)), key, **options)
    else:
        method = sg.methods.FisherSpring()
        result = sg.fit(molecules.problem_for("LiH"), key, method=method, **options)
    seconds = result.history["seconds"]
    if process == 0:
        print(json.dumps([1e3 * (b - a) / RECORD for a, b in pairwise(seconds[1:])]))


def measured(case: str, steps: int, processes: int) -> list[float]:
    """Milliseconds for each step, one number for each reading of the clock."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    env = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", NPROC="4", JAX_PLATFORMS="cpu")
    runs = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", case, str(steps), str(processes), str(i), str(port)],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]
    outputs = [run.communicate()[0] for run in runs]
    if any(run.returncode for run in runs):
        raise SystemExit(f"{case} on {processes} processes failed")
    return json.loads(outputs[0].splitlines()[-1])


def main() -> None:
    """The tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--project", action="store_true", help="the projection alone")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker[0], *map(int, args.worker[1:]))
    lines = []
    if not args.project:
        import jax

        lines += [
            f"{os.cpu_count()} cores of {platform.machine()}, JAX {jax.__version__}; medians over records of "
            f"{RECORD} steps, one core for each process as far as there are any.",
            "",
            "| problem | " + " | ".join(f"{count} process{'es' * (count > 1)}" for count in PROCESSES) + " |",
            "|---|" + "---|" * len(PROCESSES),
        ]
        for case in args.cases:
            times = [statistics.median(measured(case, args.steps, count)) for count in PROCESSES]
            cells = [f"{time:.1f} ms ({times[0] / time:.2f}×)" for time in times]
            lines.append(f"| {case} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
        lines.append("")
    text = "\n".join([*lines, projection(), ""])
    print(text)
    if args.out is not None:
        args.out.write_text(text)
    return None


if __name__ == "__main__":
    main()
