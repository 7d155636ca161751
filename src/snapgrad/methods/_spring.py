"""SPRING: subsampled projected-increment natural gradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Scalar

from .._checks import Given, float_params, real_scalar
from .._contracts import AbstractMethod, Linearisation, Params
from ..linalg import CG, Solver
from ._matrix_free import AnySolver, CGState, any_solver, cg_report, cg_state, pinv_step


class SpringState(eqx.Module):
    """The momentum variable φ, shaped like the parameters; with conjugate gradients what they took."""

    increment: Params
    cg: CGState | tuple[()] = ()


class Spring(AbstractMethod):
    """SPRING, natural gradient with momentum: φ ← μφ + J_S^{+(λ)}(r_S − μJ_Sφ), θ ← θ − ηφ.

    By Theorem 6.1 it is accelerated sketch-and-project on the natural-gradient subproblem. It pays most where
    the sample is small for the difficulty of the problem. Its state is φ.

    **Arguments:**

    - `damping`: the regularisation λ ≥ 0, as for `sg.SNG`.
    - `momentum`: μ in [0, 1); at 0 it is `sg.SNG`.
    - `solver`: as for `sg.SNG`.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    lin = sg.Linearisation(jnp.ones(6), sg.DenseJacobian(J))
    method = sg.Spring(damping=1e-3, momentum=0.9)
    direction, state = method.direction(lin, method.init(jnp.zeros(4)))
    ```
    """

    damping: Float[Array, ""]
    momentum: Float[Array, ""]
    solver: Solver | CG = eqx.field(static=True)

    def __init__(
        self,
        damping: Given[ArrayLike, ""] = 0.0,
        momentum: Given[ArrayLike, ""] = 0.9,
        solver: AnySolver = "auto",
    ):
        self.damping = real_scalar("damping", damping, low=0)
        self.momentum = real_scalar("momentum", momentum, low=0, below=1)
        self.solver = any_solver(solver)

    def init(self, params: Params) -> SpringState:
        """Returns the state before the first step: an increment φ = 0."""
        increment = jax.tree.map(jnp.zeros_like, float_params("params", params))
        return SpringState(increment, cg_state(self.solver, params))

    def propose(self, lin: Linearisation, state: SpringState) -> tuple[Params, SpringState]:
        """Returns the next increment φ, which is both direction and state."""
        J, r, phi = lin.jacobian, lin.residual, state.increment
        mu = self.momentum.astype(r.dtype)
        step, cg = pinv_step(J, r - mu * J.mv(phi), self.damping, self.solver, state.cg)
        phi = jax.tree.map(lambda old, new: mu.astype(old.dtype) * old + new, phi, step)
        return phi, SpringState(phi, cg)

    def report(self, state: SpringState) -> dict[str, Scalar]:
        """Returns what conjugate gradients took, `cg_steps`, `cg_residual` and `cg_unconverged`; nothing for
        other solvers.
        """
        return cg_report(state.cg)
