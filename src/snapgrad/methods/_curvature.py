"""The Hessian H of a function-space loss, as far as the steps so far have felt it."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._trial import dot

WINDOW = 50
"""Averages remember about so many steps."""
FIRST_PROBE = 1e-3
"""The fraction of a unit step at which H is first felt: it may be large."""
MOST_JUMP = 16
"""A squared secant counts as at most so many times their mean."""


class Curvature(eqx.Module):
    """Secants h = ‖Δr‖/‖Δv‖ on the batch; all of them are one for least squares, where H = I."""

    square: Float[Array, ""]  # mean of h²; 0 before the first
    along: Float[Array, ""]  # mean of Δv·Δr/‖Δv‖²
    last: Float[Array, ""]  # h² on the last batch

    @property
    def norm(self) -> Float[Array, ""]:
        """By what a step in function space is divided; more than the mean where H is large on this batch."""
        return jnp.sqrt(jnp.maximum(self.square, self.last / 4))

    @property
    def agreement(self) -> Float[Array, ""]:
        """How well Δr and Δv are aligned, from 1 for H ∝ I down to 0: cos⁴ of their angle."""
        return jnp.where(self.square > 0, jnp.maximum(self.along, 0) ** 4 / self.square**2, 1)

    def update(
        self, time: Float[Array, ""], change: Float[Array, " k"], image: Float[Array, " k"]
    ) -> "Curvature":
        """With one more secant: r changes by `change` where v changes by `image`."""
        dtype, size = self.square.dtype, dot(image, image)
        known = self.square > 0
        square = (dot(change, change) / size).astype(dtype)
        along = (dot(image, change) / size).astype(dtype)
        ok = jnp.isfinite(square) & (square > 0)
        limit = jnp.where(known, jnp.sqrt(jnp.minimum(1, MOST_JUMP * self.square / square)), 1)
        square, along = limit**2 * square, limit * along
        weight = jnp.where(known, 1 / jnp.minimum(WINDOW, time), 1)
        return Curvature(
            square=jnp.where(ok, self.square + weight * (square - self.square), self.square),
            along=jnp.where(ok, self.along + weight * (along - self.along), self.along),
            last=jnp.where(ok, square, self.last),
        )


def no_curvature(dtype: jnp.dtype) -> Curvature:
    """Nothing known yet."""
    zero = jnp.zeros((), dtype)
    return Curvature(zero, zero, zero)


def identity(dtype: jnp.dtype) -> Curvature:
    """That of least squares, H = I."""
    one = jnp.ones((), dtype)
    return Curvature(one, one, one)
