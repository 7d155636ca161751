"""Grid × runs as one compiled program, diverged runs recorded as such."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._contracts import AbstractProblem, AbstractSampler
from ..methods import SNG, Spring, TwoBatch
from ..sampling import AdaptiveSquaredVolume, SquaredVolume, TwoBatches, Uniform
from ..training import run

Algorithm: TypeAlias = Literal["uniform", "svs", "two-batch", "spring", "spring-svs"]


class Hyper(NamedTuple):
    """A point of a grid, or a grid where each has a leading axis."""

    damping: Float[Array, "..."]
    step_size: Float[Array, "..."]
    momentum: Float[Array, "..."]


class Subject(NamedTuple):
    """What is run: a problem, the randomness and, where its rows are fixed, their squared volume sampler."""

    problem: AbstractProblem
    key: PRNGKeyArray
    volume: SquaredVolume | None = None


class Trace(NamedTuple):
    """`error`: the relative error at each record; `rejected`: steps left out because they were not finite."""

    error: Float[Array, "..."]
    rejected: Int[Array, "..."]


class Run(eqx.Module):
    """One run of one algorithm; what is static here decides what is compiled."""

    algorithm: Algorithm = eqx.field(static=True)
    sample_size: int = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    record_every: int = eqx.field(static=True)

    def __call__(self, hyper: Hyper, subject: Subject) -> Trace:
        """Trains and returns the error."""
        problem = subject.problem
        if self.algorithm == "two-batch":
            method = TwoBatch(hyper.damping)
        elif self.algorithm.startswith("spring"):
            method = Spring(hyper.damping, hyper.momentum)
        else:
            method = SNG(hyper.damping)
        result = run(
            problem,
            subject.key,
            method=method,
            sampler=self._sampler(hyper, subject),
            optimizer=optax.sgd(hyper.step_size),
            steps=self.steps,
            record_every=self.record_every,
        )
        return Trace(result.history["relative_error"], result.rejected)

    def _sampler(self, hyper: Hyper, subject: Subject) -> AbstractSampler:
        rows = subject.problem.num_rows
        assert rows is not None
        if not self.algorithm.endswith("svs"):
            uniform = Uniform(rows, self.sample_size)
            pair = TwoBatches(sampler=uniform)  # pyright: ignore[reportCallIssue]  # num_rows is a property
            return pair if self.algorithm == "two-batch" else uniform
        if subject.volume is None:
            return AdaptiveSquaredVolume(rows, self.sample_size, hyper.damping)
        return subject.volume.with_damping(hyper.damping)


@eqx.filter_jit
def _sweep(one: Run, grid: Hyper, runs: Subject) -> Trace:
    # Runs inside, grid outside: batches, gathers and gram matrices do not depend on the grid and are shared.
    over_runs = eqx.filter_vmap(one, in_axes=(None, eqx.if_array(0)))
    axes: Any = jax.tree.map(lambda x: 0 if x.ndim else None, grid)
    return eqx.filter_vmap(over_runs, in_axes=(axes, None))(grid, runs)


def sweep(one: Run, runs: Sequence[Subject], **grid: Any) -> dict[str, np.ndarray]:
    """All runs at all grid points: `error` [grid, runs, records] and `rejected` [grid, runs].

    `grid` gives `damping`, `step_size` and `momentum` (0 if not given): arrays of one length, or numbers.
    A number stays out of the batch, so that with one λ the factorisations are shared too.
    """
    points = Hyper(*(jnp.asarray(grid.get(name, 0.0), float) for name in Hyper._fields))
    trace = _sweep(one, points, stack(runs))
    return {"error": np.asarray(trace.error), "rejected": np.asarray(trace.rejected)}


def stack(subjects: Sequence[Any]) -> Any:
    """Equal trees as one, with a leading axis on every array."""
    return jax.tree.map(lambda *xs: jnp.stack(xs) if eqx.is_array(xs[0]) else xs[0], *subjects)


def diverged(error: np.ndarray, rejected: np.ndarray) -> np.ndarray:
    """Runs that ended ten times further from the solution than zero is, or were not finite on the way."""
    return ~(error[..., -1] <= 10.0) | (rejected > 0)


def final_error(arrays: Any) -> np.ndarray:
    """The error after the last step [grid, runs], infinite for diverged runs."""
    error, rejected = arrays["error"], arrays["rejected"]
    return np.where(diverged(error, rejected), np.inf, error[..., -1])
