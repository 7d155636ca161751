"""`sg.pinn.march`: a long time in slabs, each of which starts where the one before has ended."""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from .. import report
from .._checks import Given, positive_int
from .._contracts import Result
from ..training import DEFAULT_STEPS, fit, with_options_of
from ._domains import SpaceTime
from ._evolving import Evolving
from ._pictures import drawn, everywhere, pictures
from ._problem import PINN
from ._slabs import into_slabs
from ._solve import Solution, solve

PATIENCE = 250
"""A slab ends once its loss has not been improved for so many steps."""
FIRST_SHARE = 3.0
"""The first slab, which learns from nothing and whose errors all others inherit, may take so many shares of
the time."""
LOST = 1e3
"""A slab may end with a loss this many times that of all slabs before ..."""
UNTRAINED = 1e-3
"""... while it is below this part of what weights were at that knew nothing of their slab."""


class Marched(Result):
    """What `sg.pinn.march` returns: a function of all times, made of one solution for each slab.

    - `marched(x)`: the solution at a point `[d]`, or at each point of an array `[..., d]`. Where two slabs
      meet, the later one speaks.
    - `slabs`, `times`: the `sg.pinn.Solution` of each slab, and the times between which they hold.
    - `relative_l2`: the error over all times, where the solution is known; else None.
    - `suspect`: the time from which on the solution is not to be trusted, because a slab has ended with a
      loss far above that of the slabs before; None if there is none.
    - `problem`: the `sg.pinn.PINN` that was solved; None where a function made that of each slab.
    - `marched.plot()`, `marched.save(path)`: as of a `sg.pinn.Solution`, over all slabs.
    - `history`: the records of all slabs one after the other, with `step` and `seconds` counted from the
      first one and the number of the `slab`. Errors and losses in it are those of the present slab.
    - `params`, `reason`, `rejected`, `state`: as in every `sg.Result`, one for each slab.

    ```python
    problem = sg.pinn.zoo("heat-1d", hidden=(8,), points=(40, 10, 10))
    marched = sg.pinn.march(problem, jax.random.key(0), slabs=2, steps=4)
    marched(jnp.array([[0.1, 0.5], [0.9, 0.5]])).shape            # (2,)
    marched.times, marched.relative_l2
    ```
    """

    slabs: tuple[Solution, ...]
    times: Float[np.ndarray, " slabs_and_one"] = eqx.field(converter=np.asarray)
    relative_l2: Scalar | None
    problem: PINN | None = None
    suspect: float | None = eqx.field(static=True, default=None)

    def __call__(self, x: Any) -> Array:
        """The solution at x."""
        x = jnp.asarray(x)
        if self._all_in_one:
            return self.slabs[-1](x)
        found = self.slabs[0](x)
        for start, slab in zip(self.times[1:-1], self.slabs[1:], strict=True):
            mine = x[..., 0] >= start
            # Elsewhere a slab is asked about its own start: what it says there must not spoil derivatives.
            safe = jnp.concatenate([jnp.where(mine, x[..., 0], start)[..., None], x[..., 1:]], -1)
            value = slab(safe)
            found = jnp.where(mine.reshape(mine.shape + (1,) * (value.ndim - mine.ndim)), value, found)
        return found

    @property
    def _all_in_one(self) -> bool:
        """Whether the last slab keeps the networks of all others."""
        network = self.slabs[-1].problem.network
        return isinstance(network, Evolving) and network.earlier is not None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all slabs to a file, from which `sg.pinn.load` reads them in any process.

        The file appears whole or not at all. It holds parameters, records and times; for a problem of
        `sg.pinn.zoo` its name and sizes, for others not their code.
        """
        from ._storage import save_marched  # which needs this file

        save_marched(path, self)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """A picture of the solution over all times and the first coordinate, and of its error where known.

        **Arguments:** `path` ends with `.svg`, `.png` or `.pdf`; the picture is also stored there.

        **Returns:** a figure of matplotlib.
        """
        return drawn(self.pictures, path)

    def pictures(self) -> list[report.Draw]:
        """Returns the panels of `plot`, functions that draw on axes of matplotlib."""
        first = self.slabs[0].problem
        space = cast(SpaceTime, first.blocks[0].domain).space
        return pictures(first, self._slab_by_slab, SpaceTime(space, self.times[0], self.times[-1]))

    def _slab_by_slab(self, x: Float[Array, "N d"]) -> np.ndarray:
        """The solution at many points, each asked of its slab alone: one program, however many slabs."""
        if self._all_in_one:
            return np.asarray(everywhere(self.slabs[-1], x))
        owners = np.searchsorted(self.times[1:-1], np.asarray(x[:, 0]), side="right")
        most, found = np.bincount(owners).max(), None
        for i, slab in enumerate(self.slabs):
            mine = np.flatnonzero(owners == i)
            if mine.size:
                values = np.asarray(everywhere(slab, x[np.resize(mine, most)]))
                found = np.zeros((len(x), *values.shape[1:])) if found is None else found
                found[mine] = values[: mine.size]
        return np.asarray(found)


@with_options_of(fit)
def march(
    problem: Given[PINN | Callable[..., PINN], ""],
    key: PRNGKeyArray,
    *,
    slabs: Given[int | Sequence[float], ""] = 8,
    **options: Any,
) -> Marched:
    """Solves a time-dependent problem slab after slab; the end of one is the start of the next.

    A network sees a short time at once, in which the solution changes little, and starts from the weights of
    the slab before: chaotic, steep and long-lasting solutions that one network for all times does not find
    come out accurately. Every slab has all the points of the blocks.

    **Arguments:**

    - `problem`: a `sg.pinn.PINN` whose blocks are on `sg.pinn.SpaceTime` domains. In later slabs a block on
      `initial()` with residual r(u, x) asks for r(u, x) = r(v, x) of the slab before, v, so that initial
      values and velocities go on; a `sg.pinn.Evolving` needs no such block. Or, for other networks that
      hold their initial condition, a function `make(start, end, before)` that returns the PINN of one slab;
      `before` is the solution of the slab before, a function of a point, and None at first. Its networks
      must have parameters of one shape.
    - `key`: the randomness of initial weights and points.
    - `slabs`: how many of equal length, or the increasing times between which they lie, first and last
      included. With a function the times must be given.
    - `options`: those of `sg.pinn.solve`. `steps` and `seconds` are for the whole march, by default 1000
      steps for each slab; slabs share them evenly, but for three shares of the time for the first, and what
      one leaves over, since it stops for `tol`, `patience` or because it has converged, goes to the later
      ones. Here `patience` is 250 steps by default; with None all of them train to the end of their time.
      Each hands on the best that it has found (`keep_best`). `checkpoint` holds one folder for each slab; a
      march that was killed goes on in the slab where it was, to the same bytes. `callback` finds the number
      of the `slab` in its records, and if it says stop, the march ends with that slab. `params` is where the
      first slab starts.

    **Returns:** a `sg.pinn.Marched`, a function of all times. `ValueError` names the block that cannot be cut
    into slabs: one on a domain without time, or of data; unknown coefficients belong to all times at once.

    ```python
    problem = sg.pinn.zoo("heat-1d", hidden=(8,), points=(40, 10, 10))
    marched = sg.pinn.march(problem, jax.random.key(0), slabs=2, steps=4)
    marched(jnp.array([0.75, 0.5])), marched.reason                # one value; a reason for each slab
    ```
    """
    if options.pop("state", None) is not None:
        raise ValueError("`state` belongs to one slab: go on with a march by `checkpoint`.")
    make, times = into_slabs(problem, slabs)
    sampler, callback = _sampler(options.pop("sampler", None)), options.pop("callback", None)
    options.setdefault("patience", PATIENCE)
    options.setdefault("keep_best", True)
    folder, params = options.pop("checkpoint", None), options.pop("params", None)
    budget = _Budget.of(options.pop("steps", None), options.pop("seconds", None), len(times) - 1)
    done: list[Solution] = []
    suspect: float | None = None
    for i, (start, end) in enumerate(pairwise(times)):
        here = make(start, end, done[-1] if done else None)
        if done:  # a copy of the past for each slab would fill the memory
            done[-1] = _remembering(done[-1], None)
        found = solve(
            here,
            jax.random.fold_in(key, i),
            sampler=None if sampler is None else sampler(here),
            callback=None if callback is None else partial(_numbered, callback, i),
            checkpoint=None if folder is None else Path(folder) / f"slab-{i:03d}",
            params=params,
            **budget.share(len(times) - 1 - i, FIRST_SHARE if i == 0 else 1.0),
            **options,
        )
        if suspect is None and found.reason != "callback" and (words := _lost(done, found)):
            suspect = start
            warnings.warn(_warning(i, times, words), stacklevel=2)
        done.append(found)
        params, budget = found.params, budget.after(found)
        if found.reason == "callback":
            break
    whole = problem if isinstance(problem, PINN) else None
    test = whole.test if whole is not None and len(done) == len(times) - 1 else None
    return _measured(gathered(tuple(done), times[: len(done) + 1], whole, suspect), test)


def _remembering(slab: Solution, last: Any) -> Solution:
    """The solution of a slab with the memory of the last one, or with none."""
    if not isinstance(slab.problem.network, Evolving):
        return slab
    network = slab.problem.network.remembering(last if isinstance(last, Evolving) else None)
    return eqx.tree_at(lambda slab: slab.problem.network, slab, network)


def _lost(before: list[Solution], slab: Solution) -> str | None:
    """What says that a slab has diverged, or None: its loss on points of its own, beside those before.

    Losses of slabs that are all well solved differ by factors of a million, so a slab must also be near
    what weights that know nothing of their slab have as a loss.
    """
    loss = slab.history["loss"][-1]
    if not np.isfinite(loss):
        return "its loss is not finite"
    if not before:
        return None
    ends = max(one.history["loss"][-1] for one in before)
    starts = max(one.history["loss"][0] for one in before)
    if loss <= max(LOST * ends, UNTRAINED * starts):
        return None
    return f"its loss ends at {loss:.1e}, where no slab before was above {ends:.1e}"


def _warning(slab: int, times: list[float], words: str) -> str:
    return (
        f"sg.pinn.march has diverged in slab {slab + 1} of {len(times) - 1}: {words}. The solution is not to "
        f"be trusted from t = {times[slab]:.6g} on. Give more slabs, more points or a larger network."
    )


@dataclass(frozen=True)
class _Budget:
    """The steps and seconds that are left."""

    steps: int | None
    seconds: float | None

    @classmethod
    def of(cls, steps: int | None, seconds: float | None, slabs: int) -> "_Budget":
        if steps is None and seconds is None:
            steps = DEFAULT_STEPS * slabs
        if steps is not None and positive_int("steps", steps) < slabs:
            raise ValueError(f"`steps` must be at least 1 for each of {slabs} slabs, got {steps}.")
        return cls(steps, seconds)

    def share(self, slabs: int, shares: float) -> dict[str, Any]:
        """What the next of so many slabs may use: an even part of the steps, `shares` parts of the time."""
        least = np.finfo(float).tiny  # the last slabs may have used a little more than their share
        seconds = None if self.seconds is None else max(self.seconds * shares / (slabs - 1 + shares), least)
        return {"steps": None if self.steps is None else self.steps // slabs, "seconds": seconds}

    def after(self, slab: Solution) -> "_Budget":
        """What a slab leaves."""
        steps, seconds = (slab.history[name][-1] for name in ("step", "seconds"))
        return _Budget(
            None if self.steps is None else self.steps - int(steps),
            None if self.seconds is None else self.seconds - float(seconds),
        )


def _sampler(make: Any) -> Callable | None:
    if make is None or callable(make):
        return make
    raise TypeError(
        f"`sampler` must be a function that makes the sampler of a slab from its problem, such as "
        f"sg.pinn.ResidualAdaptive itself; got {type(make).__name__}."
    )


def _numbered(callback: Callable, slab: int, record: dict[str, float], state: Any) -> Any:
    return callback({**record, "slab": float(slab)}, state)


def gathered(
    slabs: tuple[Solution, ...], times: Sequence[float], problem: PINN | None, suspect: float | None
) -> Marched:
    """One function of all times, whose error is not known yet; slabs share what they know of the past."""
    slabs = tuple(_remembering(slab, slabs[-1].problem.network) for slab in slabs)
    return Marched(
        params=tuple(slab.params for slab in slabs),
        history=_history(slabs),
        code=jnp.stack([slab.code for slab in slabs]),
        rejected=jnp.stack([slab.rejected for slab in slabs]),
        state=tuple(slab.state for slab in slabs),
        slabs=slabs,
        times=np.array(times),
        relative_l2=None,
        problem=problem,
        suspect=suspect,
    )


def remade(problem: Any, times: Sequence[float], solved: Callable[[int, PINN], Solution | None]) -> list:
    """The slabs of a march that has been, in order, as `solved(number, problem)` says; None ends it."""
    make, times = into_slabs(problem, times)
    done: list[Solution] = []
    for i, (start, end) in enumerate(pairwise(times)):
        found = solved(i, make(start, end, done[-1] if done else None))
        if found is None:
            break
        done.append(found)
    return done


def _measured(marched: Marched, test: tuple[Array, Array] | None) -> Marched:
    """With the error over all times."""
    slabs = marched.slabs
    parts = [test] if test is not None else [slab.problem.test for slab in slabs]
    tests = [part for part in parts if part is not None]
    if len(tests) < len(parts):
        return marched
    measured: Any = slabs[0].problem.measured

    def seen(points: Float[Array, "N d"]) -> Array:
        return marched(points) if measured is None else jax.vmap(lambda x: measured(marched, x))(points)

    errors = [(seen(points) - values, values) for points, values in tests]
    square = [sum(jnp.sum(part**2) for part in parts) for parts in zip(*errors, strict=True)]
    return replace(marched, relative_l2=jnp.sqrt(square[0] / square[1]))


def _history(slabs: tuple[Solution, ...]) -> dict[str, np.ndarray]:
    """The records of all slabs, counted from the first one."""
    names = dict.fromkeys(name for slab in slabs for name in slab.history)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("slab", *names)}
    before: dict[str, float] = {"step": 0.0, "seconds": 0.0}
    for i, slab in enumerate(slabs):
        count = len(slab.history["step"])
        parts["slab"].append(np.full(count, float(i)))
        for name in names:
            values = slab.history.get(name, np.full(count, np.nan))
            parts[name].append(values + before.get(name, 0.0))
        before = {name: float(parts[name][-1][-1]) for name in before}
    return {name: np.concatenate(values) for name, values in parts.items()}
