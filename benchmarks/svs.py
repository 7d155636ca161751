"""Squared volume sampling against DPPy's exact k-DPP sampler, its eigendecomposition cached, in one process.

    .venv/bin/python benchmarks/svs.py [--repeats 7] [--out benchmarks/results/svs.md]

m = 1000, n = 100, k = 10, λ = 0 and 1e-3, on a Gaussian matrix and one with singular values 1/i². Everything
runs on one core, and CPU time is what is counted, so that other work on the machine does not matter much.
Needs `pip install dppy`.
"""

import os
import sys

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"

import argparse
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import snapgrad as sg

try:
    from dppy.finite_dpps import FiniteDPP
except ImportError:
    sys.exit(
        "This benchmark compares with DPPy, which is not installed: `.venv/bin/python -m pip install dppy`."
    )

M, N, K = 1000, 100, 10
BATCHES = (1, 64, 256, 4096)


def cpu_seconds(function, *args) -> float:
    start = time.process_time()
    jax.block_until_ready(function(*args))
    return time.process_time() - start


def dppy_sampler(J: np.ndarray, lam: float) -> FiniteDPP:
    """The k-DPP with kernel JJᵀ + λI: the n eigenvectors that matter at λ = 0, all m of them at λ > 0."""
    U, s, _ = np.linalg.svd(J, full_matrices=lam > 0)
    q = np.zeros(U.shape[1])
    q[: len(s)] = s**2
    dpp = FiniteDPP("likelihood", L_eig_dec=(q + lam, U))
    dpp.sample_exact_k_dpp(K, random_state=0)  # fills its table of symmetric polynomials
    return dpp


def compare(name: str, J: np.ndarray, lam: float, repeats: int) -> tuple[str, str]:
    dpp = dppy_sampler(J, lam)
    rng = np.random.RandomState(1)
    sampler = sg.sampling.SquaredVolume.from_matrix(J, K, lam)
    compiled, compiling = {}, {}
    for batch in BATCHES:
        shape = () if batch == 1 else (batch,)
        program = jax.jit(lambda sampler, key, shape=shape: sampler.sample(key, shape))
        start = time.process_time()
        compiled[batch] = program.lower(sampler, jax.random.key(0)).compile()
        compiling[batch] = time.process_time() - start
        jax.block_until_ready(compiled[batch](sampler, jax.random.key(0)))

    def theirs():
        for _ in range(50):
            dpp.sample_exact_k_dpp(K, random_state=rng)
        dpp.flush_samples()

    times = {batch: [] for batch in (*BATCHES, "dppy")}
    for repeat in range(repeats):  # alternating, so that both meet the same load
        times["dppy"].append(cpu_seconds(theirs) / 50)
        for batch in BATCHES:
            times[batch].append(cpu_seconds(compiled[batch], sampler, jax.random.key(repeat)) / batch)
    micro = {which: 1e6 * statistics.median(values) for which, values in times.items()}
    gains = [micro["dppy"] / micro[batch] for batch in BATCHES]
    cells = [f"{micro[batch]:.0f} ({gain:.0f}×)" for batch, gain in zip(BATCHES, gains, strict=True)]
    row = f"| {name} | {lam:g} | {micro['dppy']:.0f} | {' | '.join(cells)} | {compiling[256]:.1f} |"
    return row, f"{name}, λ = {lam:g}: {min(gains[1:]):.0f}×"


def large(repeats: int) -> list[str]:
    """What DPPy cannot do: at λ > 0 it needs all m eigenvectors, 80 GB at m = 1e5."""
    J = np.random.default_rng(2).normal(size=(100_000, N)) / np.sqrt(100_000)
    prepare = [cpu_seconds(lambda: sg.sampling.SquaredVolume.from_matrix(J, K, 1e-3).cdf) for _ in range(2)][
        1
    ]
    sampler = sg.sampling.SquaredVolume.from_matrix(J, K, 1e-3)
    sample = jax.jit(lambda key: sampler.sample(key, (256,)))
    cpu_seconds(sample, jax.random.key(0))
    micro = 1e6 / 256 * statistics.median(cpu_seconds(sample, jax.random.key(i)) for i in range(repeats))
    q = 1 / jnp.arange(1.0, 100_001.0) ** 2
    cpu_seconds(sg.linalg.esp_ratios, q, 1000)
    ratios = statistics.median(cpu_seconds(sg.linalg.esp_ratios, q, 1000) for _ in range(repeats))
    return [
        "| m = 1e5 | |",
        "|---|---|",
        f"| `SquaredVolume`, n = {N}, k = {K}, λ = 1e-3: preparing | {prepare:.2f} s |",
        f"| the same: one sample, in batches of 256 | {micro:.0f} µs |",
        "| DPPy, the same | needs a 1e5 × 1e5 eigendecomposition, 80 GB |",
        f"| `esp_ratios`, k = 1000, all 1e5 ratios | {ratios:.2f} s |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)

    key = jax.random.key(0)
    matrices = {
        "Gaussian": sg.problems.gaussian_matrix(key, M, N),
        "1/i²": sg.problems.spectrum_matrix(key, sg.problems.singular_values("power:2", N), M),
    }
    rows, summary = [], []
    for name, J in matrices.items():
        for lam in (0.0, 1e-3):
            row, gain = compare(name, np.asarray(J), lam, args.repeats)
            rows.append(row)
            summary.append(gain)
    lines = [
        f"CPU microseconds a sample on one core, m = {M}, n = {N}, k = {K}; medians of {args.repeats}.",
        "In brackets: how many times more samples a second than DPPy with its eigendecomposition cached.",
        "",
        "| matrix | λ | DPPy | one at a time | batches of 64 | of 256 | of 4096 | compiling once, s |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"**At batches of 64 or more, at least** {'; '.join(summary)}.",
        "",
        *large(args.repeats),
        "",
        f"JAX {jax.__version__}, DPPy {version('dppy')}, NumPy {np.__version__}, {platform.machine()}.",
        "Made by `python benchmarks/svs.py --out benchmarks/results/svs.md`.",
    ]
    print("\n".join(lines))
    if args.out:
        args.out.parent.mkdir(exist_ok=True)
        args.out.write_text("# Exact squared volume sampling\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
