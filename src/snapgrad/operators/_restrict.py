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

    residual_at: Callable[[Params], Array]
    selection: Selection = eqx.field(static=True)

    def __call__(self, step: Params) -> Array:
        """The residual at params − step."""
        return self.residual_at(self.selection.fill(step))


def restrict(lin: Any, keep: Any) -> Any:
    """The same linearisation on some of the parameters, the others being held fixed.

    `lin` is a `Linearisation`, or a tree of them such as the pair that `sg.TwoBatch` takes; `keep` is as in
    `jac.restrict`. Directions have the structure of `keep`, and so have the steps that `residual_at` takes.

    ```python
    residual = lambda p, x: jnp.tanh(x @ p["body"]) @ p["head"] - 1
    params, points = {"body": jnp.ones((2, 3)), "head": jnp.ones(3)}, jnp.linspace(-1, 1, 8).reshape(4, 2)
    lin = sg.operators.restrict(sg.linearise(residual, params, points), {"body": False, "head": True})
    direction, _ = sg.SNG(1e-3).direction(lin, ())          # {"body": None, "head": ...}
    ```
    """
    return jax.tree.map(lambda one: _restrict(one, keep), lin, is_leaf=lambda x: isinstance(x, Linearisation))


def _restrict(lin: Linearisation, keep: Any) -> Linearisation:
    jac, trial, params = as_rows(lin.jacobian), lin.residual_at, lin.params
    selection = select(jac._parameters(), keep)
    if trial is not None:
        trial = RestrictedTrial(trial, selection)
    if params is not None:
        params = selection.take(params)
    return Linearisation(lin.residual, jac.restrict(keep), trial, params=params, has_loss=lin.has_loss)
