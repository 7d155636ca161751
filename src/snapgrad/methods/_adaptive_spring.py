"""SPRING with damping, step size and momentum that tune themselves."""

from dataclasses import replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Scalar

from .._checks import Given, real_scalar
from .._contracts import AbstractMethod, Linearisation, Params, tree_where
from ..linalg import CG
from ._curvature import FIRST_PROBE, Curvature, identity, no_curvature
from ._matrix_free import CGState, any_solver, cg_after, cg_report, cg_state
from ._pace import Pace, first_pace
from ._policy import quickest
from ._system import linear_system
from ._trial import PROBE, TrialState, attempt, dot, real_dtype, residual_at, trial_state

START, START_COUPLED = 1e-2, 3e-2
"""The relative damping is at least this times ‖r‖/‖r₀‖: far from the solution a linear model is no guide,
unless J has been seen to change less than that.
The second is for other losses than ½‖r‖²: small directions of J then carry what other rows add to r."""
FALLS = 0.6
"""For those it falls with this power of ‖r‖/‖r₀‖, which says less of the distance to the solution."""
WINDOW = 50
"""The change of J along a step is averaged over about so many steps."""


class AdaptiveSpringState(eqx.Module):
    """φ, the state of the trials, pace and curvature, ‖r‖ at the first step, and what solves took."""

    increment: Params
    trial: TrialState
    pace: Pace
    curvature: Curvature
    turn: Float[Array, ""]  # the mean squared relative change of J along a step, each at most 1
    moved: Float[Array, ""]  # the multiple of φ by which the parameters moved last
    first: Float[Array, ""]
    cg: CGState | tuple[()]


class AdaptiveSpring(AbstractMethod):
    """SPRING that tunes itself: `sg.Spring` with λ, μ and η from what is observed, for batches of k ≤ n rows.

    The damping falls with the residual, or sooner where J hardly changes along a step, and rises where a step
    does less than predicted. Step size and momentum follow from the observed rate (η = (ρ + 1/β)/(1 + ρ),
    μ = (1 − ρ)/(1 + ρ)), and the step size decays on the noise floor. Where the loss is not ½‖r‖²
    (`loss_at`), steps are divided by the norm of its Hessian, which secants on the batches give. A step that
    would raise the batch's loss is refused. It returns the whole step: use it with a unit learning rate. It
    needs `residual_at` in the linearisation; a step costs three residuals and one factorisation.

    **Arguments:**

    - `damping`: where the damping starts, relative to the mean eigenvalue of JJᵀ.
    - `bend`: whether to add the second-order part of the step.
    - `solver`: `"auto"`, by one factorisation of the kernel, or `"cg"` (or a `sg.CG`), by products alone.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    method, sampler = sg.AdaptiveSpring(), sg.sampling.Uniform(6, sample_size=3)
    result = sg.run(problem, jax.random.key(1), method=method, sampler=sampler, steps=20)
    method.report(result.state.method)     # damping, gain, refused, step_size, momentum
    ```
    """

    damping: Float[Array, ""]
    bend: bool = eqx.field(static=True)
    solver: Literal["auto"] | CG = eqx.field(static=True)

    def __init__(
        self,
        damping: Given[ArrayLike, ""] = 1e-2,
        bend: bool = True,
        solver: Literal["auto", "cg"] | CG = "auto",
    ):
        self.damping = real_scalar("damping", damping, low=0)
        self.bend = bend
        self.solver = any_solver(solver, ("auto",))

    def init(self, params: Params) -> AdaptiveSpringState:
        """Returns the state before the first step: an increment φ = 0, and no history."""
        dtype = real_dtype(params)
        increment = jax.tree.map(jnp.zeros_like, params)
        return AdaptiveSpringState(
            increment=increment,
            trial=trial_state(params, self.damping),
            pace=first_pace(dtype),
            curvature=no_curvature(dtype),
            turn=jnp.ones((), dtype),
            moved=jnp.zeros((), dtype),
            first=jnp.zeros((), dtype),
            cg=cg_state(self.solver, params),
        )

    @jax.default_matmul_precision("highest")
    def propose(self, lin: Linearisation, state: AdaptiveSpringState) -> tuple[Params, AdaptiveSpringState]:
        """Returns the whole step, to be taken with a unit learning rate; it is zero where it would raise the
        loss on the batch.
        """
        after = residual_at(lin, "sg.AdaptiveSpring")
        r, phi = lin.residual, state.increment
        jac = lin.jacobian if isinstance(self.solver, CG) else quickest(lin.jacobian, phi)
        k, n = jac.shape
        size = jnp.sqrt(dot(r, r)).astype(state.first.dtype)
        first = jnp.where(state.trial.step == 0, size, state.first)
        coupled = lin.loss_at is not None
        start, power = (START_COUPLED, FALLS) if coupled else (START, 1.0)
        falling = start * jnp.minimum(1, size / jnp.where(first > 0, first, 1)) ** power
        # Where J changes by the fraction ε along a step, eigenvalues of JJᵀ below ε² are not to be trusted.
        known = falling if coupled else jnp.minimum(falling, state.turn)
        damping = jnp.maximum(state.trial.damping, known)
        system = linear_system(jac, damping, self.solver, r.dtype)
        time = (state.trial.step + 1).astype(size.dtype)
        v = jac.mv(phi)
        curvature = state.curvature if coupled else identity(size.dtype)
        # Before the last step the residual was about r + ηHv.
        moved = state.moved.astype(r.dtype)
        vr, vv, rr = dot(v, r), dot(v, v), dot(r, r)
        old = rr + 2 * moved * curvature.along * vr + moved**2 * curvature.square * vv
        seen = (vr + moved * curvature.along * vv) / old, vv / old
        pace = state.pace.update(time, size, system.explained, seen, curvature.agreement, (k, n))

        mu, eta = pace.momentum.astype(r.dtype), pace.step_size
        new = system.pinv(r - mu * v)
        phi = jax.tree.map(lambda old, add: mu.astype(old.dtype) * old + add, phi, new)
        image = jac.mv(phi)
        if coupled:
            part = jnp.where(curvature.square > 0, PROBE * eta / curvature.norm, FIRST_PROBE).astype(r.dtype)
            probe = after(jax.tree.map(lambda x: part.astype(x.dtype) * x, phi))
            curvature = curvature.update(time, (r - probe) / part, image)
            eta = eta / jnp.where(curvature.square > 0, curvature.norm, 1)
        step = jax.tree.map(lambda x: eta.astype(x.dtype) * x, phi)
        trial = replace(state.trial, damping=system.damping)
        image, norm = eta.astype(r.dtype) * image, curvature.norm.astype(r.dtype)
        found = attempt(lin, trial, step, image, system.pinv, after, self.bend, curvature=norm)
        halved = jax.tree.map(lambda x: x / 2, state.increment)  # after a refusal
        phi = tree_where(found.taken, phi, halved)
        cg = cg_after(state.cg, system.solves, self.solver)
        moved = jnp.where(found.taken, eta, 0)
        change = jnp.where(jnp.isfinite(found.turn), jnp.minimum(found.turn, 1) - state.turn, 0)
        turn = state.turn + change / jnp.minimum(WINDOW, time)
        return found.step, AdaptiveSpringState(phi, found.state, pace, curvature, turn, moved, first, cg)

    def converged(self, state: AdaptiveSpringState) -> Bool[Array, ""]:
        """Returns whether the last step was too short to change any parameter."""
        return state.trial.converged > 0

    def report(self, state: AdaptiveSpringState) -> dict[str, Scalar]:
        """Returns `damping`, `step_size`, `momentum`, `gain`, how many steps were `refused`, and the numbers
        of `sg.CG`.
        """
        pace = {"step_size": state.pace.step_size, "momentum": state.pace.momentum}
        return {**state.trial.report(), **pace, **cg_report(state.cg)}
