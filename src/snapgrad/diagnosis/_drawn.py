"""The pool: rows of the user's own model, their kernel, and what is wrong with some of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from .._contracts import AbstractProblem, AbstractSampler, Linearisation, Pair, Params
from ..operators import stack

SAME = {"float64": 1e-8, "float32": 1e-5}
"""Rows whose cosine is within this of one count as repeated, in the precision of the model."""
ALIKE = 0.99
"""Rows with a cosine above this have a near neighbour."""
MOST_ROWS = 2000
"""Of a sampler whose batches are larger, so many rows are looked at."""
MOST_BATCHES = 8
"""Of a sampler's own batches the pool has between two and this many: each is a program of its own."""
PROBES = 4
"""Directions in which the derivative of the residual is compared with J."""


class Drawn(NamedTuple):
    """A pool of rows and what can be read off them.

    - `kernel`, `residual`: K = JJᵀ and r on the pool, in float64 whatever the model has.
    - `points`, `outputs`: points in the pool, and rows that belong to each.
    - `batch`: rows that the problem's own sampler draws at each step; None where rows are drawn by index.
    - `mismatch`: ‖(∂r/∂θ − J)v‖/‖Jv‖, largest over a few v: 0 for least squares; None if there is no telling.
    - `dead_rows`, `repeated_rows`, `near_rows`: how many rows are zero, repeat another, or have a near one.
    - `dead_parameters`: `(path, dead, all)` of each leaf with parameters that no row of the pool depends on.
    """

    kernel: Float[np.ndarray, "p p"]
    residual: Float[np.ndarray, " p"]
    points: int
    outputs: int
    batch: int | None
    num_rows: int | None
    num_params: int
    dtype: str
    mismatch: float | None
    dead_rows: int
    repeated_rows: int
    near_rows: int
    dead_parameters: tuple[tuple[str, int, int], ...]

    @property
    def whole(self) -> bool:
        """Whether the pool is all there is."""
        return self.num_rows == self.points


class Looker(NamedTuple):
    """The problem at some parameters on the pool; its methods compile once each."""

    problem: AbstractProblem
    params: Params
    batches: tuple[Any, ...]
    keep: Int[np.ndarray, " p"]  # the rows of all batches that make up the pool

    def look(self, key: PRNGKeyArray) -> Any:
        """Residual, kernel, which parameters act, and probes of the derivative of the residual."""
        return _look(self, key)

    def action(self, weights: Float[np.ndarray, "p e"]) -> Float[np.ndarray, "p e"]:
        """∂r/∂θ · Jᵀu for each column u."""
        return np.asarray(_action(self, jnp.asarray(weights)), np.float64)

    def after(self, cotangent: Float[np.ndarray, " p"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """At θ − Jᵀu: the residual, what its derivative at θ predicts, and the kernel."""
        return tuple(np.asarray(x, np.float64) for x in _after(self, jnp.asarray(cotangent)))  # pyright: ignore


class _Rows(NamedTuple):
    """The pool's part of one linearisation of all batches."""

    lins: list[Linearisation]
    keep: Int[np.ndarray, " p"]

    @property
    def residual(self) -> Float[Array, " p"]:
        return jnp.concatenate([lin.residual for lin in self.lins])[self.keep]

    @property
    def _jacobian(self) -> Any:
        return self.lins[0].jacobian if len(self.lins) == 1 else stack([lin.jacobian for lin in self.lins])

    def gram(self) -> Float[Array, "p p"]:
        return self._jacobian.gram()[jnp.ix_(self.keep, self.keep)]

    def mv(self, tangent: Params) -> Float[Array, " p"]:
        return self._jacobian.mv(tangent)[self.keep]

    def rmv(self, cotangent: Float[Array, " p"]) -> Params:
        whole = jnp.zeros(sum(lin.residual.shape[0] for lin in self.lins), self.residual.dtype)
        return self._jacobian.rmv(whole.at[self.keep].set(cotangent.astype(whole.dtype)))

    @property
    def residual_at(self) -> Callable[[Params], Array] | None:
        trials = [lin.residual_at for lin in self.lins]
        if any(trial is None for trial in trials):
            return None
        return lambda step: jnp.concatenate([trial(step) for trial in trials])[self.keep]  # pyright: ignore


def _rows(looker: Looker) -> _Rows:
    lins = [looker.problem.linearise(looker.params, batch) for batch in looker.batches]
    return _Rows(lins, looker.keep)


def _derivative(rows: _Rows, tangent: Params) -> Float[Array, " p"]:
    """∂r/∂θ · v, through the trial step."""
    zero = jax.tree.map(jnp.zeros_like, tangent)
    assert rows.residual_at is not None
    return -jax.jvp(rows.residual_at, (zero,), (tangent,))[1]


@eqx.filter_jit
def _look(looker: Looker, key: PRNGKeyArray) -> Any:
    rows = _rows(looker)
    r = rows.residual
    u = jax.random.normal(key, (PROBES, *r.shape), r.dtype)
    # A column of zeros gives an exact zero; any other one does not, but with probability zero.
    tangents = [rows.rmv(x) for x in u]
    acts = jax.tree.map(lambda *leaves: jnp.stack([leaf != 0 for leaf in leaves]).any(axis=0), *tangents)
    if rows.residual_at is None:
        return r, rows.gram(), acts, None
    images = jnp.stack([rows.mv(v) for v in tangents])
    slopes = jnp.stack([_derivative(rows, v) for v in tangents])
    return r, rows.gram(), acts, jnp.linalg.norm(slopes - images, axis=1) / jnp.linalg.norm(images, axis=1)


@eqx.filter_jit
def _action(looker: Looker, weights: Float[Array, "p e"]) -> Float[Array, "p e"]:
    rows = _rows(looker)
    return jax.lax.map(lambda u: _derivative(rows, rows.rmv(u)), weights.T).T


@eqx.filter_jit
def _after(looker: Looker, cotangent: Float[Array, " p"]) -> tuple[Array, Array, Array]:
    rows = _rows(looker)
    step = rows.rmv(cotangent)
    moved = jax.tree.map(lambda p, s: p - s.astype(p.dtype), looker.params, step)
    there = _rows(looker._replace(params=moved))
    # Without a trial step the residual is taken for that of least squares.
    slope = rows.mv(step) if rows.residual_at is None else _derivative(rows, step)
    return there.residual, rows.residual - slope, there.gram()


def draw(
    problem: AbstractProblem, key: PRNGKeyArray, params: Params, sampler: AbstractSampler | None, pool: int
) -> tuple[Drawn, Looker]:
    """About `pool` rows at `params`: by index where the problem counts its rows, else as `sampler` draws."""
    key_rows, key_look = jax.random.split(key)
    if problem.num_rows is not None:
        one = jnp.zeros(1, int)
        outputs = jax.eval_shape(lambda p: problem.linearise(p, one).residual, params).shape[0]
        if 2 * outputs > MOST_ROWS:
            raise ValueError(
                f"`problem` has {outputs} residuals for each of its rows; at most 1000 are looked at."
            )
        points = min(problem.num_rows, max(2, pool // outputs))
        chosen = np.sort(jax.random.permutation(key_rows, problem.num_rows)[:points])
        batches, per_batch = (jnp.asarray(chosen),), None
    else:
        if sampler is None:
            raise ValueError(
                "`problem` has neither rows to draw from nor a default sampler, so nothing says what a batch "
                "of it is: implement `default_sampler`, as sg.pinn.PINN does."
            )
        batches, per_batch = _sampled(problem, params, sampler, key_rows, pool)
        points, outputs = per_batch * len(batches), 1
    total = points * outputs
    keep = np.arange(total)
    if total > MOST_ROWS:
        keep = np.sort(np.asarray(jax.random.permutation(key_look, total))[:MOST_ROWS])
        points = MOST_ROWS
    looker = Looker(problem, params, batches, keep)
    residual, kernel, acts, mismatch = looker.look(key_look)
    r, K = np.asarray(residual, np.float64), np.asarray(kernel, np.float64)
    if not (np.isfinite(r).all() and np.isfinite(K).all()):
        for batch in batches:
            problem.check(params, batch)
        raise ValueError("the residual or its derivative is NaN or infinite on some rows of the pool.")
    dead, repeated, near = _oddities(K, SAME.get(str(kernel.dtype), 1e-5))
    return (
        Drawn(
            kernel=(K + K.T) / 2,
            residual=r,
            points=points,
            outputs=outputs,
            batch=per_batch,
            num_rows=problem.num_rows,
            num_params=sum(leaf.size for leaf in jax.tree.leaves(params)),
            dtype=str(kernel.dtype),
            mismatch=None if mismatch is None else float(np.max(mismatch)),
            dead_rows=dead,
            repeated_rows=repeated,
            near_rows=near,
            dead_parameters=_dead(acts),
        ),
        looker,
    )


def _sampled(
    problem: AbstractProblem, params: Params, sampler: AbstractSampler, key: PRNGKeyArray, pool: int
) -> tuple[tuple[Any, ...], int]:
    """Batches of the sampler, at least two, that together have about `pool` rows; and the rows of one."""
    batches, rows = [], 1
    for step in jax.random.split(key, MOST_BATCHES):
        # A state of its own for each, so that a sampler that keeps its points draws others.
        batch, _ = sampler.draw(step, sampler.init(step), lambda b: problem.linearise(params, b))
        batches.append(batch.first if isinstance(batch, Pair) else batch)
        rows = jax.eval_shape(lambda p, b=batches[0]: problem.linearise(p, b).residual, params).shape[0]
        if len(batches) >= 2 and rows * (len(batches) + 1) > pool:
            break
    return tuple(batches), rows


def _oddities(K: Float[np.ndarray, "p p"], same: float) -> tuple[int, int, int]:
    """How many rows are zero, repeat another one up to a factor, or have a near neighbour."""
    size = np.sqrt(np.diagonal(K))
    alive = size > np.finfo(float).eps * size.max(initial=0.0)
    cosine = np.abs(K[np.ix_(alive, alive)] / np.outer(size[alive], size[alive]))
    groups, _ = connected_components(csr_array(cosine > 1 - same), directed=False)
    np.fill_diagonal(cosine, 0)
    near = int(np.count_nonzero(cosine.max(axis=1, initial=0.0) > ALIKE))
    return int(np.count_nonzero(~alive)), int(alive.sum()) - groups, near


def _dead(acts: Any) -> tuple[tuple[str, int, int], ...]:
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(acts):
        dead = int(np.count_nonzero(~np.asarray(leaf)))
        if dead:
            found.append((jax.tree_util.keystr(path), dead, int(np.size(leaf))))
    return tuple(found)
