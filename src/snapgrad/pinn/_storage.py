"""`solution.save` and `sg.pinn.load`: solutions and marches in files."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._contracts import Result
from ..training import read_checkpoint, read_header, write_checkpoint
from ._domains import SpaceTime
from ._march import Marched, gathered, remade
from ._problem import PINN
from ._solve import Solution
from ._zoo import zoo

KIND, MARCH = "solution of a PINN", "march of a PINN"
"""What the header of such a file says."""


def save_solution(path: str | os.PathLike[str], solution: Solution) -> None:
    """Writes parameters, records and, for a problem of the zoo, which one it is."""
    about = {"kind": KIND, "recipe": solution.problem.recipe, "history": _lists(solution.history)}
    write_checkpoint(Path(path), jax.device_get(_stored(solution)), about)


def save_marched(path: str | os.PathLike[str], marched: Marched) -> None:
    """Writes parameters, records and times of all slabs, and which problem of the zoo it is."""
    error = marched.relative_l2
    about = {
        "kind": MARCH,
        "recipe": None if marched.problem is None else marched.problem.recipe,
        "times": marched.times.tolist(),
        "histories": [_lists(slab.history) for slab in marched.slabs],
        "relative_l2": None if error is None else float(error),
        "suspect": marched.suspect,
    }
    slabs = [_stored(slab) for slab in marched.slabs]
    write_checkpoint(Path(path), jax.device_get(slabs), about)


def load(
    path: str | os.PathLike[str], problem: PINN | Callable[..., PINN] | None = None
) -> Solution | Marched:
    """Reads what `solution.save(path)` or `marched.save(path)` has written, in this process or another one.

    Parameters come back bit for bit. What trained them (`state`) is not stored: to train further, give
    `params=solution.params` to `sg.pinn.solve`.

    **Arguments:**

    - `path`: the file.
    - `problem`: the problem that was solved, made by the same code again; of a march also the function that
      made that of each slab. A problem of `sg.pinn.zoo` need not be given.

    **Returns:** a `sg.pinn.Solution`, or a `sg.pinn.Marched`, whichever was saved. `ValueError` if the file
    is damaged, holds neither, or belongs to a problem with other parameters, times or precision; the
    message names the first difference. `FileNotFoundError` if there is none.

    ```python
    problem = sg.pinn.zoo("poisson-1d", hidden=(8,), points=(30, 2))
    sg.pinn.solve(problem, jax.random.key(0), steps=2).save("poisson.snap")
    solution = sg.pinn.load("poisson.snap")
    solution(jnp.array([0.5])), solution.history["loss"][-1]
    ```
    """
    path = Path(path)
    about = read_header(path)["about"]
    kind = about.get("kind")
    if kind not in (KIND, MARCH):
        raise ValueError(f"{path} holds no solution: write one with solution.save(path).")
    if problem is None:
        if about["recipe"] is None:
            raise ValueError(
                f"`problem` must be given for {path}: only problems of sg.pinn.zoo are stored by name."
            )
        name, hidden, points = about["recipe"]
        problem = zoo(name, hidden=hidden, points=points)
    if kind == MARCH:
        return _load_marched(path, about, problem)
    if not isinstance(problem, PINN):
        raise TypeError(f"`problem` must be a sg.pinn.PINN, got {type(problem).__name__}.")
    stored, _ = read_checkpoint(path, _stored(_unsolved(problem)))
    return _solution(problem, stored, about["history"])


def _load_marched(path: Path, about: dict[str, Any], problem: Any) -> Marched:
    """The slabs in order, since each begins with what the one before says."""
    times, count = about["times"], len(about["histories"])
    whole = isinstance(problem, PINN)
    if whole:
        times = _reaching(path, times, problem)
    like: list[dict[str, Any]] = []

    def unsolved(i: int, here: PINN) -> None:
        del i
        like.append(_stored(_unsolved(here)))  # parameters of all slabs have one shape

    remade(problem, times, unsolved)
    stored, _ = read_checkpoint(path, like * count)

    def solved(i: int, here: PINN) -> Solution | None:
        return None if i == count else _solution(here, stored[i], about["histories"][i])

    slabs = tuple(remade(problem, times, solved))
    marched = gathered(slabs, about["times"], problem if whole else None, about["suspect"])
    error = about["relative_l2"]
    return replace(marched, relative_l2=None if error is None else jnp.asarray(error))


def _reaching(path: Path, times: list[float], problem: PINN) -> list[float]:
    """The times of a march through a problem, with the end of one that was stopped before it."""
    domains = [block.domain for block in problem.blocks]
    timed = [domain for domain in domains if isinstance(domain, SpaceTime)]
    start = min((float(domain.start) for domain in timed), default=np.inf)
    end = max((float(domain.end) for domain in timed), default=-np.inf)
    if start != times[0] or end < times[-1]:
        raise ValueError(
            f"{path} does not fit `problem`: it holds a march from t = {times[0]:.6g} to {times[-1]:.6g}, "
            f"and its domains ({', '.join(block.name for block in problem.blocks)}) do not reach over that."
        )
    return times if times[-1] == end else [*times, end]


def _unsolved(problem: PINN) -> Solution:
    """A solution of the right shapes."""
    params = jax.tree.map(_zeros, eqx.filter_eval_shape(problem.init, jax.random.key(0)))
    zero = jnp.zeros((), int)
    return Solution(params, {}, zero, zero, None, problem)


def _solution(problem: PINN, stored: dict[str, Any], history: dict[str, list[float]]) -> Solution:
    records = {name: np.asarray(values) for name, values in history.items()}
    return Solution(stored["params"], records, stored["code"], stored["rejected"], None, problem)


def _lists(history: dict[str, Any]) -> dict[str, list[float]]:
    return {name: np.asarray(values).tolist() for name, values in history.items()}


def _stored(solution: Result) -> dict[str, Any]:
    return {
        "params": solution.params,
        "code": jnp.asarray(solution.code, int),
        "rejected": jnp.asarray(solution.rejected, int),
    }


def _zeros(leaf: Any) -> Any:
    return jnp.asarray(np.zeros(leaf.shape, leaf.dtype)) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
