"""`solution.save` and `sg.pinn.load`: solutions in files."""

import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._contracts import Result
from ..training import read_checkpoint, read_header, write_checkpoint
from ._problem import PINN
from ._solve import Solution
from ._zoo import zoo

KIND = "solution of a PINN"
"""What the header of such a file says."""


def save_solution(path: str | os.PathLike[str], solution: Solution) -> None:
    """Writes parameters, records and, for a problem of the zoo, which one it is."""
    about = {
        "kind": KIND,
        "recipe": solution.problem.recipe,
        "history": {name: np.asarray(values).tolist() for name, values in solution.history.items()},
    }
    write_checkpoint(Path(path), jax.device_get(_stored(solution)), about)


def load(path: str | os.PathLike[str], problem: PINN | None = None) -> Solution:
    """Reads a solution that `solution.save(path)` has written, in this process or another one.

    Parameters come back bit for bit. What trained them (`state`) is not stored: to train further, give
    `params=solution.params` to `sg.pinn.solve`.

    **Arguments:**

    - `path`: the file.
    - `problem`: the problem that was solved, made by the same code again. A problem of `sg.pinn.zoo` need not
      be given.

    **Returns:** a `sg.pinn.Solution`. `ValueError` if the file is damaged, holds no solution, or belongs to
    a problem with other parameters or another precision; the message names the first difference.
    `FileNotFoundError` if there is none.

    ```python
    problem = sg.pinn.zoo("poisson-1d", hidden=(8,), points=(30, 2))
    sg.pinn.solve(problem, jax.random.key(0), steps=2).save("poisson.snap")
    solution = sg.pinn.load("poisson.snap")
    solution(jnp.array([0.5])), solution.history["loss"][-1]
    ```
    """
    about = read_header(Path(path))["about"]
    if about.get("kind") != KIND:
        raise ValueError(f"{path} holds no solution: write one with solution.save(path).")
    if problem is None:
        if about["recipe"] is None:
            raise ValueError(
                f"`problem` must be given for {path}: only problems of sg.pinn.zoo are stored by name."
            )
        name, hidden, points = about["recipe"]
        problem = zoo(name, hidden=hidden, points=points)
    if not isinstance(problem, PINN):
        raise TypeError(f"`problem` must be a sg.pinn.PINN, got {type(problem).__name__}.")
    shapes = eqx.filter_eval_shape(problem.init, jax.random.key(0))
    params = jax.tree.map(_zeros, shapes)
    zero = jnp.zeros((), int)
    like = Solution(params, {}, zero, zero, None, problem)
    stored, _ = read_checkpoint(Path(path), _stored(like))
    history = {name: np.asarray(values) for name, values in about["history"].items()}
    return Solution(stored["params"], history, stored["code"], stored["rejected"], None, problem)


def _stored(solution: Result) -> dict[str, Any]:
    return {
        "params": solution.params,
        "code": jnp.asarray(solution.code, int),
        "rejected": jnp.asarray(solution.rejected, int),
    }


def _zeros(leaf: Any) -> Any:
    return jnp.asarray(np.zeros(leaf.shape, leaf.dtype)) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
