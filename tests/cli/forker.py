"""A process that has imported the library and forks for each run: a command that is stopped costs no start.

Reads lines of JSON: a folder and the arguments of a command; writes the id of the process when it begins, and
its exit code when it ends. Sizes are small, and a checkpoint is due at every record.
"""

import functools
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import matplotlib.figure  # noqa: F401
import rich.progress  # noqa: F401

import snapgrad as sg
from snapgrad import cli
from snapgrad.molecules import _solve
from snapgrad.molecules import study as molecule
from snapgrad.pinn import study as pinn
from snapgrad.training import _store


def small() -> None:
    """Sizes at which a run takes about a second."""
    import jax.numpy as jnp

    hydrogen = functools.partial(
        sg.molecules.VMC,
        lambda p, x: -p * jnp.sum(jnp.linalg.norm(x, axis=-1)),
        "H",
        walkers=16,
    )
    pinn.pinn.zoo = functools.partial(sg.pinn.zoo, hidden=(8,), points=(30, 2))
    pinn.pinn.zoo = lambda name, real=pinn.pinn.zoo, **sizes: real(name)
    molecule.molecules.problem_for = lambda *args: hydrogen(params=jnp.array(0.8))
    _solve.problem_for = molecule.molecules.problem_for
    _solve.EVALUATION_STEPS, molecule.PICTURE_STEPS = 20, 5
    _store.CHECKPOINT_SECONDS = 0.0


def quantum() -> None:
    from snapgrad.netket import _ground_state, study

    _ground_state.SAVE_EVERY = 0.0
    study.DEFAULTS["tfim"] = study.Training(4, alpha=1, samples=16, chains=8, steps=40, final_samples=64)


def fit() -> None:
    """`sg.fit` as a script of a user's own calls it."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    x = jnp.linspace(-1, 1, 24)
    problem = sg.LeastSquares(
        lambda p, row: p["v"] @ jnp.tanh(p["w"] * row[0]) - row[1],
        (x, jnp.sin(3 * x)),
        {"v": jnp.ones(4), "w": jnp.arange(4.0)},
    )
    Path("begun").touch()  # what comes before is not ours
    result = sg.fit(problem, jax.random.key(0), steps=300, batch_size=8, record_every=10, checkpoint="out")
    sg.save("out/result.snap", result.params)


def child(folder: str, args: list[str]) -> None:
    """Never returns."""
    code = 1
    try:
        os.chdir(folder)
        with open("said", "w") as said, open(os.devnull, "w") as nothing:
            os.dup2(said.fileno(), 2)
            os.dup2(nothing.fileno(), 1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["snapgrad", *args]
        small()
        try:
            if args == ["fit"]:
                fit()
            else:
                if args[0] == "quantum":
                    quantum()
                cli._run = lambda args, run=cli._run: (Path("begun").touch(), run(args))[1]
                cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except KeyboardInterrupt:  # of a script; a command has its own words for it
            code = 130
        except BaseException:
            traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":  # workers read this file too
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            child(*json.loads(line))
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
