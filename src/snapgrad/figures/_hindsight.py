"""SPRING at every point of a grid of step sizes and momenta, on linear problems that share their rows."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

STEP_SIZES = 2.0 ** np.arange(-6, 7)
MOMENTA = 1 - 2.0 ** -np.arange(12)
ROUNDING = 1e-13
"""What is added to the diagonal of a kernel, relative to its trace: no damping, but never singular."""


class Family(NamedTuple):
    """Least-quadratics problems with one J: errors e = θ − θ*, residuals HJe + offset."""

    jacobian: Float[Array, "m n"]
    hessian_jacobian: Float[Array, "p m n"]
    offset: Float[Array, "p m"]
    start: Float[Array, "p n"]

    @property
    def energy(self) -> Float[Array, "p n n"]:
        """JᵀHJ, the norm of errors."""
        return jnp.einsum("mn,pmo->pno", self.jacobian, self.hessian_jacobian)


class Lanes(NamedTuple):
    """Error and increment of each problem at each point of the grid."""

    error: Float[Array, "p g n"]
    increment: Float[Array, "p g n"]


def grid() -> tuple[Float[Array, " g"], Float[Array, " g"]]:
    """All pairs of a step size and a momentum."""
    sizes, momenta = np.meshgrid(STEP_SIZES, MOMENTA, indexing="ij")
    return jnp.asarray(sizes.ravel()), jnp.asarray(momenta.ravel())


def errors_over_grid(
    family: Family, key: PRNGKeyArray, sample_size: int, every: int, steps: int, stop: Callable
) -> Float[np.ndarray, "records p g"]:
    """Relative errors in the norm of JᵀHJ after each `every` steps, until `stop(errors)` or `steps`.

    Rows and factorisations do not depend on the grid, and are shared.
    """
    count = STEP_SIZES.size * MOMENTA.size
    start = jnp.broadcast_to(family.start[:, None], (len(family.start), count, family.start.shape[1]))
    lanes, found, done = Lanes(start, jnp.zeros_like(start)), [], 0
    while steps - done >= every:
        records = min(1000, steps - done) // every
        lanes, errors = _chunk(family, lanes, key, jnp.asarray(done), sample_size, every, records)
        found.append(np.asarray(errors))
        done += records * every
        if stop(np.concatenate(found)):
            break
    return np.concatenate(found)


@partial(jax.jit, static_argnums=(4, 5, 6))
def _chunk(
    family: Family, lanes: Lanes, key: PRNGKeyArray, done: Array, sample_size: int, every: int, records: int
) -> tuple[Lanes, Float[Array, "records p g"]]:
    eta, mu = grid()
    energy = family.energy
    first = jnp.einsum("pn,pno,po->p", family.start, energy, family.start)

    def step(lanes: Lanes, t: Array) -> tuple[Lanes, None]:
        m = family.jacobian.shape[0]
        rows = jax.random.choice(jax.random.fold_in(key, t), m, (sample_size,), replace=False)
        J = family.jacobian[rows]
        r = jnp.einsum("pkn,pgn->pgk", family.hessian_jacobian[:, rows], lanes.error)
        r = r + family.offset[:, None, rows] - mu[None, :, None] * (lanes.increment @ J.T)
        K = J @ J.T
        factor = jax.scipy.linalg.cho_factor(K + ROUNDING * jnp.trace(K) * jnp.eye(sample_size), lower=True)
        u = jax.scipy.linalg.cho_solve(factor, r.reshape(-1, sample_size).T).T.reshape(r.shape)
        increment = mu[None, :, None] * lanes.increment + u @ J
        return Lanes(lanes.error - eta[None, :, None] * increment, increment), None

    def record(lanes: Lanes, index: Array) -> tuple[Lanes, Array]:
        lanes, _ = jax.lax.scan(step, lanes, done + index * every + jnp.arange(every))
        square = jnp.einsum("pgn,pno,pgo->pg", lanes.error, energy, lanes.error, optimize="optimal")
        error = jnp.sqrt(square / first[:, None])
        lost = ~(error < 1e2)  # diverged for good: kept out of further arithmetic
        error = jnp.where(lost, jnp.inf, error)
        nothing = lost[..., None]
        return Lanes(jnp.where(nothing, jnp.inf, lanes.error), jnp.where(nothing, 0, lanes.increment)), error

    return jax.lax.scan(record, lanes, jnp.arange(records))
