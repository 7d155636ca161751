"""A model and a loss on its outputs, or least squares, in one line."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from .._contracts import Batch, Linearisation, Params
from ._jacobian import jacobian
from ._structured import StructuredJacobian, join_function, split_function

LEAST_CURVATURE = 0.01
"""Rows with a large gradient count as having at least this part of the mean curvature: a loss may be flat."""


def linearise(
    residual_fn: Callable, params: Params, batch: Batch, *, loss: Callable | None = None, **options: Any
) -> Linearisation:
    """The problem min ½‖r(θ)‖², or min Σ loss(v_θ), seen from the current parameters: r_S, J_S, a trial step.

    **Arguments:**

    - `residual_fn`: `residual_fn(params, x)` for one point; a real number, or an array of them, each of which
      becomes a row. With a `loss` it is the model.
    - `params`: any pytree; leaves that are not floating-point arrays, such as activation functions, are held
      fixed.
    - `batch`: a pytree of arrays that share their first axis, the points.
    - `loss`: `loss(v, x)` of one point, a real number, where v = `residual_fn(params, x)` is the output. The
      residual is then ∇L(v), and the Jacobian ∂v/∂θ. Where rows outnumber parameters both are in units of the
      loss: with L'' = RRᵀ they are R⁻¹∇L and Rᵀ∂v/∂θ, so that JᵀJ is the Gauss–Newton matrix (Fisher's, for
      minus a log-likelihood) and Jᵀr the gradient. With fewer rows that would overrate rows that are right
      already.
    - `options`: those of `sg.jacobian`.

    **Returns:** a `sg.Linearisation`, which any method takes, self-tuning ones too. `TypeError` if the loss
    is not one real number.

    ```python
    x = jnp.linspace(0, 1, 20)
    params = {"a": jnp.ones(()), "b": jnp.zeros(())}
    lin = sg.linearise(lambda p, xy: p["a"] * xy[0] + p["b"] - xy[1], params, (x, 3 * x - 1))
    step, state = sg.SNG(damping=1e-6).direction(lin, ())
    count = lambda v, xy: jnp.exp(v) - xy[1] * v
    lin = sg.linearise(lambda p, xy: p["a"] * xy[0] + p["b"], params, (x, jnp.round(3 * x)), loss=count)
    ```
    """
    if loss is None:
        jac = jacobian(residual_fn, params, batch, **options)
        return Linearisation(jac.values(), jac, jax.tree_util.Partial(_after, jac), params=jac.params)
    outputs = jacobian(residual_fn, params, batch, **options)
    dynamic, static = split_function(loss)
    trial = _Trial(outputs, jax.tree.map(jnp.asarray, batch), dynamic, static)
    values = trial.shaped(outputs.values())
    gradients = trial.each(jax.grad, values)
    jac, inverses = outputs, None
    if outputs.shape[0] >= outputs.shape[1]:
        roots, inverses = _roots(trial.each(jax.hessian, values), gradients)
        jac = jacobian(_Scaled(residual_fn), params, (batch, roots), **options)
    residual_at = jax.tree_util.Partial(_residual_after, trial, inverses)
    loss_at = jax.tree_util.Partial(_loss_after, trial)
    return Linearisation(_scaled(inverses, gradients), jac, residual_at, loss_at, params=jac.params)


def _after(jac: StructuredJacobian, step: Params) -> Float[Array, " k"]:
    """The values at params − step, on the same points."""
    moved = jax.tree.map(lambda p, s: p - s.astype(p.dtype), jac.params, step)
    return eqx.tree_at(lambda j: j.params, jac, moved).values()


class _Scaled(eqx.Module):
    """The outputs of a point in the units that a root R of the Hessian says: Rᵀv."""

    fn: Callable

    def __call__(self, params: Params, point: tuple[Any, Float[Array, "c c"]]) -> Float[Array, " c"]:
        return point[1].T @ jnp.ravel(self.fn(params, point[0]))


class _Trial(eqx.Module):
    """The model on a batch, and the loss of its outputs."""

    outputs: StructuredJacobian
    batch: Batch
    loss_arrays: Any
    loss_static: Any = eqx.field(static=True)

    def shaped(self, values: Float[Array, " k"]) -> Float[Array, "points c"]:
        """One row of outputs for each point."""
        return values.reshape(self.outputs.points, -1)

    def one(self, output: Float[Array, " c"], x: Any) -> Scalar:
        """The loss of one point."""
        loss = join_function(self.loss_arrays, self.loss_static)
        value = loss(output.reshape(self.outputs.output[0]), x)
        if jnp.shape(value) != () or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise TypeError(
                f"`loss` must return one real number for the output of a point, got shape {jnp.shape(value)} "
                f"and dtype {jnp.result_type(value)}."
            )
        return value

    def each(self, transform: Callable, values: Float[Array, "points c"]) -> Float[Array, "points ..."]:
        """A transform of the loss, such as its gradient, at each point."""
        return jax.vmap(transform(self.one))(values, self.batch)


def _residual_after(
    trial: _Trial, inverses: Float[Array, "points c c"] | None, step: Params
) -> Float[Array, " k"]:
    values = trial.shaped(_after(trial.outputs, step))
    return _scaled(inverses, trial.each(jax.grad, values))


def _loss_after(trial: _Trial, step: Params) -> Scalar:
    return jnp.sum(trial.each(lambda loss: loss, trial.shaped(_after(trial.outputs, step))))


def _scaled(
    inverses: Float[Array, "points c c"] | None, gradients: Float[Array, "points c"]
) -> Float[Array, " k"]:
    if inverses is None:
        return jnp.ravel(gradients)
    return jnp.ravel(jnp.einsum("pij,pj->pi", inverses, gradients, precision="highest"))


def _roots(
    hessians: Float[Array, "points c c"], gradients: Float[Array, "points c"]
) -> tuple[Float[Array, "points c c"], Float[Array, "points c c"]]:
    """R with RRᵀ the absolute value of each Hessian, raised where a loss is steep but straight; and R⁻¹."""
    values, vectors = jnp.linalg.eigh(hessians) if hessians.shape[-1] > 1 else (hessians[..., 0], hessians**0)
    values, squares = jnp.abs(values), jnp.sum(gradients**2, axis=-1)
    mean = jnp.mean(values)
    steep = jnp.minimum(1, squares / jnp.where(jnp.mean(squares) > 0, jnp.mean(squares), 1))
    least = jnp.maximum(LEAST_CURVATURE * steep, jnp.finfo(values.dtype).eps) * mean
    values = jnp.maximum(values, least[:, None])
    size = jnp.sqrt(jnp.where(values > 0, values, 1))
    return vectors * size[:, None, :], jnp.swapaxes(vectors / size[:, None, :], -1, -2)
