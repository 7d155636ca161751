"""A natural-gradient method without settings: damping, step size and momentum tune themselves."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.lax import Precision
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int

from .._checks import float_params, real_scalar
from .._contracts import AbstractJacobian, AbstractMethod, Linearisation, Params, tree_where
from ..linalg import gram
from ..operators import DenseJacobian

PROBE = 0.1
"""The fraction of a step at which its curvature is measured."""
MOST_BEND = 3 / 16
"""The second-order part of a step is at most this fraction of the first-order part."""
FLOP_LIMIT = 2**32
"""Systems whose orthogonal factorisation costs more keep to damping that Cholesky can bear."""

ROWS_LIMIT = 2**28
"""On a GPU fewer numbers than this are stored as rows, which it multiplies faster than many small factors."""

Products = tuple[Callable[[Params], Float[Array, " k"]], Callable[[Float[Array, " k"]], Params]]
"""J φ and J^{+(λ)} u."""


class Trend(eqx.Module):
    """−d log‖r‖²/dt by regression that forgets: its memory is a fixed fraction of the steps so far."""

    sums: Float[Array, " 5"]  # of 1, t, y, t², ty

    def update(self, time: Float[Array, ""], value: Float[Array, ""]) -> tuple["Trend", Float[Array, ""]]:
        """With one more value; and the slope, 0 for the first ten."""
        new = jnp.stack([jnp.ones_like(time), time, value, time**2, time * value])
        sums = (1 - 4 / (time + 4)) * self.sums + new
        w, t, y, tt, ty = sums
        spread = w * tt - t * t
        slope = -(w * ty - t * y) / jnp.where(spread > 0, spread, 1)
        return Trend(sums), jnp.where((time > 10) & (spread > 0), slope, 0)


class AutoState(eqx.Module):
    """What `sg.Auto` carries; `damping`, `step_size`, `momentum` and `gain` are worth watching."""

    increment: Params  # φ
    scale: Params  # the largest mean squares of the columns of J so far
    damping: Float[Array, ""]  # relative to `scale`, or to the mean eigenvalue of K
    raise_by: Float[Array, ""]  # the factor of the next rejection
    gain: Float[Array, ""]  # actual over predicted decrease of the last step
    step_size: Float[Array, ""]
    momentum: Float[Array, ""]
    first: Float[Array, ""]  # ‖r‖ at the first step
    trend: Trend
    climb: Float[Array, ""]  # steps that made progress
    explained: Float[Array, ""]  # the mean fraction of a row that the others of its batch explain
    log_raise: Float[Array, ""]  # of β, above what that fraction says
    log_decay: Float[Array, ""]  # of the step size, on the noise floor
    step: Int[Array, ""]
    refused: Int[Array, ""]  # steps that would have raised the loss


class Auto(AbstractMethod):
    """SNG and SPRING without settings; use it with a unit learning rate.

    With more rows than parameters, a Levenberg–Marquardt step on the batch: columns scaled to unit size,
    damping from the ratio of actual to predicted decrease. Otherwise SPRING, with damping that falls with
    the residual, step size and momentum from the observed rate (η = (ρ + 1/β)/(1 + ρ), μ = (1 − ρ)/(1 + ρ),
    β from how much of a row the others of its batch explain), and a step size that decays on the noise
    floor. In both, the step is bent along the geodesic: its second-order part, from one more residual, is
    what lets it follow a narrow curved valley. A step that would raise the batch's loss is refused, and the
    damping raised.

    It needs `residual_at` in the linearisation; three residuals and one factorisation a step.

    **Arguments:**

    - `damping`: where the relative damping starts.
    - `bend`: whether to take the second-order part.

    ```python
    method = sg.Auto()
    result = sg.run(problem, key, method=method, sampler=sampler, steps=steps)
    result.state.method.damping, result.state.method.gain
    ```
    """

    damping: Float[Array, ""]
    bend: bool = eqx.field(static=True)

    def __init__(self, damping: Any = 1e-2, bend: bool = True):
        self.damping = real_scalar("damping", damping, low=0)
        self.bend = bend

    def init(self, params: Params) -> AutoState:
        """No increment, no history."""
        dtype = jnp.finfo(jnp.result_type(*jax.tree.leaves(float_params("params", params)))).dtype
        zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
        nothing = jax.tree.map(jnp.zeros_like, params)
        return AutoState(
            increment=nothing,
            scale=nothing,
            damping=self.damping.astype(dtype),
            raise_by=2 * one,
            gain=zero,
            step_size=one,
            momentum=zero,
            first=zero,
            trend=Trend(jnp.zeros(5, dtype)),
            climb=zero,
            explained=zero,
            log_raise=zero,
            log_decay=zero,
            step=jnp.zeros((), int),
            refused=jnp.zeros((), int),
        )

    @jax.default_matmul_precision("highest")
    def propose(self, lin: Linearisation, state: AutoState) -> tuple[Params, AutoState]:
        """The whole step, zero where none lowers the loss on the batch."""
        if lin.residual_at is None:
            raise ValueError(
                "`lin` must carry `residual_at` for sg.Auto, which tries its steps on the batch: "
                "Linearisation(residual, jacobian, residual_at), as problems of sg.pinn give."
            )
        k, n = lin.jacobian.shape
        plan = _overdetermined if k > n else _underdetermined
        (multiply, solve), direction, state = plan(lin, state)
        eta = state.step_size
        step = jax.tree.map(lambda d: eta.astype(d.dtype) * d, direction)
        image = multiply(step)
        bent = _bend(lin, solve, step, image) if self.bend else step

        r = lin.residual
        after = lin.residual_at(bent)
        actual = _dot(r, r) - _dot(after, after)
        predicted = _dot(r, r) - _dot(r - image, r - image)
        gain = actual / jnp.where(predicted > 0, predicted, 1)
        # A NaN after the step is a refusal; one before it is left to the guard of the contract.
        ok = (actual > 0) | ~jnp.isfinite(_dot(r, r))
        state = _next(state, ok, gain, direction)
        zero = jax.tree.map(jnp.zeros_like, bent)
        return tree_where(ok, bent, zero), state


def _next(state: AutoState, ok: Bool[Array, ""], gain: Float[Array, ""], direction: Params) -> AutoState:
    """Nielsen's rule for the damping; a refused step halves the increment."""
    trusted = jnp.clip(1 - (2 * gain - 1) ** 3, 1 / 5, 2)
    damping = state.damping * jnp.where(ok, trusted, state.raise_by)
    halved = jax.tree.map(lambda x: x / 2, state.increment)
    return replace(
        state,
        increment=tree_where(ok, direction, halved),
        damping=jnp.clip(damping, jnp.finfo(damping.dtype).eps ** 1.5, 1e8),
        raise_by=jnp.where(ok, 2.0, jnp.minimum(2 * state.raise_by, 1e3)).astype(damping.dtype),
        gain=jnp.where(jnp.isfinite(gain), gain, -1.0).astype(damping.dtype),
        step=state.step + 1,
        refused=state.refused + jnp.where(ok, 0, 1),
    )


def _overdetermined(lin: Linearisation, state: AutoState) -> tuple[Products, Params, AutoState]:
    """Levenberg–Marquardt: (JᵀJ + λD)⁻¹Jᵀr, with D the largest diagonal of JᵀJ so far."""
    J = lin.jacobian.dense()
    k, n = J.shape
    before, unravel = ravel_pytree(state.scale)
    scale = jnp.maximum(before, jnp.sum(J**2, axis=0).astype(before.dtype))
    # A column of zeros is a parameter without effect: any scale will do.
    root = jnp.sqrt(jnp.where(scale > 0, scale, 1)).astype(J.dtype)
    A = J / root[None]
    damping = _floored(state.damping, (k, n))
    lam = damping.astype(J.dtype)

    def by_cholesky() -> Float[Array, "n n"]:
        return jnp.linalg.cholesky(gram(A.T) + lam * jnp.eye(n, dtype=J.dtype)).T

    def by_qr() -> Float[Array, "n n"]:
        return jnp.linalg.qr(jnp.concatenate([A, jnp.sqrt(lam) * jnp.eye(n, dtype=J.dtype)]), mode="r")

    R = _factor(lam, 1.0, (k, n), by_cholesky, by_qr)

    def once(u: Float[Array, " k"]) -> Float[Array, " n"]:
        return solve_triangular(R, solve_triangular(R, A.T @ u, trans=1))

    def solve(u: Float[Array, " k"]) -> Params:
        x = once(u)
        # One refinement of the seminormal equations is as good as the orthogonal factor itself.
        rest = A.T @ (u - A @ x) - lam * x
        x = x + solve_triangular(R, solve_triangular(R, rest, trans=1))
        return unravel((x / root).astype(before.dtype))

    state = replace(state, scale=unravel(scale), damping=damping)
    return (lambda step: J @ ravel_pytree(step)[0].astype(J.dtype), solve), solve(lin.residual), state


def _underdetermined(lin: Linearisation, state: AutoState) -> tuple[Products, Params, AutoState]:
    """SPRING with the closed forms of accelerated sketch-and-project at the observed rate."""
    r, (k, n) = lin.residual, lin.jacobian.shape
    jac = _stored(lin.jacobian, state.increment) if _store_rows(lin, state) else lin.jacobian
    K = jac.gram()
    unit = jnp.trace(K) / k
    size = jnp.sqrt(_dot(r, r)).astype(state.first.dtype)
    time = (state.step + 1).astype(state.first.dtype)
    first = jnp.where(state.step == 0, size, state.first)
    tiny = jnp.finfo(size.dtype).tiny
    trend, slope = state.trend.update(time, 2 * jnp.log(jnp.maximum(size, tiny)))
    noisy = (time > 50) & (slope * time < 1)
    climb = state.climb + jnp.where(noisy, 0, 1)
    rho = jnp.clip(jnp.maximum(2 / (climb + 2), slope), 0, 1)
    momentum = (1 - rho) / (1 + rho)

    falling = 1e-2 * jnp.minimum(1, size / jnp.where(first > 0, first, 1))
    damping = _floored(jnp.maximum(state.damping, falling), (n, k))
    lam = (damping * unit).astype(K.dtype)

    def by_cholesky() -> Float[Array, "k k"]:
        return jnp.linalg.cholesky(K + lam * jnp.eye(k, dtype=K.dtype)).T

    def by_qr() -> Float[Array, "k k"]:
        J = jac.dense()
        return jnp.linalg.qr(jnp.concatenate([J.T, jnp.sqrt(lam) * jnp.eye(k, dtype=K.dtype)]), mode="r")

    R = _factor(lam, unit, (n, k), by_cholesky, by_qr)

    def solve(u: Float[Array, " k"]) -> Params:
        return jac.rmv(solve_triangular(R, solve_triangular(R, u, trans=1)))

    most = max(1.0, 2 * n / k)
    explained, log_raise, beta = _beta(state, R, lam, most, time, noisy)
    # No progress although β is what it is at most: the noise floor.
    slower = jnp.where(beta < 0.99 * most, 0, -1)
    log_decay = jnp.minimum(0, state.log_decay + jnp.where(noisy, slower, 1) / time)
    step_size = (rho + 1 / beta) / (1 + rho) * jnp.exp(log_decay)

    mu = momentum.astype(r.dtype)
    phi = state.increment
    new = solve(r - mu * jac.mv(phi))
    phi = jax.tree.map(lambda old, add: mu.astype(old.dtype) * old + add, phi, new)
    state = replace(
        state,
        damping=damping,
        step_size=step_size,
        momentum=momentum,
        first=first,
        trend=trend,
        climb=climb,
        explained=explained,
        log_raise=log_raise,
        log_decay=log_decay,
    )
    return (jac.mv, solve), phi, state


def _store_rows(lin: Linearisation, state: AutoState) -> bool:
    """Whether products with stored rows are the faster ones, and the rows fit."""
    k, n = lin.jacobian.shape
    real = not any(map(jnp.iscomplexobj, jax.tree.leaves(state.increment)))
    return jax.default_backend() == "gpu" and real and k * n < ROWS_LIMIT


def _stored(jac: AbstractJacobian, params: Params) -> DenseJacobian:
    unravel = ravel_pytree(params)[1]
    return DenseJacobian(jax.vmap(unravel)(jac.dense()))


def _beta(
    state: AutoState,
    R: Float[Array, "k k"],
    lam: Float[Array, ""],
    most: float,
    time: Float[Array, ""],
    noisy: Bool[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """β, from the fraction of a row that the other rows of its batch explain; raised while nothing improves.

    For rows in random directions that fraction is k/n, and β = 2n/k. Where few directions matter it is near
    one, and β can be far less, which is faster; how much less the rows alone do not say.
    """
    eye = jnp.eye(R.shape[0], dtype=R.dtype)
    apart = 1 / jnp.sum(solve_triangular(R, eye) ** 2, axis=1) - lam  # squared, from the span of the others
    fraction = 1 - jnp.sum(apart) / (jnp.sum(R**2) - R.shape[0] * lam)
    dtype = state.explained.dtype
    change = jnp.where(jnp.isfinite(fraction), jnp.clip(fraction, 0, 1).astype(dtype) - state.explained, 0)
    explained = state.explained + jnp.minimum(1, 4 / (time + 3)) * change
    least = jnp.clip(4 / jnp.maximum(explained, jnp.finfo(dtype).tiny), 1, most)
    log_raise = jnp.minimum(state.log_raise + jnp.where(noisy, 16 / time, 0), jnp.log(most / least))
    return explained, log_raise, least * jnp.exp(log_raise)


def _cholesky_limit(size: int, dtype: Any) -> float:
    """The relative damping below which Cholesky is not certain to be accurate."""
    return 10 * size * float(jnp.finfo(dtype).eps)


def _accurate(shape: tuple[int, int]) -> bool:
    """Whether an orthogonal factorisation is affordable."""
    return shape[0] * shape[1] ** 2 <= FLOP_LIMIT


def _floored(damping: Float[Array, ""], shape: tuple[int, int]) -> Float[Array, ""]:
    if _accurate(shape):
        return damping
    # Below what is certain: a factorisation that fails is a refused step, and one refinement mends the rest.
    return jnp.maximum(damping, _cholesky_limit(shape[1], damping.dtype) / 10)


def _factor(
    lam: Float[Array, ""],
    unit: Any,
    shape: tuple[int, int],
    by_cholesky: Callable[[], Float[Array, "m m"]],
    by_qr: Callable[[], Float[Array, "m m"]],
) -> Float[Array, "m m"]:
    """R with RᵀR = AAᵀ + λI, from the gram matrix while that can represent it."""
    if not _accurate(shape):
        return by_cholesky()
    return jax.lax.cond(lam > _cholesky_limit(shape[1], lam.dtype) * unit, by_cholesky, by_qr)


def _bend(lin: Linearisation, solve: Callable, step: Params, image: Float[Array, " k"]) -> Params:
    """The step with its second-order part: −½ J⁺ d²r/ds² along it (geodesic acceleration)."""
    assert lin.residual_at is not None
    probe = lin.residual_at(jax.tree.map(lambda s: PROBE * s, step))
    second = 2 / PROBE * ((probe - lin.residual) / PROBE + image)
    part = jax.tree.map(lambda x: x / 2, solve(second))
    size = _norm(part)
    limit = jnp.minimum(1, MOST_BEND * _norm(step) / jnp.where(size > 0, size, 1))
    limit = jnp.where(jnp.isfinite(limit), limit, 0)
    return jax.tree.map(lambda s, p: s + jnp.where(limit > 0, limit.astype(p.dtype) * p, 0), step, part)


def _dot(a: Float[Array, " k"], b: Float[Array, " k"]) -> Float[Array, ""]:
    return jnp.vdot(a, b, precision=Precision.HIGHEST)


def _norm(tree: Params) -> Float[Array, ""]:
    return jnp.sqrt(sum(jnp.sum(jnp.abs(x) ** 2) for x in jax.tree.leaves(tree)))
