"""Levenberg–Marquardt: Gauss–Newton on the batch with damping that tunes itself."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Scalar

from .. import _memory
from .._checks import Given, real_scalar
from .._contracts import AbstractMethod, Linearisation, Params
from ..linalg import cgls, factorise, gram
from ..operators import from_pairs, to_pairs
from ._policy import REFINEMENTS, least_squares_solver
from ._trial import Scales, TrialState, attempt, dot, residual_at, trial_state

LEAST_COLUMN = 1e-8
"""Columns of J that are shorter than this part of the longest are scaled as if they had that length."""


class LevenbergMarquardtState(eqx.Module):
    """The state of the trials, and the diagonal D."""

    trial: TrialState
    scale: Params  # complex leaves as pairs of real ones


class LevenbergMarquardt(AbstractMethod):
    """Gauss–Newton with damping that tunes itself: θ ← θ − (JᵀJ + λD)⁻¹Jᵀr, for batches with k ≥ n rows.

    D is diagonal. It has the proportions of the largest squared norms of the columns of J so far, so that the
    units in which a parameter is measured do not matter (up to a factor of 1e8), and the size of the present
    ones.

    The damping λ follows from the ratio of actual to predicted decrease, and a step that would raise the
    batch's loss is refused. It knows when it is done, `converged`: rounding hides the decrease of the loss
    that is predicted while steps no longer get shorter (reported as 1), or the gradient says the same of a
    step that was refused (2), or the step is too short to change any parameter (3).

    It returns the whole step: use it with a unit learning rate. It needs `residual_at` in the linearisation,
    and forms J; a step costs three residuals and one factorisation.

    **Arguments:**

    - `damping`: where the damping λ starts.
    - `bend`: whether to add the second-order part of the step.

    ```python
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    method, sampler = sg.LevenbergMarquardt(), sg.sampling.AllRows(6)
    result = sg.run(problem, jax.random.key(1), method=method, sampler=sampler, steps=20)
    method.report(result.state.method)     # damping, gain, refused, converged
    ```
    """

    damping: Float[Array, ""]
    bend: bool = eqx.field(static=True)

    def __init__(self, damping: Given[ArrayLike, ""] = 1e-2, bend: bool = True):
        self.damping = real_scalar("damping", damping, low=0)
        self.bend = bend

    def init(self, params: Params) -> LevenbergMarquardtState:
        """Returns the state before the first step, which knows of no step yet."""
        scale = jax.tree.map(jnp.zeros_like, to_pairs(params))
        return LevenbergMarquardtState(trial_state(params, self.damping), scale)

    @jax.default_matmul_precision("highest")
    def propose(
        self, lin: Linearisation, state: LevenbergMarquardtState
    ) -> tuple[Params, LevenbergMarquardtState]:
        """Returns the whole step, to be taken with a unit learning rate; it is zero where it would raise the
        loss on the batch.
        """
        after = residual_at(lin, "sg.LevenbergMarquardt")
        k, n = lin.jacobian.shape
        _memory.require(  # measured: J as it is, scaled and stacked, JᵀJ and its factors
            3 * n * (k + n) * lin.residual.dtype.itemsize,
            f"Levenberg–Marquardt with {k} rows and {n} parameters",
            "fewer parameters, or fewer rows per step (`batch_size`, points) with sg.AdaptiveSpring, which "
            "needs no matrix of parameters, take less",
        )
        J = lin.jacobian.dense()
        before, unravel = ravel_pytree(state.scale)
        columns = jnp.sum(J**2, axis=0).astype(before.dtype)
        scale = jnp.maximum(before, columns)
        # So that a column that is as large as ever has length 1:
        scale = scale * jnp.max(_over(columns, scale))
        # Or steps along parameters with hardly any effect, as those of saturated units, would know no bounds.
        scale = jnp.maximum(scale, LEAST_COLUMN**2 * jnp.max(scale))
        # Where all columns are zero any scale will do.
        root = jnp.sqrt(jnp.where(scale > 0, scale, 1)).astype(J.dtype)
        A = J / root[None]
        damping, shift, solver = least_squares_solver(state.trial.damping, k, n)
        lam, exact = damping.astype(J.dtype), shift is damping
        factors = factorise(lambda: gram(A.T), shift.astype(J.dtype), solver, rows=A, unit=1.0)
        factors = factors if exact else factors.for_many()  # refined below

        def solve(u: Float[Array, " k"]) -> Params:
            if exact:
                x = factors.solve(A.T @ u)
                # One refinement of the seminormal equations is as good as the orthogonal factor itself.
                x = x + factors.solve(A.T @ (u - A @ x) - lam * x)
            else:
                x = cgls(A, u, lam, factors, REFINEMENTS)
            return from_pairs(unravel((x / root).astype(before.dtype)))

        step = solve(lin.residual)
        flat = ravel_pytree(to_pairs(step))[0].astype(J.dtype)
        image, scaled, lengths = J @ flat, root * flat, jnp.sqrt(columns)
        trial = replace(state.trial, damping=damping)
        scales = Scales(
            felt=dot(image, image) / dot(scaled, scaled),
            gradient=jnp.max(_over(jnp.abs(J.T @ lin.residual), lengths)),
            rounding=_rounding(lin.params, lengths),
        )
        found = attempt(lin, trial, step, image, solve, after, self.bend, scales)
        return found.step, LevenbergMarquardtState(found.state, unravel(scale))

    def converged(self, state: LevenbergMarquardtState) -> Bool[Array, ""]:
        """Returns whether the last step found nothing more to gain on its rows, to rounding."""
        return state.trial.converged > 0

    def solved(self, state: LevenbergMarquardtState) -> Bool[Array, ""]:
        """Returns whether rounding hid all that there was to gain on the rows of the last step."""
        return state.trial.solved

    def report(self, state: LevenbergMarquardtState) -> dict[str, Scalar]:
        """Returns `damping`, `gain` (actual over predicted decrease), how many steps were `refused`, and
        `converged`.
        """
        return state.trial.report()


def _over(a: Float[Array, " n"], b: Float[Array, " n"]) -> Float[Array, " n"]:
    """a/b, and 0 where b is 0."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


def _rounding(params: Params | None, lengths: Float[Array, " n"]) -> Float[Array, ""]:
    """How far the rounding of the parameters moves the residual; 0 where they are not known."""
    if params is None:
        return jnp.zeros((), lengths.dtype)
    x = ravel_pytree(to_pairs(params))[0]
    return jnp.finfo(x.dtype).eps * jnp.linalg.norm(lengths * x)
