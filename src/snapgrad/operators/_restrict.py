"""Linearisations in which some of the parameters are held fixed."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from .._contracts import Linearisation, Params
from ._rows import as_rows
from ._selection import Selection, select


class RestrictedTrial(eqx.Module):
    """A trial step along the trained parameters alone."""

    trial: Callable[[Params], Array]
    selection: Selection = eqx.field(static=True)

    def __call__(self, step: Params) -> Array:
        """The residual, or the loss, at params − step."""
        return self.trial(self.selection.fill(step))


def restrict(lin: Any, keep: Any) -> Any:
    """Returns the same linearisation on some of the parameters, the others being held fixed.

    `lin` is a `Linearisation`, or a tree of them such as the pair that `sg.TwoBatch` takes; `keep` is as in
    `jac.restrict`. Directions have the structure of `keep`, and so have the steps that `residual_at` and
    `loss_at` take.

    ```python
    residual = lambda p, x: jnp.tanh(x @ p["body"]) @ p["head"] - 1
    params, points = {"body": jnp.ones((2, 3)), "head": jnp.ones(3)}, jnp.linspace(-1, 1, 8).reshape(4, 2)
    lin = sg.operators.restrict(sg.linearise(residual, params, points), {"body": False, "head": True})
    direction, _ = sg.SNG(1e-3).direction(lin, ())          # {"body": None, "head": ...}
    ```
    """
    return jax.tree.map(lambda one: _restrict(one, keep), lin, is_leaf=lambda x: isinstance(x, Linearisation))


def _restrict(lin: Linearisation, keep: Any) -> Linearisation:
    jac = as_rows(lin.jacobian)
    selection = select(jac._parameters(), keep)

    def trial(at: Callable | None) -> Callable | None:
        return None if at is None else RestrictedTrial(at, selection)

    return Linearisation(
        lin.residual,
        jac.restrict(keep),
        trial(lin.residual_at),
        trial(lin.loss_at),
        params=None if lin.params is None else selection.take(lin.params),
        has_loss=lin.has_loss,
    )
