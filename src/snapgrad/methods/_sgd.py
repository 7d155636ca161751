"""Plain stochastic gradients, the baseline."""

from .._checks import float_params
from .._contracts import AbstractMethod, Linearisation, Params, State


class SGD(AbstractMethod):
    """θ ← θ − η J_Sᵀ r_S, without a factor m/k.

    ```python
    direction, state = sg.SGD().direction(lin, ())
    ```
    """

    def init(self, params: Params) -> State:
        """No state."""
        float_params("params", params)
        return ()

    def propose(self, lin: Linearisation, state: State) -> tuple[Params, State]:
        """J_Sᵀ r_S."""
        return lin.jacobian.rmv(lin.residual), state
