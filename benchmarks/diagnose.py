"""How long a diagnosis of a model takes, compilation included, for kinds of models that people bring.

    .venv/bin/python benchmarks/diagnose.py | tee benchmarks/results/diagnose.md

Each model is to become another one of its kind from nearby, as in the last phase of training. A diagnosis has
20 seconds to compute; what it takes beyond is the compilation and timing of the model itself.
"""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("NPROC", "4")

import platform
import time

import jax

jax.config.update("jax_enable_x64", True)

from _models import MODELS

import snapgrad as sg

ROWS = 2000
CASES = {
    "perceptron": lambda dtype: MODELS["mlp"]([5, 312, 312, 1], ROWS, dtype),
    "transformer": lambda dtype: MODELS["vit"](48, 3, ROWS, dtype, heads=6),
    "convolutions": lambda dtype: MODELS["cnn"](32, 4, ROWS, dtype),
}
HEAD = """# Time of a diagnosis

`benchmarks/diagnose.py` on {cores} cores ({machine}), JAX {version}: `sg.diagnose(problem, key)`, {rows} rows
of data, once each, compilation included.

| model | parameters | precision | seconds | recommended |
|---|---|---|---|---|"""


def problem(model):
    """Least squares towards the same model with slightly other weights."""
    goal = jax.tree.map(
        lambda leaf: leaf + 1e-3 * jax.random.normal(jax.random.key(1), leaf.shape, leaf.dtype), model.params
    )
    targets = jax.lax.map(lambda x: model.fn(goal, x), model.points, batch_size=100)
    return sg.LeastSquares(lambda p, row: model.fn(p, row[0]) - row[1], (model.points, targets), model.params)


def main():
    about = {"cores": os.cpu_count(), "machine": platform.machine(), "version": jax.__version__}
    print(HEAD.format(rows=ROWS, **about))
    for name, make in CASES.items():
        for dtype in ("float64", "float32"):
            model = make(dtype)
            given = problem(model)
            start = time.perf_counter()
            report = sg.diagnose(given, jax.random.key(0))
            spent = time.perf_counter() - start
            what = f"{report.name}, k = {report.sample_size}"
            print(f"| {name} | {model.size:,} | {dtype} | {spent:.0f} | {what} |", flush=True)


if __name__ == "__main__":
    main()
