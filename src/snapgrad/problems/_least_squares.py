"""Nonlinear least squares from a residual function and data."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Scalar

from .._checks import Given, trainable
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

    def __init__(self, residual: Given[Callable, ""], data: PyTree, init: Params):
        self.residual = residual
        self.data, self.first, self.maker, self.fixed, _ = prepare("residual", residual, data, init)

    @property
    def num_rows(self) -> int:
        """The number m of rows of the data."""
        return jax.tree.leaves(self.data)[0].shape[0]

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns the trained part of the initial parameters; None stands where a leaf is held fixed."""
        return self.first if self.maker is None else trainable("init", self.maker(key))

    def complete(self, params: Params) -> Params:
        """Returns the trained parameters together with what is held fixed: the model as it was given."""
        return eqx.combine(params, self.fixed)

    def linearise(self, params: Params, batch: Int[Array, " k"]) -> Linearisation:
        """Returns the residuals of some rows, their Jacobian, and how the residuals are after a
        trial step.
        """
        return linearise(self._row, params, self._take(batch))

    def metrics(self, params: Params) -> dict[str, Scalar]:
        """Returns `loss`: the mean over all rows of ½‖residual‖²."""
        return {"loss": mean_over_rows(lambda row: jnp.sum(self._row(params, row) ** 2) / 2, self.data)}

    def check(self, params: Params, batch: Int[Array, " k"]) -> None:
        """Raises `ValueError` that names a row whose residual is NaN or infinite."""
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
    def _row(self) -> "Row":
        return Row(self.residual, self.fixed)

    @eqx.filter_jit
    def _values(self, params: Params, rows: PyTree) -> Float[Array, "k ..."]:
        return jax.vmap(self._row, (None, 0))(params, rows)


class Row(eqx.Module):
    """A function of parameters and a row as a function of the trained parameters alone."""

    residual: Callable
    fixed: PyTree

    def __call__(self, params: Params, row: PyTree) -> Any:  # checked once, when the problem is made
        return jax.tree.map(jnp.asarray, self.residual(eqx.combine(params, self.fixed), row))


def prepare(
    name: str, fn: Any, data: PyTree, init: Any
) -> tuple[PyTree, Params | None, Callable | None, PyTree, jax.ShapeDtypeStruct]:
    """Data as arrays, initial parameters or what makes them, what is held fixed, and the output of a row.

    `fn(params, row)` is the argument of that name, checked to return real numbers.
    """
    if not callable(fn):
        raise TypeError(f"`{name}` must be a function of (params, row), got {type(fn).__name__}.")
    data = _rows(data)
    first, maker, made = None, None, init
    if _is_maker(init):
        maker, made = init, eqx.filter_eval_shape(init, jax.random.key(0))
    else:
        first = trainable("init", init)
    fixed = eqx.filter(made, _is_number, inverse=True)
    params = eqx.filter(made, _is_number) if first is None else first
    row = jax.tree.map(lambda leaf: leaf[0], data)
    out = eqx.filter_eval_shape(Row(fn, fixed), params, row)
    if not isinstance(out, jax.ShapeDtypeStruct):
        raise TypeError(f"`{name}` must return one array for a row, got {jax.tree.structure(out)}.")
    if not jnp.issubdtype(out.dtype, jnp.floating) or out.size == 0:
        raise ValueError(
            f"`{name}` must return real floating-point numbers for a row, got shape {out.shape} and "
            f"dtype {out.dtype}."
        )
    return data, first, maker, fixed, out


def mean_over_rows(fn: Callable, data: PyTree) -> Scalar:
    """The mean of a function of one row, in pieces that fit into memory."""
    rows = jax.tree.leaves(data)[0].shape[0]
    numbers = sum(leaf.size for leaf in jax.tree.leaves(data))
    piece = max(1, METRIC_NUMBERS * rows // max(1, numbers))
    return jnp.mean(jax.lax.map(fn, data, batch_size=min(piece, rows)))


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
