"""What to compare with, in the same loop: Adam, L-BFGS, dense ENGD, SNG and SPRING with fixed settings."""

from typing import Any, NamedTuple

import optax

from .._checks import one_of
from .._contracts import AbstractMethod, AbstractSampler
from ..methods import LBFGS, SGD, SNG, Auto, LineSearch, Spring
from ._evolving import Evolving
from ._hard import Hard
from ._network import is_linear
from ._problem import PINN
from ._sampling import Collocation


class Setting(NamedTuple):
    """What `sg.pinn.setting` returns: the arguments of `sg.pinn.solve` that make a method what it is."""

    method: AbstractMethod
    optimizer: Any
    sampler: AbstractSampler | None


METHODS = ("auto", "spring", "sng", "engd", "engd-w", "adam", "lbfgs")
"""The names that `sg.pinn.setting` knows."""


LINEAR_DAMPING = 1e-8
"""Where the damping starts for networks that are linear in their parameters: a step is then nearly one of
Newton's from the start, and three of them do."""


def default_method(problem: PINN) -> Auto:
    """`sg.Auto`, with hardly any damping where the network is linear in its parameters."""
    network = problem.network
    inner = network.network if isinstance(network, Evolving | Hard) else network
    return Auto(LINEAR_DAMPING) if is_linear(inner) else Auto()


def setting(name: str, problem: PINN) -> Setting:
    """A method by name, with the optimizer and the points that it needs: what to compare `sg.Auto` with.

    **Arguments:**

    - `name`: one of the names below, which `sg.pinn.METHODS` lists; `ValueError` for any other.
    - `problem`: the `sg.pinn.PINN` to be solved, from which points are drawn.

    **Returns:** the triple of `method`, `optimizer` and `sampler`, which `sg.pinn.solve` takes as options.

    - `"auto"`: the default, `sg.Auto`; for networks that are linear in their parameters with hardly any
      damping at first.
    - `"spring"`: SPRING with published settings (λ = 1e-9, μ = 0.83, η = 0.06), fresh points.
    - `"sng"`: SNG without momentum, λ = 1e-8, line search, fresh points.
    - `"engd"`: the natural gradient by orthogonal factors, λ = 1e-12, line search, one set of points.
    - `"engd-w"`: SNG with λ = 3e-12 by orthogonal factors, line search, fresh points.
    - `"adam"`: Adam at 1e-3, decaying to 1e-5 over 50,000 steps, fresh points.
    - `"lbfgs"`: `optax.lbfgs` with its own line search and a memory of 50, one set of points.

    ```python
    problem = sg.pinn.zoo("poisson-1d", hidden=(8,), points=(30, 2))
    adam = sg.pinn.setting("adam", problem)
    solution = sg.pinn.solve(problem, jax.random.key(0), steps=2, **adam._asdict())
    ```
    """
    one_of("name", name, METHODS)
    fresh, fixed = Collocation(problem, 1), Collocation(problem, None)
    if name == "auto":
        return Setting(default_method(problem), 1.0, None)
    if name == "spring":
        return Setting(Spring(1e-9, 0.83), 0.06, fresh)
    if name == "sng":
        return Setting(LineSearch(SNG(1e-8)), 1.0, fresh)
    if name == "engd":
        return Setting(LineSearch(SNG(1e-12, solver="qr")), 1.0, fixed)
    if name == "engd-w":
        return Setting(LineSearch(SNG(3e-12, solver="qr")), 1.0, fresh)
    if name == "adam":
        return Setting(SGD(), optax.adam(optax.exponential_decay(1e-3, 50_000, 1e-2, end_value=1e-5)), fresh)
    return Setting(LBFGS(), 1.0, fixed)
