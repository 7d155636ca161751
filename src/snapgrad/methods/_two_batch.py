"""The two-batch proxy of earlier analyses."""

import equinox as eqx
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._checks import Given, float_params, one_of, real_scalar
from .._contracts import AbstractMethod, Linearisation, Pair, Params, State
from ..linalg import SOLVERS, Solver
from ._pinv import inverse_fisher_apply


class TwoBatch(AbstractMethod):
    """θ ← θ − η(J_{S'}ᵀJ_{S'} + λI)⁺J_Sᵀr_S, gradient and preconditioner from independent batches.

    It takes a pair `(lin, other_lin)`: the gradient comes from the first, the preconditioner from the
    second. With both the same it is `sg.SNG`. It is here for comparison: at small sample sizes it is
    far less stable than `sg.SNG` (Appendix A). In `sg.run` and `sg.fit` such pairs come from
    `sg.sampling.TwoBatches`; a single linearisation is a `TypeError`.

    **Arguments:**

    - `damping`: the regularisation λ ≥ 0.
    - `solver`: as for `sg.SNG`; it matters only where a batch has more rows than there are parameters.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    lin = sg.Linearisation(jnp.ones(6), sg.DenseJacobian(J))
    other = sg.Linearisation(jnp.zeros(6), sg.DenseJacobian(J[::-1]))
    direction, state = sg.TwoBatch(damping=0.1).direction((lin, other), ())
    ```
    """

    damping: Float[Array, ""]
    solver: Solver = eqx.field(static=True)

    def __init__(self, damping: Given[ArrayLike, ""] = 0.0, solver: Solver = "auto"):
        self.damping = real_scalar("damping", damping, low=0)
        self.solver = one_of("solver", solver, SOLVERS)

    def init(self, params: Params) -> State:
        """Returns the empty state `()`: the method remembers nothing."""
        float_params("params", params)
        return ()

    def propose(
        self, lin: Given[Pair | tuple[Linearisation, Linearisation], ""], state: State
    ) -> tuple[Params, State]:
        """Returns the gradient on the first batch, preconditioned on the second: (J_{S'}ᵀJ_{S'} +
        λI)⁺J_Sᵀr_S.
        """
        if not (isinstance(lin, tuple) and len(lin) == 2):
            raise TypeError(
                f"`lin` must be a pair (lin, other_lin) of linearisations for sg.TwoBatch, got "
                f"{type(lin).__name__}; in `sg.run`, use the sampler sg.sampling.TwoBatches."
            )
        first, second = lin
        gradient = first.jacobian.rmv(first.residual)
        return inverse_fisher_apply(second.jacobian, gradient, self.damping, self.solver), state
