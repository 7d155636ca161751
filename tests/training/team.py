"""Three kinds of training on a mesh, for `test_mesh.py`: `team.py OUT CASES [PROCESSES PROCESS PORT]`."""

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import conftest  # noqa: F401
import snapgrad as sg
from snapgrad import molecules, pinn

STEPS = 20
SEED = 0


def fit(**options):
    def residual(p, row):
        return jnp.sum(p["a"] * jnp.sin(p["b"] * row[0])) - row[1]

    x = jnp.linspace(-3, 3, 43)
    start = {"a": jnp.array([1.2, -0.5]), "b": jnp.array([1.1, 2.9])}
    problem = sg.LeastSquares(residual, (x, jnp.sin(x) - 0.4 * jnp.sin(3 * x)), start)
    return sg.fit(problem, jax.random.key(SEED), **options)


def batches(**options):
    return fit(batch_size=9, method=sg.Spring(1e-2, 0.5), optimizer=0.3, **options)


def conjugate(**options):
    return fit(batch_size=9, method=sg.SNG(1e-2, solver="cg"), optimizer=0.3, **options)


def equation(**options):
    problem = pinn.zoo("poisson-1d", hidden=(5,), points=(21, 2))
    return pinn.solve(problem, jax.random.key(SEED), **options)


def helium(**options):
    def log_psi(p, x):
        r = jnp.linalg.norm(x, axis=-1)
        apart = jnp.linalg.norm(x[0] - x[1])
        return -jnp.sum(p["zeta"] * r) + 0.5 * apart / (1 + apart) + jnp.sum(jnp.tanh(p["w"] * jnp.sum(r)))

    params = {"zeta": jnp.array([1.8, 1.9]), "w": jnp.array([0.1, 0.2])}
    problem = molecules.VMC(log_psi, "He", params=params, walkers=30, moves=3)
    return sg.fit(problem, jax.random.key(SEED), method=sg.methods.FisherSpring(), **options)


CASES = {"fit": fit, "batches": batches, "conjugate": conjugate, "equation": equation, "helium": helium}


def trained(names, **options):
    """The parameters of each case, in a row."""
    options = {"steps": STEPS, "record_every": 10} | options
    return {name: np.asarray(ravel_pytree(CASES[name](**options).params)[0]) for name in names}


def main(out, names, processes=1, process=0, port=0):
    folder = Path(out)
    if processes > 1:
        jax.distributed.initialize(f"localhost:{port}", processes, process, initialization_timeout=300)
    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    found = trained(names.split(","), mesh=mesh)
    if processes > 1:  # half of the way, for one process to go on from, and for all of them
        fit(steps=STEPS // 2, record_every=STEPS // 2, checkpoint=folder / "half", mesh=mesh)
        if process == 0:  # the others have no need of a folder
            shutil.copytree(folder / "half", folder / "whole")
        again = trained(["fit"], checkpoint=folder / "whole", record_every=STEPS // 2, mesh=mesh)
        found["resumed"] = again["fit"]
    np.savez(folder / f"{processes}-{process}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
