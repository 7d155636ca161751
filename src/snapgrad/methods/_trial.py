"""What the self-tuning methods share: try a step on the batch, bend it, and let the damping follow."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, Bool, Float, Int

from .._checks import float_params
from .._contracts import Linearisation, Params, tree_where

PROBE = 0.1
"""The fraction of a step at which its curvature is measured: small for accuracy, large against rounding."""
MOST_BEND = 3 / 16
"""The second-order part of a step is at most this fraction of the first-order part, or neither is a guide."""
MOST_FALL, MOST_RISE = 1 / 5, 2
"""A step that is taken multiplies the damping by a number between these two."""
FIRST_RAISE, MOST_RAISE = 2, 1e3
"""A refused step multiplies the damping by the first, the next one by twice that, up to the second."""
DAMPING_POWER = 3
"""The relative damping stays between eps to this power, where no factorisation feels it, and its inverse."""
SIGMAS = 3
"""A change of the loss is seen if it is so many standard deviations of what rounding does to the loss."""
NOISY = 4
"""A residual no larger than so many times its rounding error is nothing else."""
FALLING = 1 / 4
"""At round-off steps are taken unseen while each predicts at most this part of the last one's decrease."""
BY_LOSS, BY_GRADIENT, BY_STEP = 1, 2, 3
"""The tests of convergence, as they are reported."""


class TrialState(eqx.Module):
    """The damping, and what the trials so far have taught."""

    damping: Float[Array, ""]  # relative to the size of the matrix that it is added to
    raise_by: Float[Array, ""]  # the factor of the next refusal
    gain: Float[Array, ""]  # actual over predicted decrease at the last step
    step: Int[Array, ""]  # steps tried
    refused: Int[Array, ""]  # steps that would have raised the loss
    predicted: Float[Array, ""]  # decrease of the loss at the last step
    converged: Int[Array, ""]  # which test the last step has met; 0 for none
    solved: Bool[Array, ""]  # whether rounding hid all there was to gain at the last step, by any damping

    def report(self) -> dict[str, Array]:
        """The numbers worth watching."""
        numbers = {"damping": self.damping, "gain": self.gain, "refused": self.refused}
        return {**numbers, "converged": self.converged}


class Scales(NamedTuple):
    """What the columns of J say of a step and of its round-off."""

    felt: Float[Array, ""]  # the least damping with which the step would be another
    gradient: Float[Array, ""]  # the largest component of the residual along a column
    rounding: Float[Array, ""]  # how far the rounding of the parameters moves the residual


class Trial(NamedTuple):
    """The step (zero if refused), whether it is taken, the next state, and how straight the way was."""

    step: Params
    taken: Bool[Array, ""]
    state: TrialState
    turn: Float[Array, ""]  # the squared relative change of J along the step, where the loss is ½‖r‖²


def trial_state(params: Params, damping: Float[Array, ""]) -> TrialState:
    """The state before the first trial, in the real dtype of the parameters."""
    dtype = real_dtype(params)
    return TrialState(
        damping=damping.astype(dtype),
        raise_by=jnp.asarray(FIRST_RAISE, dtype),
        gain=jnp.zeros((), dtype),
        step=jnp.zeros((), int),
        refused=jnp.zeros((), int),
        predicted=jnp.full((), jnp.finfo(jnp.float32).max, dtype),  # finite in any type
        converged=jnp.zeros((), int),
        solved=jnp.zeros((), bool),
    )


def real_dtype(params: Params) -> Any:
    """The dtype of real numbers beside these parameters."""
    return jnp.finfo(jnp.result_type(*jax.tree.leaves(float_params("params", params)))).dtype


def residual_at(lin: Linearisation, method: str) -> Callable[[Params], Array]:
    """The trial step of a linearisation; `ValueError` if it has none, or none that tells a loss."""
    if not lin.has_loss:
        raise ValueError(
            f"`lin` must have a loss on its batch (`has_loss`) for {method}, which tries its steps there. "
            f"Where samples follow the parameters use sg.methods.FisherSpring, sg.Spring or sg.SNG."
        )
    if lin.residual_at is None:
        raise ValueError(
            f"`lin` must carry `residual_at` for {method}, which tries its steps on the batch: "
            f"Linearisation(residual, jacobian, residual_at), as sg.linearise and the problems of sg give."
        )
    return lin.residual_at


def attempt(
    lin: Linearisation,
    state: TrialState,
    step: Params,
    image: Float[Array, " k"],
    solve: Callable[[Float[Array, " k"]], Params],
    after: Callable[[Params], Array],
    bend: bool,
    scales: Scales | None = None,
    curvature: float | Float[Array, ""] = 1.0,
) -> Trial:
    """Bend a step, and take it if it lowers the loss on the batch; the damping follows Nielsen's rule.

    `image` is J · step, `solve` is u ↦ J^{+(λ)}u, and `after` gives the residual at params − step. With
    `scales` a refusal raises the damping to what is felt at once, and the end is noticed. The loss is
    modelled as a quadratic of the given curvature in function space. Only for ½‖r‖² a step is bent.
    """
    r = lin.residual
    loss = dot(r, r)
    noise = _noise(loss, scales)
    if bend and lin.loss_at is None:
        bent, second = bent_step(r, step, image, solve, after, noise)
        new = after(bent)
    else:
        bent, new = step, after(step)
        second = 2 * (new - r + image)
    actual = decrease(lin, bent, image, new)
    predicted = dot(image, 2 * r - curvature * image)
    hidden = noise * (jnp.sqrt(loss) + noise)  # the most that rounding does to the loss
    # What it does if each row errs on its own, before the step and after.
    unseen = SIGMAS * noise * jnp.sqrt(8 * loss / r.size)
    falling = (predicted <= hidden) & (predicted <= FALLING * state.predicted)
    allowed, blind = jnp.maximum(unseen, jnp.where(falling, hidden, 0)), predicted < unseen
    # A NaN after the step is a refusal; one before it is left to the guard of the contract.
    taken = (actual > -allowed) | ~jnp.isfinite(loss)
    gain = jnp.where(blind & taken, 1, actual / jnp.where(predicted > 0, predicted, 1))
    trusted = jnp.clip(1 - (2 * gain - 1) ** 3, MOST_FALL, MOST_RISE)
    felt = 0 if scales is None else jnp.where(scales.felt > 0, scales.felt, 0)  # it may be NaN
    damping = jnp.where(taken, state.damping * trusted, jnp.maximum(state.damping * state.raise_by, felt))
    dtype = state.damping.dtype
    least = jnp.finfo(dtype).eps ** DAMPING_POWER
    raised = jnp.minimum(2 * state.raise_by, MOST_RAISE)
    state = TrialState(
        damping=jnp.clip(damping, least, 1 / least).astype(dtype),
        raise_by=jnp.where(taken, FIRST_RAISE, raised).astype(dtype),
        gain=jnp.where(jnp.isfinite(gain), gain, -1.0).astype(dtype),
        step=state.step + 1,
        refused=state.refused + jnp.where(taken, 0, 1),
        predicted=jnp.where(jnp.isfinite(predicted), predicted, state.predicted).astype(dtype),
        converged=_test(hidden, taken, predicted, state.predicted, _unmoved(lin.params, step), scales),
        solved=_solved(predicted, unseen, scales) | (loss <= (NOISY * noise) ** 2),
    )
    turn = (dot(second, second) / dot(image, image)).astype(dtype)
    return Trial(tree_where(taken, bent, jax.tree.map(jnp.zeros_like, bent)), taken, state, turn)


def decrease(
    lin: Linearisation, step: Params, image: Float[Array, " k"], new: Float[Array, " k"]
) -> Float[Array, ""]:
    """Twice what the batch's loss falls by, from its residual after the step; −∞ where that is not finite."""
    r = lin.residual
    if lin.loss_at is None:
        return dot(r - new, r + new)
    before, after = lin.loss_at(jax.tree.map(jnp.zeros_like, step)), lin.loss_at(step)
    # A change that rounding of the loss would hide is known from the gradient, along the step.
    seen = jnp.abs(before - after) > jnp.sqrt(jnp.finfo(before.dtype).eps) * jnp.abs(before)
    change = jnp.where(seen, 2 * (before - after), dot(r + new, image))
    return jnp.where(jnp.isfinite(after), change, -jnp.inf)


def _noise(loss: Float[Array, ""], scales: Scales | None) -> Float[Array, ""]:
    """The rounding error of the residual, its own and that of the parameters; 0 where it is not known."""
    if scales is None:
        return jnp.zeros_like(loss)
    return jnp.maximum(jnp.finfo(loss.dtype).eps * jnp.sqrt(loss), scales.rounding.astype(loss.dtype))


def _test(
    hidden: Float[Array, ""],
    taken: Bool[Array, ""],
    predicted: Float[Array, ""],
    before: Float[Array, ""],
    still: Bool[Array, ""],
    scales: Scales | None,
) -> Int[Array, ""]:
    """Which test says that nothing is left to gain: the loss, the gradient or the step; 0 for none.

    A decrease that rounding hides is not enough: a step may predict so little for its damping alone. Steps
    that are taken must go on predicting as much, since their damping falls; after a refusal the gradient,
    which knows no damping, must say the same.
    """
    if scales is None:
        return jnp.where(still, BY_STEP, 0)
    steady = (predicted > FALLING * before) & (FALLING * predicted < before)
    ended = (predicted <= hidden) & jnp.where(taken, steady, _flat(scales, hidden))
    return jnp.where(ended, jnp.where(taken, BY_LOSS, BY_GRADIENT), jnp.where(still, BY_STEP, 0))


def _solved(predicted: Float[Array, ""], hidden: Float[Array, ""], scales: Scales | None) -> Bool[Array, ""]:
    """Whether rounding hides what a step would gain, with this damping or any other."""
    return jnp.zeros((), bool) if scales is None else (predicted <= hidden) & _flat(scales, hidden)


def _flat(scales: Scales, hidden: Float[Array, ""]) -> Bool[Array, ""]:
    """Whether rounding hides what a step along any one column of J would gain."""
    return scales.gradient**2 <= hidden


def _unmoved(params: Params | None, step: Params) -> Bool[Array, ""]:
    """Whether a step is too short to change any parameter, where these are known."""
    if params is None:
        return jnp.zeros((), bool)
    same = jax.tree.map(lambda p, s: jnp.all(p - s.astype(p.dtype) == p), params, step)
    return jnp.stack(jax.tree.leaves(same)).all()


def bent_step(
    r: Float[Array, " k"],
    step: Params,
    image: Float[Array, " k"],
    solve: Callable[[Float[Array, " k"]], Params],
    after: Callable[[Params], Array],
    noise: Float[Array, ""],
) -> tuple[Params, Float[Array, " k"]]:
    """The step with its second-order part, −½ J⁺ d²r/ds² along it (geodesic acceleration); and d²r/ds².

    It comes from one more residual, and lets a step follow a narrow curved valley. Where the rounding error
    of the residual, `noise`, is all that there is to see, the step stays straight.
    """
    probe = after(jax.tree.map(lambda s: PROBE * s, step))
    second = 2 / PROBE * ((probe - r) / PROBE + image)
    second = jnp.where(dot(second, second) > (2 / PROBE**2 * noise) ** 2, second, 0)
    part = jax.tree.map(lambda x: x / 2, solve(second))
    size = norm(part)
    limit = jnp.minimum(1, MOST_BEND * norm(step) / jnp.where(size > 0, size, 1))
    limit = jnp.where(jnp.isfinite(limit), limit, 0)
    bent = jax.tree.map(lambda s, p: s + jnp.where(limit > 0, limit.astype(p.dtype) * p, 0), step, part)
    return bent, second


def dot(a: Float[Array, " k"], b: Float[Array, " k"]) -> Float[Array, ""]:
    """A · b at full precision."""
    return jnp.vdot(a, b, precision=Precision.HIGHEST)


def norm(tree: Params) -> Float[Array, ""]:
    """The Euclidean norm of all leaves together."""
    return jnp.sqrt(sum(jnp.sum(jnp.abs(x) ** 2) for x in jax.tree.leaves(tree)))
