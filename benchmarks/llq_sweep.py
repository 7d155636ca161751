"""A sweep over damping and seeds: a plain NumPy loop against one vmapped `sg.run`, in one process.

    .venv/bin/python benchmarks/llq_sweep.py [--repeats 5] [--out benchmarks/results/llq_sweep.md]

Gaussian linear least-quadratics, m = 1000, n = 100, k = 10, 1000 steps, 11 values of λ × 5 seeds. Both sides
form HJ once and touch only the sampled rows at each step.
"""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ["NPROC"] = str(os.cpu_count())  # nothing here runs side by side: a thread a core

import argparse
import platform
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import snapgrad as sg

M, N, K, STEPS, SEEDS = 1000, 100, 10, 1000, 5
LAMBDAS = 10.0 ** np.arange(-6, 5)


def numpy_loop(problems: list[sg.problems.LeastQuadratics]) -> np.ndarray:
    """SNG with η = 1, written as one would by hand."""
    errors = np.zeros((len(LAMBDAS), SEEDS))
    for seed, problem in enumerate(problems):
        J, HJ = np.asarray(problem.jacobian), np.asarray(problem.hessian_jacobian)
        b, solution = np.asarray(problem.rhs), np.asarray(problem.solution)
        for i, lam in enumerate(LAMBDAS):
            rng = np.random.default_rng(seed)
            theta, ridge = np.zeros(N), lam * np.eye(K)
            for _ in range(STEPS):
                rows = rng.choice(M, K, replace=False)
                J_S = J[rows]
                r_S = HJ[rows] @ theta - b[rows]
                theta -= J_S.T @ np.linalg.solve(J_S @ J_S.T + ridge, r_S)
            errors[i, seed] = np.linalg.norm(theta - solution) / np.linalg.norm(solution)
    return errors


def make_sweep():
    """The same as one compiled program; λ is the inner axis, so that its values share each seed's batches."""
    sampler = sg.sampling.Uniform(M, K)

    def one(lam, problem, key):
        result = sg.run(problem, key, method=sg.SNG(lam), sampler=sampler, steps=STEPS, record_every=STEPS)
        return result.history["relative_error"][-1]

    over_dampings = jax.vmap(one, (0, None, None), out_axes=0)
    return jax.jit(jax.vmap(over_dampings, (None, 0, 0), out_axes=1))


def timed(function, *args):
    start = time.perf_counter()
    result = jax.block_until_ready(function(*args))
    return time.perf_counter() - start, np.asarray(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)

    keys = jax.random.split(jax.random.key(0), SEEDS)
    problems = [sg.problems.gaussian_llq(key, M, N) for key in keys]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)
    start = time.perf_counter()
    sweep = make_sweep().lower(jnp.asarray(LAMBDAS), stacked, keys).compile()
    compile_seconds = time.perf_counter() - start

    ours, theirs = [], []
    for _ in range(args.repeats):  # alternating, so that both meet the same load
        seconds, loop_errors = timed(numpy_loop, problems)
        theirs.append(seconds)
        for _ in range(3):
            seconds, run_errors = timed(sweep, jnp.asarray(LAMBDAS), stacked, keys)
            ours.append(seconds)

    gap = np.abs(np.log10(run_errors).mean(1) - np.log10(loop_errors).mean(1)).max()
    ratio = statistics.median(theirs) / statistics.median(ours)
    lines = [
        "| | seconds (median) | range |",
        "|---|---|---|",
        f"| NumPy loop | {statistics.median(theirs):.2f} | {min(theirs):.2f}–{max(theirs):.2f} |",
        f"| `sg.run` under `vmap` | {statistics.median(ours):.3f} | {min(ours):.3f}–{max(ours):.3f} |",
        f"| compiling it, once | {compile_seconds:.2f} | |",
        "",
        f"**{ratio:.0f}× faster.** Largest gap between the mean log₁₀ errors of the two over λ (their random",
        f"batches differ): {gap:.2f} decades.",
        "",
        f"JAX {jax.__version__}, NumPy {np.__version__}, {os.cpu_count()} cores, {platform.machine()}.",
        "Made by `python benchmarks/llq_sweep.py --out benchmarks/results/llq_sweep.md`.",
    ]
    print("\n".join(lines))
    if args.out:
        args.out.write_text("# A sweep of SNG over λ and seeds\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
