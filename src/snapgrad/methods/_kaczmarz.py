"""Sketch-and-project for linear systems A θ = b: the iterations that SNG and SPRING come from."""

from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._checks import positive_int, real_array, real_scalar
from .._contracts import AbstractSampler
from ..linalg import AbstractSketch, RowSketch
from ..operators import DenseJacobian
from ._pinv import pinv_apply

Scalar: TypeAlias = Float[Array, ""] | float
Reason: TypeAlias = Literal["converged", "least_squares", "max_steps", "non_finite"]
REASONS: tuple[Reason, ...] = ("max_steps", "converged", "least_squares", "non_finite")


class Iterate(NamedTuple):
    """An accelerated iteration's position θ and momentum φ."""

    theta: Float[Array, " n"]
    increment: Float[Array, " n"]


def _project(A: Float[Array, "k n"], b: Float[Array, " k"], damping: Scalar) -> Float[Array, " n"]:
    return pinv_apply(DenseJacobian(A), b, jnp.asarray(damping))


def kaczmarz_step(
    theta: Float[Array, " n"], A: Float[Array, "k n"], b: Float[Array, " k"], damping: Scalar = 0.0
) -> Float[Array, " n"]:
    """θ ← θ + (ΩA)^{+(λ)}(Ωb − ΩAθ): (regularised) block Kaczmarz on a sketched system (ΩA, Ωb)."""
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
    """φ ← μφ + (ΩA)^{+(λ)}(Ωb − ΩA(θ + μφ)), θ ← θ + ηφ: the form of Theorem 6.1, which SPRING shares."""
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
    """The form of the literature: w = (ΩA)^{+(λ)}(ΩAθ̃ − Ωb), φ̃ ← μ(φ̃ − w), θ̃ ← θ̃ − w + η̃φ̃.

    Started from φ = 0 it is `accelerated_step` with η = 1 + μ(η̃ − 1), through φ̃ = μφ, θ̃ = θ + μφ.
    """
    theta, phi = state
    w = _project(A, A @ theta - b, damping)
    phi = momentum * (phi - w)
    return Iterate(theta - w + step_size * phi, phi)


class KaczmarzResult(NamedTuple):
    """What `sg.kaczmarz` returns.

    - `solution`: the last iterate, or the tail average.
    - `history`: `step`, `residual` (‖Ax − b‖/‖b‖) and `gradient` (‖Aᵀ(Ax − b)‖/(‖A‖‖Ax − b‖)) at each check.
    - `steps`: how many steps were taken.
    - `reason`: `"converged"` (residual below `tol`), `"least_squares"` (gradient below `tol`: nothing
      better exists), `"max_steps"`, or `"non_finite"` (`solution` is then the last finite check).
    """

    solution: Float[Array, " n"]
    history: dict[str, np.ndarray]
    steps: int
    reason: Reason


def kaczmarz(
    A: Any,
    b: Any,
    *,
    sample_size: int | None = None,
    sketch: AbstractSketch | AbstractSampler | None = None,
    damping: Any = 0.0,
    momentum: Any = 0.0,
    step_size: Any = 1.0,
    steps: int = 10_000,
    tol: float = 1e-8,
    tail_averaging: bool = False,
    check_every: int | None = None,
    x0: Any = None,
    key: PRNGKeyArray | None = None,
) -> KaczmarzResult:
    """Solves A x = b, consistent or noisy, by (accelerated, regularised) sketch-and-project.

    **Arguments:**

    - `A`, `b`: the system, `[m, n]` and `[m]`.
    - `sample_size`: rows a step, uniformly without replacement; default `min(m, n, 64)`.
    - `sketch`: in its place, any sketch of `sg.linalg` or sampler of rows of `sg.sampling`.
    - `damping`: λ ≥ 0; above 0 it steadies a noisy system without changing what is solved.
    - `momentum`, `step_size`: μ in [0, 1) and η, in the form of `accelerated_step`.
    - `steps`: at most so many steps.
    - `tol`: relative tolerance on the residual, or on the gradient of a system without exact solution.
    - `tail_averaging`: return (and test) the mean of the iterates after the first half of `steps`: on
      a noisy system it converges to the least-squares solution where the iterates do not.
    - `check_every`: steps between two looks at all rows; default about one pass over them.
    - `x0`, `key`: start (default zero) and randomness (default `jax.random.key(0)`).

    ```python
    result = sg.kaczmarz(A, b, sample_size=20, tol=1e-10)
    result.solution, result.steps, result.reason
    ```
    """
    A = real_array("A", A, ndim=2)
    m, n = A.shape
    b = real_array("b", b, ndim=1, rows=m).astype(A.dtype)
    x0 = jnp.zeros(n, A.dtype) if x0 is None else real_array("x0", x0, ndim=1, rows=n).astype(A.dtype)
    if sketch is None:
        size = min(m, n, 64) if sample_size is None else sample_size
        sketch = RowSketch(positive_int("sample_size", size, most=m, most_name="the number of rows of `A`"))
    elif sample_size is not None:
        raise ValueError("give `sample_size` or `sketch`, not both: a sketch has its own size.")
    elif isinstance(sketch, AbstractSampler) and sketch.num_rows != m:
        raise ValueError(f"`sketch` must draw from the {m} rows of `A`, got one for {sketch.num_rows}.")
    steps = positive_int("steps", steps)
    every = max(1, m // getattr(sketch, "sample_size", m)) if check_every is None else check_every
    real_scalar("tol", tol, low=0)
    hyper = {
        "damping": real_scalar("damping", damping, low=0).astype(A.dtype),
        "momentum": real_scalar("momentum", momentum, low=0, below=1).astype(A.dtype),
        "step_size": real_scalar("step_size", step_size, low=0).astype(A.dtype),
    }
    x, taken, code, checks, history = _solve(
        A,
        b,
        x0,
        jax.random.key(0) if key is None else key,
        sketch,
        hyper,
        jnp.asarray(tol, A.dtype),
        steps=steps,
        every=min(positive_int("check_every", every), steps),
        tail_averaging=tail_averaging,
    )
    history = {name: np.asarray(values[: int(checks)]) for name, values in history.items()}
    return KaczmarzResult(x, history, int(taken), REASONS[int(code)])


class _Loop(NamedTuple):
    iterate: Iterate
    mean: Float[Array, " n"]  # of the tail
    best: Float[Array, " n"]  # what would be returned
    sampler: Any
    taken: Int[Array, ""]
    code: Int[Array, ""]  # index into REASONS; 0 means go on
    checks: Int[Array, ""]
    history: dict[str, Array]


@eqx.filter_jit
@jax.default_matmul_precision("highest")
def _solve(A, b, x0, key, sketch, hyper, tol, *, steps: int, every: int, tail_averaging: bool):
    norm_A, norm_b = jnp.linalg.norm(A), jnp.linalg.norm(b)
    burn_in = steps // 2

    def sketched(key: PRNGKeyArray, state: Any):
        if isinstance(sketch, AbstractSketch):
            return *sketch.apply(key, A, b), state
        rows, state = sketch.draw(key, state, _no_linearisation)
        return A[rows], b[rows], state

    def step(t: Int[Array, ""], carry):
        iterate, mean, sampler = carry
        rows, rhs, sampler = sketched(jax.random.fold_in(key, t), sampler)
        iterate = accelerated_step(iterate, rows, rhs, **hyper)
        mean = mean + jnp.where(t >= burn_in, (iterate.theta - mean) / jnp.maximum(t + 1 - burn_in, 1), 0)
        return iterate, mean, sampler

    def chunk(loop: _Loop) -> _Loop:
        end = jnp.minimum(loop.taken + every, steps)
        carry = (loop.iterate, loop.mean, loop.sampler)
        iterate, mean, sampler = jax.lax.fori_loop(loop.taken, end, step, carry)
        x = jnp.where(tail_averaging & (end > burn_in), mean, iterate.theta)
        residual = A @ x - b
        size = jnp.linalg.norm(residual)
        relative = size / jnp.where(norm_b > 0, norm_b, 1)
        gradient = jnp.linalg.norm(A.T @ residual) / jnp.where(size > 0, norm_A * size, 1)
        finite = jnp.isfinite(relative) & jnp.all(jnp.isfinite(iterate.theta))
        code = jnp.where(gradient <= tol, 2, 0)
        code = jnp.where(relative <= tol, 1, code)
        code = jnp.where(finite, code, 3)
        record = {"step": end, "residual": relative, "gradient": gradient}
        history = jax.tree.map(lambda old, new: old.at[loop.checks].set(new), loop.history, record)
        best = jnp.where(finite, x, loop.best)
        return _Loop(iterate, mean, best, sampler, end, code, loop.checks + 1, history)

    count = -(-steps // every)
    zeros = jnp.zeros(count, A.dtype)
    start = _Loop(
        Iterate(x0, jnp.zeros_like(x0)),
        jnp.zeros_like(x0),
        x0,
        () if isinstance(sketch, AbstractSketch) else sketch.init(key),
        jnp.asarray(0),
        jnp.asarray(0),
        jnp.asarray(0),
        {"step": jnp.zeros(count, int), "residual": zeros, "gradient": zeros},
    )
    end = jax.lax.while_loop(lambda loop: (loop.code == 0) & (loop.taken < steps), chunk, start)
    return end.best, end.taken, end.code, end.checks, end.history


def _no_linearisation(batch: Any):
    raise TypeError("`sketch` must not depend on a model: prepare it on `A`, for example with `from_matrix`.")
