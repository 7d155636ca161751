"""Subsampled natural gradient."""

import equinox as eqx
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Scalar

from .._checks import Given, float_params, real_scalar
from .._contracts import AbstractMethod, Linearisation, Params, State
from ..linalg import CG, Solver
from ._matrix_free import AnySolver, any_solver, cg_report, cg_state, pinv_step


class SNG(AbstractMethod):
    """Subsampled natural gradient: θ ← θ − η J_S^{+(λ)} r_S with J^{+(λ)} = Jᵀ(JJᵀ + λI)⁺.

    It is also known as minSR, ENGD-W and subsampled Gauss–Newton.

    On all rows (`sg.sampling.AllRows`) it is deterministic natural gradient descent.

    **Arguments:**

    - `damping`: the regularisation λ ≥ 0; at λ = 0 the pseudoinverse, also for rank-deficient J_S.
    - `solver`: `"auto"` (Cholesky, eigenvalues where that is not safe), `"cholesky"`, `"eigh"`, or
      `"qr"`, which forms J_S and does not square its condition number; or `"cg"`, conjugate gradients, which
      form nothing, for kernels too large to factor. `sg.CG` holds its settings and says what it reports.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    lin = sg.Linearisation(jnp.ones(6), sg.DenseJacobian(J))
    method = sg.SNG(damping=1e-3)
    direction, state = method.direction(lin, method.init(jnp.zeros(4)))
    ```
    """

    damping: Float[Array, ""]
    solver: Solver | CG = eqx.field(static=True)

    def __init__(self, damping: Given[ArrayLike, ""] = 0.0, solver: AnySolver = "auto"):
        self.damping = real_scalar("damping", damping, low=0)
        self.solver = any_solver(solver)

    def init(self, params: Params) -> State:
        """Returns the state before the first step, which only conjugate gradients need."""
        return cg_state(self.solver, float_params("params", params))

    def propose(self, lin: Linearisation, state: State) -> tuple[Params, State]:
        """Returns the subsampled natural gradient, J_S^{+(λ)} r_S."""
        return pinv_step(lin.jacobian, lin.residual, self.damping, self.solver, state)

    def report(self, state: State) -> dict[str, Scalar]:
        """Returns what conjugate gradients took, `cg_steps`, `cg_residual` and `cg_unconverged`; nothing for
        other solvers.
        """
        return cg_report(state)
