"""Sketch-and-project for linear systems A θ = b: the iterations that SNG and SPRING come from."""

from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._checks import Given, positive_int, real_array, real_scalar, same_tree
from .._contracts import REASONS, AbstractSampler, Result, guard
from ..linalg import AbstractSketch, GaussianSketch, RowSketch
from ..operators import DenseJacobian
from ._pinv import pinv_apply

Scalar: TypeAlias = Float[Array, ""] | float
_STEPS, _TOL, _LEAST_SQUARES, _NON_FINITE = map(
    REASONS.index, ("steps", "tol", "least_squares", "non_finite")
)


class Iterate(NamedTuple):
    """Where an accelerated iteration is: the position `theta`, θ, and the momentum `increment`, φ.

    ```python
    start = sg.methods.Iterate(theta=jnp.zeros(3), increment=jnp.zeros(3))
    ```
    """

    theta: Float[Array, " n"]
    increment: Float[Array, " n"]


def _project(A: Float[Array, "k n"], b: Float[Array, " k"], damping: Scalar) -> Float[Array, " n"]:
    return pinv_apply(DenseJacobian(A), b, jnp.asarray(damping))


def kaczmarz_step(
    theta: Float[Array, " n"], A: Float[Array, "k n"], b: Float[Array, " k"], damping: Scalar = 0.0
) -> Float[Array, " n"]:
    """One step of (regularised) block Kaczmarz, θ ← θ + (ΩA)^{+(λ)}(Ωb − ΩAθ).

    **Arguments:**

    - `theta`: θ.
    - `A`, `b`: the sketched system ΩA and Ωb, such as some rows of a larger one.
    - `damping`: the regularisation λ ≥ 0; at 0 the step ends where the sketched system holds.

    **Returns:** the next θ.

    ```python
    theta = sg.methods.kaczmarz_step(jnp.zeros(3), jnp.eye(2, 3), jnp.ones(2))       # [1, 1, 0]
    ```
    """
    return theta + _project(A, b - A @ theta, damping)


def accelerated_step(
    state: Iterate,
    A: Float[Array, "k n"],
    b: Float[Array, " k"],
    *,
    damping: Scalar,
    momentum: Scalar,
    step_size: Scalar,
) -> Iterate:
    """One accelerated step, φ ← μφ + (ΩA)^{+(λ)}(Ωb − ΩA(θ + μφ)), θ ← θ + ηφ.

    This is the form of Theorem 6.1, which SPRING shares.

    **Arguments:**

    - `state`: θ and φ, as a `sg.methods.Iterate`.
    - `A`, `b`: the sketched system ΩA and Ωb, such as some rows of a larger one.
    - `damping`, `momentum`, `step_size`: the regularisation λ ≥ 0, the momentum μ and the step size η.

    **Returns:** the next θ and φ.

    ```python
    state = sg.methods.Iterate(jnp.zeros(3), jnp.zeros(3))
    sg.methods.accelerated_step(state, jnp.eye(2, 3), jnp.ones(2), damping=0.1, momentum=0.5, step_size=1.0)
    ```
    """
    theta, phi = state
    phi = momentum * phi + _project(A, b - A @ (theta + momentum * phi), damping)
    return Iterate(theta + step_size * phi, phi)


def nesterov_step(
    state: Iterate,
    A: Float[Array, "k n"],
    b: Float[Array, " k"],
    *,
    damping: Scalar,
    momentum: Scalar,
    step_size: Scalar,
) -> Iterate:
    """Returns the next iterate of accelerated Kaczmarz, written as the literature does.

    That is w = (ΩA)^{+(λ)}(ΩAθ̃ − Ωb), φ̃ ← μ(φ̃ − w), θ̃ ← θ̃ − w + η̃φ̃.

    Started from φ = 0 it is `sg.methods.accelerated_step` with η = 1 + μ(η̃ − 1), through φ̃ = μφ, θ̃ = θ + μφ.
    Its arguments are the same, `state`, `A`, `b`, `damping`, `momentum` and `step_size`; the last is η̃ here.

    ```python
    state = sg.methods.Iterate(jnp.zeros(3), jnp.zeros(3))
    sg.methods.nesterov_step(state, jnp.eye(2, 3), jnp.ones(2), damping=0.1, momentum=0.5, step_size=1.0)
    ```
    """
    theta, phi = state
    w = _project(A, A @ theta - b, damping)
    phi = momentum * (phi - w)
    return Iterate(theta - w + step_size * phi, phi)


class Tail(NamedTuple):
    """The mean of the iterates since the last power of two, and that of the half before it.

    Together they are the mean of the last half of all iterates, or of up to three quarters of them, at any
    step and without knowing how many steps are to come.
    """

    older: Float[Array, " n"]
    newer: Float[Array, " n"]
    older_count: Int[Array, ""]
    newer_count: Int[Array, ""]

    def add(self, theta: Float[Array, " n"], step: Int[Array, ""]) -> "Tail":
        """With the iterate after `step` steps."""
        new_half = step & (step - 1) == 0  # a power of two
        count = jnp.where(new_half, 0, self.newer_count) + 1
        mean = jnp.where(new_half, 0, self.newer)
        return Tail(
            older=jnp.where(new_half, self.newer, self.older),
            newer=mean + (theta - mean) / count,
            older_count=jnp.where(new_half, self.newer_count, self.older_count),
            newer_count=count,
        )

    @property
    def mean(self) -> Float[Array, " n"]:
        """The mean of both halves."""
        share = self.newer_count / jnp.maximum(self.older_count + self.newer_count, 1)
        return self.older + share.astype(self.older.dtype) * (self.newer - self.older)


class KaczmarzState(NamedTuple):
    """Everything that the next step of `sg.kaczmarz` needs; pass it back as `state` to go on."""

    iterate: Iterate
    tail: Tail
    sampler: Any
    step: Int[Array, ""]


def kaczmarz(
    A: Given[ArrayLike, "m n"],
    b: Given[ArrayLike, " m"],
    key: PRNGKeyArray | None = None,
    *,
    sample_size: int | None = None,
    sketch: AbstractSketch | AbstractSampler | None = None,
    damping: Given[ArrayLike, ""] = 0.0,
    momentum: Given[ArrayLike, ""] = 0.0,
    step_size: Given[ArrayLike, ""] = 1.0,
    steps: int = 10_000,
    tol: Given[ArrayLike, ""] | None = None,
    tail_averaging: bool = False,
    check_every: int | None = None,
    params: Given[ArrayLike, " n"] | None = None,
    state: KaczmarzState | None = None,
) -> Result:
    """Solves A x = b, consistent or noisy, by (accelerated, regularised) sketch-and-project.

    It returns a `Result`: `params` is the solution x, `history` has an entry per check in each of `step`,
    `residual` (‖Ax − b‖/‖b‖) and `gradient` (‖Aᵀ(Ax − b)‖/(‖A‖‖Ax − b‖)), and `reason` is

    - `"tol"`: the residual is at most `tol`;
    - `"least_squares"`: the gradient is at most `tol`, so that no x has a smaller residual;
    - `"steps"`: all `steps` were taken;
    - `"non_finite"`: the iteration ran to infinity; `params` and `state` are those of the last finite check.

    **Consistent systems.** The iterates converge to the solution nearest to the start, for every sketch whose
    batches together see all rows, and for every λ.

    **Systems without an exact solution.** The iterates do not converge; they keep moving about a point. With
    `tail_averaging` the mean over the last half of them converges to that point, like 1/√steps. The point
    solves AᵀW(b − Ax) = 0 with W = E[Ωᵀ(ΩAAᵀΩᵀ + λI)⁺Ω], which is *weighted* least squares. It is the
    least-squares solution where A's left singular vectors are eigenvectors of W, for every A under

    - `sg.linalg.GaussianSketch`, the default with `tail_averaging`. A step mixes all rows and costs O(kmn);
    - squared volume sampling with the same λ,
      `sketch=sg.sampling.SquaredVolume.from_matrix(A, sample_size, damping)`. It is prepared once for O(mn²),
      and then a step costs no more than with uniform rows.

    Uniform rows, sparse signs and Hadamard sketches lead to other weights: their averages converge, but not
    to the least-squares solution (it comes nearer as λ grows beyond the squared norms of batches).

    **Arguments:**

    - `A`, `b`: the system, dense, `[m, n]` and `[m]`.
    - `key`: the randomness (default `jax.random.key(0)`); a step depends on `key` and its number alone.
    - `sample_size`: the number k of rows per step (default `min(m, n, 64)`), drawn uniformly without
      replacement; with `tail_averaging` the number of random combinations of all rows.
    - `sketch`: in its place, any sketch of `sg.linalg` or sampler of rows of `sg.sampling`.
    - `damping`: the regularisation λ ≥ 0. A positive one steadies a noisy system.
    - `momentum`, `step_size`: μ in [0, 1) and η, in the form of `sg.methods.accelerated_step`.
    - `steps`: take at most so many (further) steps.
    - `tol`: the tolerance on residual and gradient. Default 1e-8, or 100 times the rounding unit of A's
      precision where that is more (1.2e-5 in float32).
    - `tail_averaging`: return, and test, the mean of the last half of the iterates instead of the last one.
    - `check_every`: steps between two looks at all rows; default about one pass over them.
    - `params`: where to start; default zero.
    - `state`: in its place, the `state` of an earlier result, to go on exactly as if never stopped.

    All but sizes may be traced, so it runs under `jax.jit` and `jax.vmap`. There the history has its full
    length, with NaN for checks that were not reached.

    ```python
    A = jax.random.normal(jax.random.key(0), (6, 4))
    result = sg.kaczmarz(A, A @ jnp.ones(4), sample_size=3)
    result.params, result.reason, result.history["step"][-1]

    noisy = A @ jnp.ones(4) + jax.random.normal(jax.random.key(1), (6,))
    svs = sg.sampling.SquaredVolume.from_matrix(A, sample_size=3, damping=1.0)
    sg.kaczmarz(A, noisy, sketch=svs, damping=1.0, steps=2000, tail_averaging=True).params
    ```
    """
    A = real_array("A", A, ndim=2)
    m, n = A.shape
    b = real_array("b", b, ndim=1, rows=m).astype(A.dtype)
    if sketch is None:
        size = min(m, n, 64) if sample_size is None else sample_size
        size = positive_int("sample_size", size, most=m, most_name="the number of rows of `A`")
        sketch = GaussianSketch(size) if tail_averaging else RowSketch(size)
    elif sample_size is not None:
        raise ValueError("give `sample_size` or `sketch`, not both: a sketch has its own size.")
    elif isinstance(sketch, AbstractSampler) and sketch.num_rows != m:
        raise ValueError(f"`sketch` must draw from the {m} rows of `A`, got one for {sketch.num_rows}.")
    steps = positive_int("steps", steps)
    every = max(1, m // getattr(sketch, "sample_size", m)) if check_every is None else check_every
    every = min(positive_int("check_every", every), steps)
    tol = max(1e-8, 100 * float(jnp.finfo(A.dtype).eps)) if tol is None else tol
    hyper = {
        "damping": real_scalar("damping", damping, low=0).astype(A.dtype),
        "momentum": real_scalar("momentum", momentum, low=0, below=1).astype(A.dtype),
        "step_size": real_scalar("step_size", step_size, low=0).astype(A.dtype),
    }
    key = jax.random.key(0) if key is None else key
    x = jnp.zeros(n, A.dtype) if params is None else real_array("params", params, ndim=1, rows=n)
    start = _start(x.astype(A.dtype), () if isinstance(sketch, AbstractSketch) else sketch.init(key))
    if state is not None:
        if params is not None:
            raise ValueError("give `params` or `state`, not both: a state has its own parameters.")
        same_tree("state", state, start, "a state of this system and sketch")
        start = state
    tol = real_scalar("tol", tol, low=0).astype(A.dtype)
    result, checks = _solve(
        A, b, start, key, sketch, hyper, tol, steps=steps, every=every, averaged=bool(tail_averaging)
    )
    if isinstance(checks, Tracer):
        return result
    history = {name: np.asarray(values)[: int(checks)] for name, values in result.history.items()}
    return eqx.tree_at(lambda r: r.history, result, history)


def _start(x: Float[Array, " n"], sampler: Any) -> KaczmarzState:
    zero, none = jnp.zeros_like(x), jnp.zeros((), int)
    return KaczmarzState(Iterate(x, zero), Tail(x, x, none, none), sampler, none)


class _Loop(NamedTuple):
    state: KaczmarzState
    code: Int[Array, ""]
    checks: Int[Array, ""]
    history: dict[str, Float[Array, " checks"]]


@eqx.filter_jit
@jax.default_matmul_precision("highest")
def _solve(A, b, start: KaczmarzState, key, sketch, hyper, tol, *, steps: int, every: int, averaged: bool):
    norm_A, norm_b = jnp.linalg.norm(A), jnp.linalg.norm(b)
    last = start.step + steps

    def sketched(key: PRNGKeyArray, state: Any):
        if isinstance(sketch, AbstractSketch):
            return *sketch.apply(key, A, b), state
        rows, state = sketch.draw(key, state, _no_linearisation)
        return A[rows], b[rows], state

    def step(t: Int[Array, ""], state: KaczmarzState) -> KaczmarzState:
        rows, rhs, sampler = sketched(jax.random.fold_in(key, t), state.sampler)
        iterate = accelerated_step(state.iterate, rows, rhs, **hyper)
        tail = state.tail.add(iterate.theta, t + 1) if averaged else state.tail
        return KaczmarzState(iterate, tail, sampler, t + 1)

    def solution(state: KaczmarzState) -> Float[Array, " n"]:
        return state.tail.mean if averaged else state.iterate.theta

    def chunk(loop: _Loop) -> _Loop:
        end = jnp.minimum(loop.state.step + every, last)
        state = jax.lax.fori_loop(loop.state.step, end, step, loop.state)
        residual = A @ solution(state) - b
        size = jnp.linalg.norm(residual)
        record = {
            "residual": size / jnp.where(norm_b > 0, norm_b, 1),
            "gradient": jnp.linalg.norm(A.T @ residual) / jnp.where(size > 0, norm_A * size, 1),
        }
        (state, _), finite = guard((state, record), (loop.state, record))
        code = jnp.where(record["gradient"] <= tol, _LEAST_SQUARES, _STEPS)
        code = jnp.where(record["residual"] <= tol, _TOL, code)
        code = jnp.where(finite, code, _NON_FINITE)
        history = {name: loop.history[name].at[loop.checks].set(value) for name, value in record.items()}
        return _Loop(state, code, loop.checks + 1, history)

    planned = jnp.minimum(start.step + every * jnp.arange(1, -(-steps // every) + 1), last)
    unknown = jnp.full(planned.size, jnp.nan, A.dtype)
    first = _Loop(start, jnp.asarray(_STEPS), jnp.zeros((), int), {"residual": unknown, "gradient": unknown})
    end = jax.lax.while_loop(lambda loop: (loop.code == _STEPS) & (loop.state.step < last), chunk, first)
    result = Result(
        params=solution(end.state),
        history={"step": planned, **end.history},
        code=end.code,
        rejected=jnp.zeros((), int),
        state=end.state,
    )
    return result, end.checks


def _no_linearisation(batch: Any):
    raise TypeError("`sketch` must not depend on a model: prepare it on `A`, for example with `from_matrix`.")
