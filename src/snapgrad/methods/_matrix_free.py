"""J^{+(λ)}u by conjugate gradients: products with J and Jᵀ alone, never the kernel or the rows."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from .._checks import one_of
from .._contracts import AbstractJacobian, Params
from ..linalg import CG, SOLVERS, CGResult, LowRank, Solver, cg_solve, nystrom
from ..operators import RealPairs, from_pairs
from ._pinv import pinv_apply
from ._trial import real_dtype

AnySolver: TypeAlias = Solver | Literal["cg"] | CG
"""How a step solves its system: by a factorisation, or by conjugate gradients."""


def any_solver(solver: Any, direct: tuple[str, ...] = SOLVERS) -> Any:
    """A factorisation by its name, or conjugate gradients, for which `"cg"` is short."""
    if isinstance(solver, CG):
        return solver
    return CG() if one_of("solver", solver, (*direct, "cg")) == "cg" else solver


class CGState(eqx.Module):
    """What the solves of the last step took, and how many steps so far had one that fell short."""

    steps: Int[Array, ""]
    residual: Float[Array, ""]  # the largest of them, relative
    unconverged: Int[Array, ""]


def cg_state(solver: Solver | CG, params: Params) -> CGState | tuple[()]:
    """The state before the first step; nothing for a factorisation."""
    if not isinstance(solver, CG):
        return ()
    return CGState(jnp.zeros((), int), jnp.zeros((), real_dtype(params)), jnp.zeros((), int))


def cg_after(state: Any, solves: list[CGResult], solver: Any) -> Any:
    """The state after a step with these solves."""
    if not isinstance(solver, CG):
        return state
    residual = jnp.max(jnp.stack([found.residual for found in solves]))
    missed = residual > solver.goal(residual.dtype)
    return CGState(
        steps=sum((found.steps for found in solves), start=jnp.zeros_like(state.steps)),
        residual=residual.astype(state.residual.dtype),
        unconverged=state.unconverged + jnp.where(missed, 1, 0),
    )


def cg_report(state: CGState | tuple[()]) -> dict[str, Array]:
    """`cg_steps`, `cg_residual` and `cg_unconverged`; nothing for a factorisation."""
    if not isinstance(state, CGState):
        return {}
    return {"cg_steps": state.steps, "cg_residual": state.residual, "cg_unconverged": state.unconverged}


class MatrixFree(NamedTuple):
    """The smaller of the systems (JJᵀ + λI)z = u and (JᵀJ + λI)x = Jᵀu, known by products and a sketch of it.

    The sketch serves every λ and every u, but only the rows it was made of, which are new with each batch.
    """

    settings: CG
    product: Callable[[Float[Array, " s"]], Float[Array, " s"]]  # with the matrix, of size s
    right: Callable[[Float[Array, " k"]], Float[Array, " s"]]  # from u to the right-hand side
    back: Callable[[Float[Array, " s"]], Params]  # from the solution to the parameters
    low: LowRank

    def pinv(self, u: Float[Array, " k"], damping: Float[Array, ""]) -> tuple[Params, CGResult]:
        """J^{+(λ)}u, shaped like the parameters, and how well it was solved."""
        b = self.right(u)
        found = cg_solve(
            self.product,
            b,
            damping,
            preconditioner=self.low,
            tolerance=self.settings.goal(b.dtype),
            max_steps=self.settings.max_steps,
        )
        return from_pairs(self.back(found.solution)), found


def matrix_free(jacobian: AbstractJacobian, settings: CG, dtype: Any) -> MatrixFree:
    """The system of a batch, for right-hand sides u of this type."""
    J = RealPairs(jacobian)
    k, n = J.shape
    if k <= n:
        right, back = lambda u: u, J.rmv
        product = lambda v: J.mv(J.rmv(v))  # noqa: E731
    else:
        zero, back = ravel_pytree(J.rmv(jnp.zeros(k, dtype)))
        dtype = zero.dtype
        right = lambda u: ravel_pytree(J.rmv(u))[0]  # noqa: E731
        product = lambda x: right(J.mv(back(x)))  # noqa: E731
    size = min(k, n)
    rank = min(settings.rank, size)
    low = LowRank(jnp.zeros((size, 0), dtype), jnp.zeros(0, dtype))
    if rank:
        low = nystrom(product, size=size, rank=rank, key=jax.random.key(0), dtype=dtype)
    return MatrixFree(settings, product, right, back, low)


def pinv_step(
    jacobian: AbstractJacobian,
    vector: Float[Array, " k"],
    damping: Float[Array, ""],
    solver: Solver | CG,
    state: Any,
) -> tuple[Params, Any]:
    """J^{+(λ)}u by any solver, and the state of that solver."""
    if not isinstance(solver, CG):
        return pinv_apply(jacobian, vector, damping, solver), state
    step, found = matrix_free(jacobian, solver, vector.dtype).pinv(vector, damping)
    return step, cg_after(state, [found], solver)
