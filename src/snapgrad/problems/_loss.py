"""Any loss on the outputs of a model, from two functions and data."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Scalar

from .._checks import Given, trainable
from .._contracts import AbstractProblem, Linearisation, Params
from ..operators import linearise
from ._least_squares import Row, mean_over_rows, prepare


class LossProblem(AbstractProblem):
    """Train a model of your own under any loss: minimise the mean over rows of loss(model(params, row), row).

    A step is a natural gradient in the space of outputs. Where rows outnumber parameters these are measured
    by the Hessian of the loss, which for a linear model is Newton's method: see `loss` in `sg.linearise`.
    For ½‖v − y‖² it is `sg.LeastSquares`.

    **Arguments:**

    - `model`: `model(params, row)`, the output v for one row of the data: a real number, or an array of them.
    - `loss`: `loss(v, row)`, a real number, twice differentiable almost everywhere; `optax.losses` has many.
    - `data`: any pytree of arrays that share their first axis, the rows; `row` has the same structure.
    - `init`: initial parameters, or a function of a random key that makes them. Any pytree; leaves that are
      not floating-point arrays, such as the activation functions of an equinox model, are held fixed.

    `num_rows` is the number of rows. `TypeError` or `ValueError` if the leaves of `data` differ in length, or
    output or loss of a row are not real.

    ```python
    x = jnp.linspace(-1, 1, 40)
    data = x, (x + 0.3 * jnp.sin(40 * x) > 0).astype(float)
    logistic = lambda v, row: optax.losses.sigmoid_binary_cross_entropy(v, row[1])
    problem = sg.LossProblem(lambda p, row: p["w"] * row[0] + p["b"], logistic, data, {"w": 0.0, "b": 0.0})
    result = sg.fit(problem, jax.random.key(0), steps=20)
    result.params, result.history["loss"][-1]
    ```
    """

    model: Callable
    loss: Callable
    data: PyTree
    first: Params | None  # the trained part of the initial parameters, where these were given
    maker: Callable | None  # the function of a key that makes them, where that was given
    fixed: PyTree  # the leaves that are not trained

    def __init__(
        self,
        model: Given[Callable, ""],
        loss: Given[Callable, ""],
        data: PyTree,
        init: Params,
    ):
        self.model = model
        self.data, self.first, self.maker, self.fixed, out = prepare("model", model, data, init)
        if not callable(loss):
            raise TypeError(f"`loss` must be a function of (output, row), got {type(loss).__name__}.")
        self.loss = loss
        row = jax.tree.map(lambda leaf: leaf[0], self.data)
        value = eqx.filter_eval_shape(lambda v, row: jax.tree.map(jnp.asarray, loss(v, row)), out, row)
        good = isinstance(value, jax.ShapeDtypeStruct) and value.shape == ()
        if not (good and jnp.issubdtype(value.dtype, jnp.floating)):
            raise TypeError(f"`loss` must return one real number for an output and its row, got {value}.")

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
        """Returns gradients of the loss of some rows, the Jacobian of their outputs, and the loss after a
        trial step.
        """
        return linearise(Row(self.model, self.fixed), params, self._take(batch), loss=self.loss)

    def metrics(self, params: Params) -> dict[str, Scalar]:
        """Returns `loss`: its mean over all rows."""
        return {"loss": mean_over_rows(lambda row: self._value(params, row), self.data)}

    def check(self, params: Params, batch: Int[Array, " k"]) -> None:
        """Raises `ValueError` that names a row whose loss is NaN or infinite."""
        bad = np.flatnonzero(~np.isfinite(np.asarray(self._values(params, self._take(batch)))))
        if bad.size:
            raise ValueError(
                f"`loss` is NaN or infinite in {bad.size} of {len(batch)} rows, for example in row "
                f"{int(batch[int(bad[0])])} of `data`, at the current parameters."
            )

    def _take(self, batch: Int[Array, " k"]) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[batch], self.data)

    def _value(self, params: Params, row: PyTree) -> Scalar:
        return self.loss(Row(self.model, self.fixed)(params, row), row)

    @eqx.filter_jit
    def _values(self, params: Params, rows: PyTree) -> Float[Array, " k"]:
        return jax.vmap(self._value, (None, 0))(params, rows)
