"""SPRING without settings for residuals that are no loss: energies of quantum states."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Scalar

from .._checks import Given, real_scalar
from .._contracts import AbstractJacobian, AbstractMethod, Linearisation, Params
from ..linalg import CG, gram, least_damping, psd_solve
from ..operators import RealPairs, from_pairs
from ._matrix_free import CGState, any_solver, cg_after, cg_report, cg_state
from ._system import linear_system
from ._trial import dot, norm, real_dtype

MEMORY = 10
"""Averages remember about so many values."""
EVERY = 10
"""The curvature is measured at each of the first so many steps, and at one in so many after that."""
FIRST = 0.02
"""The Fisher length of a step while no curvature is known."""
GROWTH = 2.0
"""The step size grows at most by this factor from step to step."""
SHORTEST, LONGEST, SLOPE = 0.05, 0.5, 0.2
"""Step size times curvature is SLOPE · M²/(1 − M) at the gain M, within the first two."""
SURE, LEAST_PART = 0.75, 0.3
"""Below the first gain the radius shrinks with its square, to the square of the second at least."""
BLUR = 4.0
"""A step of Fisher length δ makes this times δ of the increment obsolete."""
LEAST_LOSS = 1e-3
"""The momentum is at most one less this."""
FAR = 0.3
"""The relative damping is at least this times δ: after a long step few samples say little about the rest."""


class FisherSpringState(eqx.Module):
    """The increment φ, the last step, and what was learnt from looking back at it."""

    increment: Params
    step_size: Float[Array, ""]  # η of the last step
    momentum: Float[Array, ""]  # μ of the last step
    length: Float[Array, ""]  # δ = η‖Jφ‖, the Fisher length of the last step
    gain: Float[Array, ""]  # M, the part of φ that fresh samples confirm
    log_curvature: Float[Array, ""]  # ℓ, per squared Fisher length
    measured: Int[Array, ""]  # how often a curvature was found
    step: Int[Array, ""]
    cg: CGState | tuple[()]


class FisherSpring(AbstractMethod):
    """SPRING without settings where ‖r‖² is no loss, as for the energy of a quantum state.

    There the samples follow the parameters, J is not ∂r/∂θ, and a trial step cannot be judged on its batch.
    So each step is judged on the next batch. With v = Jφ there, for the φ and η of the last step,

    - the curvature h = v·(r_old − r)/(η v·v) is measured per squared Fisher length; r_old is the residual at
      the parameters before the step on the new samples;
    - the gain M is the part of φ that the new samples confirm, v·r_old/(v·v), averaged.

    Then SPRING with μ = 1 − (ηh + 4δ), for a last step of Fisher length δ = η‖Jφ‖, and η = x/h with x between
    0.05 and 0.5 that rises with M; the next δ is at most `radius`. All of it is free of units: r times any
    factor gives the same steps. It returns the whole step: use it with a unit learning rate. It needs
    `residual_at` in the linearisation, one more residual at one step in ten.

    **Arguments:**

    - `radius`: the longest step in Fisher length, the change of the state in radians; where the gain is less
      than 0.75, less in proportion to its square.
    - `damping`: the least λ, relative to the mean of the diagonal of JJᵀ; after a step of length δ it is at
      least 0.3 δ, and never below what the rounding of JJᵀ hides (`sg.linalg.least_damping`).
    - `solver`: `"auto"`, by one factorisation, or `"cg"` (or a `sg.CG`), by products with J alone.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    lin = sg.Linearisation(jnp.ones(6), sg.DenseJacobian(J), lambda step: jnp.ones(6) - J @ step)
    method = sg.methods.FisherSpring()
    step, state = method.direction(lin, method.init(jnp.zeros(4)))
    method.report(state)                   # step_size, momentum, length, gain, curvature
    ```
    """

    radius: Float[Array, ""]
    damping: Float[Array, ""]
    solver: Literal["auto"] | CG = eqx.field(static=True)

    def __init__(
        self,
        radius: Given[ArrayLike, ""] = 0.08,
        damping: Given[ArrayLike, ""] = 1e-3,
        solver: Literal["auto", "cg"] | CG = "auto",
    ):
        self.radius = real_scalar("radius", radius, low=0)
        self.damping = real_scalar("damping", damping, low=0)
        self.solver = any_solver(solver, ("auto",))

    def init(self, params: Params) -> FisherSpringState:
        """Returns the state before the first step: an increment φ = 0, and no history."""
        zero, none = jnp.zeros((), real_dtype(params)), jnp.zeros((), int)
        return FisherSpringState(
            increment=jax.tree.map(jnp.zeros_like, params),
            step_size=zero,
            momentum=zero,
            length=zero,
            gain=zero + 1,
            log_curvature=zero,
            measured=none,
            step=none,
            cg=cg_state(self.solver, params),
        )

    @jax.default_matmul_precision("highest")
    def propose(self, lin: Linearisation, state: FisherSpringState) -> tuple[Params, FisherSpringState]:
        """Returns the whole step, whose length follows from what the last step did on these samples."""
        J, r, phi = lin.jacobian, lin.residual, state.increment
        dtype = state.step_size.dtype
        v = J.mv(phi)
        gain, log_curvature, measured = _look_back(lin, v, state)
        known = measured > 0
        curvature = jnp.exp(log_curvature)

        lost = jnp.clip(state.step_size * curvature + BLUR * state.length, LEAST_LOSS, 1)
        mu = jnp.where(known, 1 - lost, 0)
        length = jnp.where(state.step > 0, state.length, self.radius.astype(dtype))
        damping = jnp.maximum(self.damping.astype(dtype), FAR * length)
        pinv, solves = _pseudoinverse(J, damping, self.solver, r.dtype)
        new = pinv(r - mu.astype(r.dtype) * v)
        phi = jax.tree.map(lambda old, add: mu.astype(old.dtype) * old + add, phi, new)

        size = norm(J.mv(phi)).astype(dtype)
        size = jnp.where(size > 0, size, 1)
        trust = jnp.clip(gain, 0, 0.999)
        x = jnp.clip(SLOPE * trust**2 / (1 - trust), SHORTEST, LONGEST)
        radius = self.radius * jnp.clip(gain / SURE, LEAST_PART, 1) ** 2
        eta = jnp.where(known, jnp.minimum(x / curvature, radius / size), FIRST / size)
        eta = jnp.where(state.step > 0, jnp.minimum(eta, GROWTH * state.step_size), eta).astype(dtype)
        after = FisherSpringState(
            increment=phi,
            step_size=eta,
            momentum=mu,
            length=eta * size,
            gain=gain,
            log_curvature=log_curvature,
            measured=measured,
            step=state.step + 1,
            cg=cg_after(state.cg, solves, self.solver),
        )
        return jax.tree.map(lambda x: eta.astype(x.dtype) * x, phi), after

    def report(self, state: FisherSpringState) -> dict[str, Scalar]:
        """Returns `step_size`, `momentum`, `length`, `gain`, `curvature`, and the numbers of `sg.CG`."""
        numbers = {name: getattr(state, name) for name in ("step_size", "momentum", "length", "gain")}
        curvature = jnp.where(state.measured > 0, jnp.exp(state.log_curvature), 0)
        return {**numbers, "curvature": curvature, **cg_report(state.cg)}


def _look_back(
    lin: Linearisation, v: Float[Array, " k"], state: FisherSpringState
) -> tuple[Float[Array, ""], Float[Array, ""], Int[Array, ""]]:
    """Gain, log curvature and how often it was measured, with what the last step did on new samples."""
    if lin.residual_at is None:
        raise ValueError(
            "`lin` must carry `residual_at` for sg.methods.FisherSpring, which looks back at its last step: "
            "Linearisation(residual, jacobian, residual_at)."
        )
    before: Callable = lin.residual_at
    r, eta, t = lin.residual, state.step_size, state.step
    square = dot(v, v).astype(eta.dtype)
    square = jnp.where(square > 0, square, 1)

    def secant() -> Float[Array, ""]:
        back = jax.tree.map(lambda x: -eta.astype(x.dtype) * x, state.increment)
        slope = dot(v, before(back) - r).astype(eta.dtype)
        return slope / jnp.where(eta > 0, eta * square, 1)

    due = (t > 0) & ((t < EVERY) | (t % EVERY == 0))
    h = jax.lax.cond(due, secant, lambda: jnp.zeros_like(eta))
    found = jnp.isfinite(h) & (h > 0)
    weight = jnp.maximum(1 / MEMORY, 1 / (state.measured + 1)).astype(eta.dtype)
    log_h = jnp.log(jnp.where(found, h, 1))
    log_curvature = state.log_curvature + jnp.where(found, weight * (log_h - state.log_curvature), 0)
    measured = state.measured + found
    known = jnp.where(measured > 0, jnp.exp(log_curvature), 0)

    confirmed = dot(v, r).astype(eta.dtype) / square + eta * jnp.where(found, h, known)
    weight = jnp.maximum(1 / MEMORY, 1 / (t + 1)).astype(eta.dtype)
    change = weight * (jnp.clip(confirmed, -1, 2) - state.gain)
    return state.gain + jnp.where(t > 0, change, 0), log_curvature, measured


def _pseudoinverse(
    jacobian: AbstractJacobian, damping: Float[Array, ""], solver: Literal["auto"] | CG, dtype: Any
) -> tuple[Callable[[Float[Array, " k"]], Params], list]:
    """The map J^{+(λ)}, λ relative to the mean of the kernel's diagonal, from the smaller system."""
    k, n = jacobian.shape
    if isinstance(solver, CG):
        system = linear_system(jacobian, damping, solver, dtype)
        return system.pinv, system.solves
    if k <= n:
        K = jacobian.gram()
        # Always by Cholesky: eigenvalues take many times as long on a GPU, and know no more of K.
        lam = jnp.maximum(damping.astype(K.dtype) * jnp.trace(K) / k, least_damping(K))
        lam = jnp.where(lam > 0, lam, 1)
        return lambda u: jacobian.rmv(psd_solve(K, u, lam, "cholesky")), []
    rows = RealPairs(jacobian)
    A = rows.dense()
    lam = damping.astype(A.dtype) * jnp.sum(A**2) / k

    def pinv(u: Float[Array, " k"]) -> Params:
        gradient, unravel = ravel_pytree(rows.rmv(u))
        return from_pairs(unravel(psd_solve(gram(A.T), gradient, lam)))

    return pinv, []
