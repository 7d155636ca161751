"""The kernel of a batch at a damping relative to its size: in memory and factored, or known by products."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._contracts import AbstractJacobian, Params
from ..linalg import CG, CGResult, factorise
from ._matrix_free import matrix_free
from ._policy import affordable_solver, bearable_damping, trusted_part

PROBES = 8
"""Random vectors that estimate the part of the kernel's trace that a sketch has missed."""


class System(NamedTuple):
    """J^{+(λ)} for λ = `damping` times the mean of the kernel's diagonal."""

    damping: Float[Array, ""]  # as asked for, or raised to what the solver can bear
    explained: Float[Array, ""]  # the mean fraction of a row that the others of its batch explain
    pinv: Callable[[Float[Array, " k"]], Params]
    solves: list[CGResult]  # each call of `pinv` by conjugate gradients adds what it took


def linear_system(
    jacobian: AbstractJacobian, damping: Float[Array, ""], solver: Literal["auto"] | CG, dtype: Any
) -> System:
    """The system of a batch whose residual is of this type, at a relative damping."""
    if isinstance(solver, CG):
        return _sketched(jacobian, damping, solver, dtype)
    return _factored(jacobian, damping)


def _factored(jacobian: AbstractJacobian, damping: Float[Array, ""]) -> System:
    """By one factorisation of the kernel."""
    k, n = jacobian.shape
    K = jacobian.gram()
    unit = jnp.trace(K) / k
    damping = bearable_damping(damping, n, k)
    lam = (damping * unit).astype(K.dtype)
    rows = lambda: jacobian.dense().T  # noqa: E731
    solver = affordable_solver(n, k)
    factors = factorise(K, lam, solver, rows=rows, unit=trusted_part(solver) * unit)
    explained = _explained(factors.inverse_diagonal(), lam, unit)
    return System(damping, explained, lambda u: jacobian.rmv(factors.solve(u)), [])


def _sketched(jacobian: AbstractJacobian, damping: Float[Array, ""], settings: CG, dtype: Any) -> System:
    """By conjugate gradients, with what the sketch of their preconditioner knows of the kernel.

    The trace is that of the sketch and, from a few probes, of the rest (Nyström++; Persson, Cortinovis and
    Kressner, 2022). In the diagonal of (K + λI)⁻¹ the rest counts as a multiple of the identity.
    """
    k, _ = jacobian.shape
    free = matrix_free(jacobian, settings, dtype)
    U, s = free.low.vectors, free.low.values
    probes = jax.random.rademacher(jax.random.key(1), (PROBES, U.shape[0]), s.dtype)
    whole = jax.vmap(jnp.vdot)(probes, jax.lax.map(free.product, probes, batch_size=PROBES))
    missed = jnp.maximum(jnp.mean(whole - (probes @ U) ** 2 @ s), 0)
    unit = (jnp.sum(s) + missed) / k
    # Products are known to eps‖K‖ only: less damping is not felt, and costs iterations without end.
    least = jnp.finfo(s.dtype).eps * jnp.max(s, initial=unit) / jnp.where(unit > 0, unit, 1)
    damping = jnp.maximum(damping, least.astype(damping.dtype))
    lam = damping.astype(s.dtype) * unit
    inverse_diagonal = U**2 @ (1 / (s + lam))
    left = U.shape[0] - U.shape[1]  # directions that the sketch does not know
    if left:
        inverse_diagonal += jnp.maximum(1 - jnp.sum(U**2, axis=1), 0) / (missed / left + lam)
    solves: list[CGResult] = []

    def pinv(u: Float[Array, " k"]) -> Params:
        step, found = free.pinv(u, lam)
        solves.append(found)
        return step

    return System(damping, _explained(inverse_diagonal, lam, unit), pinv, solves)


def _explained(
    inverse_diagonal: Float[Array, " k"], lam: Float[Array, ""], unit: Float[Array, ""]
) -> Float[Array, ""]:
    apart = 1 / inverse_diagonal - lam  # squared distance of a row from the span of the others
    return 1 - jnp.mean(apart) / unit
