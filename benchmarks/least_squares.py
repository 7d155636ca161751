"""Small nonlinear least squares without settings, beside SciPy's `least_squares` in the same run.

    .venv/bin/python benchmarks/least_squares.py | grep -v 'On entry' > benchmarks/results/least_squares.md

Two tables. The problems of Moré, Garbow and Hillstrom, from their standard starts and from ten times these:
solved are those that end at a minimum that the collection lists. Curve fits to noisy data from random poor
starts: solved are those that end at the best minimum that any method has found. Both sides have derivatives
by JAX and 2,000 evaluations of the residual, of which a step of ours takes three. (LAPACK complains of NaN
on standard output in some of SciPy's runs; these count as not solved.)
"""

import os
import warnings

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("NPROC", "4")

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np
import scipy
import scipy.optimize
from _mgh import PROBLEMS

import snapgrad as sg

EVALUATIONS = 2000
STEPS = EVALUATIONS // 3
PEERS = {
    "lm": {"method": "lm", "x_scale": "jac"},
    "trf": {"method": "trf", "x_scale": 1.0},
    "trf, scaled": {"method": "trf", "x_scale": "jac"},
    "dogbox": {"method": "dogbox", "x_scale": 1.0},
    "dogbox, scaled": {"method": "dogbox", "x_scale": "jac"},
}
T = np.linspace(0, 4, 60)
CURVES = {
    "decay": (lambda p: p[0] * jnp.exp(-p[1] * T) + p[2], [2.5, 1.3, 0.5]),
    "logistic": (lambda p: p[0] / (1 + jnp.exp(-p[1] * (T - p[2]))), [3.0, 4.0, 1.1]),
    "Gaussian peak": (
        lambda p: p[0] * jnp.exp(-((T - p[1]) ** 2) / (2 * p[2] ** 2)) + p[3],
        [2.0, 1.8, 0.4, 0.3],
    ),
    "two decays": (lambda p: p[0] * jnp.exp(-p[1] * T) + p[2] * jnp.exp(-p[3] * T), [2.0, 0.5, 3.0, 3.0]),
    "power law": (lambda p: p[0] * (T + 1e-3) ** p[1] + p[2], [1.5, 0.7, 0.2]),
    "saturation": (
        lambda p: p[0] * T**2 / (p[1] ** 2 + T**2) + p[2] * jnp.exp(-p[3] * T),
        [2.0, 1.5, 1.0, 0.8],
    ),
    "Lorentz peak": (
        lambda p: p[0] / (1 + ((T - p[1]) / p[2]) ** 2) + p[3] + p[4] * T,
        [2.0, 2.2, 0.3, 0.5, 0.1],
    ),
}
STARTS = 64


def ours(residual, start):
    """‖r‖² at the end, how many steps it took and why it ended, by the defaults of a user."""
    result = sg.least_squares(lambda p, row: residual(p), jnp.asarray(start), jnp.zeros(1), steps=STEPS)
    return 2 * float(result.history["loss"][-1]), int(result.history["step"][-1]), result.reason


def theirs(residual, jacobian, start, options):
    """‖r‖² at the end and the number of residuals; NaN where SciPy raises."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = scipy.optimize.least_squares(
                lambda x: np.asarray(residual(x)),
                start,
                lambda x: np.asarray(jacobian(x)),
                max_nfev=EVALUATIONS,
                ftol=1e-15,
                xtol=1e-15,
                gtol=1e-15,
                **options,
            )
    except (ValueError, np.linalg.LinAlgError):
        return np.nan, 0
    return 2 * found.cost, found.nfev


def collection():
    print("| problem | n, m | start | sg.least_squares", *PEERS, sep=" | ", end=" |\n")
    print("|" + " --- |" * (4 + len(PEERS)))
    solved, counts = {name: 0 for name in ("ours", *PEERS)}, []
    for problem in PROBLEMS:
        residual, jacobian = jax.jit(problem.residual), jax.jit(jax.jacfwd(problem.residual))
        for factor in (1.0, 10.0):
            start = problem.begin(factor)
            value, steps, reason = ours(problem.residual, start)
            solved["ours"] += problem.solved(value)
            counts.append(steps)
            size = f"{start.size}, {residual(start).size}"
            cells = [
                problem.name,
                size,
                f"×{factor:g}",
                f"{_mark(problem, value)} {value:.6g}, {steps}, {reason}",
            ]
            for name, options in PEERS.items():
                value, evaluations = theirs(residual, jacobian, start, options)
                solved[name] += problem.solved(value)
                cells.append(f"{_mark(problem, value)} {value:.6g}, {evaluations}")
            print("|", " | ".join(cells), "|", flush=True)
    cells = [f"{count} of {2 * len(PROBLEMS)}" for count in solved.values()]
    print(
        f"| **solved** | | | {cells[0]}, median {np.median(counts):g} steps",
        *cells[1:],
        sep=" | ",
        end=" |\n",
    )


def _mark(problem, value):
    return "✓" if problem.solved(value) else "✗"


def curve_fits(model, truth, rng):
    """From how many random starts each method ends at the best minimum that any of them finds."""
    truth = np.asarray(truth)
    y = np.asarray(model(jnp.asarray(truth))) + 0.01 * rng.normal(size=T.size)
    signs = np.where(rng.random((STARTS, truth.size)) < 0.15, -1, 1)
    starts = truth * np.exp(1.5 * rng.normal(size=(STARTS, truth.size))) * signs

    def residual(p):
        return model(p) - y

    problem = sg.LeastSquares(lambda p, row: residual(p), jnp.zeros(1), jnp.asarray(truth))
    options = {"method": sg.Auto(), "sampler": sg.sampling.AllRows(1), "record_every": STEPS}

    def end(start):
        result = sg.run(problem, jax.random.key(0), params=start, steps=STEPS, **options)
        return 2 * result.history["loss"][-1]

    found = [np.asarray(jax.jit(jax.vmap(end))(jnp.asarray(starts)))]
    values, jacobian = jax.jit(residual), jax.jit(jax.jacfwd(residual))
    for peer in PEERS.values():
        found.append(np.array([theirs(values, jacobian, start, peer)[0] for start in starts]))
    best = np.nanmin(np.stack(found))
    return [int(np.sum(each <= best * (1 + 1e-6))) for each in found]


def curves():
    print("| curve |", "sg.Auto |", *(f"{name} |" for name in PEERS))
    print("|" + " --- |" * (2 + len(PEERS)))
    rng, totals = np.random.default_rng(0), np.zeros(1 + len(PEERS), int)
    for name, (model, truth) in CURVES.items():
        counts = curve_fits(model, truth, rng)
        totals += counts
        print(f"| {name} |", *(f"{count} |" for count in counts), flush=True)
    print(f"| **of {STARTS * len(CURVES)}** |", *(f"{count} |" for count in totals))


if __name__ == "__main__":
    print("# Small nonlinear least squares\n")
    print(__doc__.split("\n\n", 1)[1].strip())
    print(f"\nSciPy {scipy.__version__}, JAX {jax.__version__}, float64.")
    print("\n## The problems of Moré, Garbow and Hillstrom\n")
    print("In each cell ✓ or ✗, ‖r‖² at the end and what it took: steps of ours, residuals of SciPy's.\n")
    collection()
    print(f"\n## Curve fits from {STARTS} random starts each\n")
    curves()
