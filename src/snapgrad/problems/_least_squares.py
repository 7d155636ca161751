"""Nonlinear least squares from a residual function and data."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Scalar

from .._checks import trainable
from .._contracts import AbstractProblem, Linearisation, Params
from ..operators import linearise

METRIC_NUMBERS = 2**22
"""The loss on all rows is added up in pieces whose data have about this many numbers."""


class LeastSquares(AbstractProblem):
    """Fit a model of your own to data: minimise the mean over the rows of ½‖residual(params, row)‖².

    **Arguments:**

    - `residual`: `residual(params, row)`, what is wrong with one row of the data: model minus target,
      divided by its standard deviation where that is known. A real number, or an array of them.
    - `data`: any pytree of arrays that share their first axis, the rows; `row` has the same structure.
    - `init`: initial parameters, or a function of a random key that makes them. Any pytree; leaves that are
      not floating-point arrays, such as the activation functions of an equinox model, are held fixed.

    `num_rows` is the number of rows. `TypeError` or `ValueError` if the leaves of `data` differ in length or
    the residual of a row is not real.

    ```python
    x = jnp.linspace(-1, 1, 6)
    model = eqx.nn.MLP(1, 2, 4, 1, key=jax.random.key(0))
    y = jnp.stack([jnp.sin(x), jnp.cos(x)], axis=1)
    problem = sg.LeastSquares(lambda model, row: model(row[0]) - row[1], (x[:, None], y), model)
    result = sg.fit(problem, jax.random.key(1), steps=20)
    fitted = result.params            # a model again
    ```
    """

    residual: Callable
    data: PyTree
    first: Params | None  # the trained part of the initial parameters, where these were given
    maker: Callable | None  # the function of a key that makes them, where that was given
    fixed: PyTree  # the leaves that are not trained

    def __init__(self, residual: Any, data: PyTree, init: Any):
        if not callable(residual):
            raise TypeError(f"`residual` must be a function of (params, row), got {type(residual).__name__}.")
        self.residual, self.data = residual, _rows(data)
        if _is_maker(init):
            self.first, self.maker = None, init
            made = eqx.filter_eval_shape(init, jax.random.key(0))
        else:
            self.first, self.maker, made = trainable("init", init), None, init
        self.fixed = eqx.filter(made, _is_number, inverse=True)
        params = eqx.filter(made, _is_number) if self.first is None else self.first
        row = jax.tree.map(lambda leaf: leaf[0], self.data)
        out = eqx.filter_eval_shape(_Row(residual, self.fixed), params, row)
        if not isinstance(out, jax.ShapeDtypeStruct):
            raise TypeError(f"`residual` must return one array for a row, got {jax.tree.structure(out)}.")
        if not jnp.issubdtype(out.dtype, jnp.floating) or out.size == 0:
            raise ValueError(
                f"`residual` must return real floating-point numbers for a row, got shape {out.shape} and "
                f"dtype {out.dtype}."
            )

    @property
    def num_rows(self) -> int:
        """The number of rows of the data."""
        return jax.tree.leaves(self.data)[0].shape[0]

    def init(self, key: PRNGKeyArray) -> Params:
        """The trained part of the initial parameters; None stands where a leaf is held fixed."""
        return self.first if self.maker is None else trainable("init", self.maker(key))

    def complete(self, params: Params) -> Params:
        """The trained parameters together with what is held fixed: the model as it was given."""
        return eqx.combine(params, self.fixed)

    def linearise(self, params: Params, batch: Int[Array, " k"]) -> Linearisation:
        """The residuals of some rows, their Jacobian, and the residuals after a trial step."""
        return linearise(self._row, params, self._take(batch))

    def metrics(self, params: Params) -> dict[str, Scalar]:
        """`loss`: the mean over all rows of ½‖residual‖²."""
        numbers = sum(leaf.size for leaf in jax.tree.leaves(self.data))
        piece = max(1, METRIC_NUMBERS * self.num_rows // max(1, numbers))

        def one(row: PyTree) -> Scalar:
            return jnp.sum(self._row(params, row) ** 2) / 2

        return {"loss": jnp.mean(jax.lax.map(one, self.data, batch_size=min(piece, self.num_rows)))}

    def check(self, params: Params, batch: Int[Array, " k"]) -> None:
        """`ValueError` that names a row whose residual is NaN or infinite."""
        found = np.asarray(self._values(params, self._take(batch))).reshape(len(batch), -1)
        bad = np.flatnonzero(~np.all(np.isfinite(found), axis=1))
        if bad.size:
            raise ValueError(
                f"`residual` is NaN or infinite in {bad.size} of {len(batch)} rows, for example in row "
                f"{int(batch[int(bad[0])])} of `data`, at the current parameters."
            )

    def _take(self, batch: Int[Array, " k"]) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[batch], self.data)

    @property
    def _row(self) -> "_Row":
        return _Row(self.residual, self.fixed)

    @eqx.filter_jit
    def _values(self, params: Params, rows: PyTree) -> Float[Array, "k ..."]:
        return jax.vmap(self._row, (None, 0))(params, rows)


class _Row(eqx.Module):
    """The residual of a row as a function of the trained parameters alone."""

    residual: Callable
    fixed: PyTree

    def __call__(self, params: Params, row: PyTree) -> Any:  # checked once, when the problem is made
        return jax.tree.map(jnp.asarray, self.residual(eqx.combine(params, self.fixed), row))


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct) or eqx.is_inexact_array_like(leaf)


def _is_maker(init: Any) -> bool:
    """Whether this is a function of a key; a model that can be called holds arrays."""
    return callable(init) and not any(map(_is_number, jax.tree.leaves(init)))


def _rows(data: PyTree) -> PyTree:
    """The data as arrays, checked to have the same number of rows."""
    leaves = jax.tree_util.tree_leaves_with_path(data)
    if not leaves:
        raise ValueError("`data` must hold at least one array, got an empty tree.")
    found = [(f"data{jax.tree_util.keystr(path)}", np.shape(leaf)) for path, leaf in leaves]
    for name, shape in found:
        if not shape or shape[0] == 0:
            raise ValueError(f"`{name}` must have at least one row on its first axis, got shape {shape}.")
        if shape[0] != found[0][1][0]:
            raise ValueError(
                f"`{name}` must have {found[0][1][0]} rows on its first axis like `{found[0][0]}`, got "
                f"shape {shape}."
            )
    return jax.tree.map(jnp.asarray, data)
