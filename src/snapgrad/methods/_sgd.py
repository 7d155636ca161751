"""Plain stochastic gradients, the baseline."""

from .._checks import float_params
from .._contracts import AbstractMethod, Linearisation, Params, State


class SGD(AbstractMethod):
    """Stochastic gradient descent: θ ← θ − η J_Sᵀ r_S, without a factor m/k.

    The direction is the gradient of ½‖r_S‖² on the batch, summed over its rows. It has no state.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    lin = sg.Linearisation(jnp.ones(6), sg.DenseJacobian(J))
    direction, state = sg.SGD().direction(lin, ())                # Jᵀ r, of shape [4]
    ```
    """

    def init(self, params: Params) -> State:
        """Returns the empty state `()`: the method remembers nothing."""
        float_params("params", params)
        return ()

    def propose(self, lin: Linearisation, state: State) -> tuple[Params, State]:
        """Returns the gradient on the batch, J_Sᵀ r_S."""
        return lin.jacobian.rmv(lin.residual), state
