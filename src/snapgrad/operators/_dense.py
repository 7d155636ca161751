"""A Jacobian whose rows are stored."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import Precision
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from .._checks import Given, same_tree
from .._contracts import Params
from ..linalg import gram
from ..structure import Full, Leaf
from ._kernel import Source
from ._rows import AbstractFactored, AbstractRows
from ._selection import Selection


class DenseJacobian(AbstractFactored):
    """A Jacobian that is stored as it is, such as a matrix that you have.

    **Arguments:**

    - `rows`: a matrix `[k, n]` if the parameters are one vector; for a tree of parameters a tree of the same
      structure, with an array `[k, *leaf.shape]` for each leaf.

    `TypeError` for numbers that are not real floating-point ones, `ValueError` where leaves differ in k.

    ```python
    jac = sg.DenseJacobian(jnp.eye(3))                                  # parameters: a vector of three
    jac = sg.DenseJacobian({"w": jnp.ones((4, 3, 2)), "b": jnp.ones((4, 2))})     # params["w"]: [3, 2]
    rows = jax.vmap(jax.grad(lambda p, x: jnp.sin(p @ x)), (None, 0))(jnp.ones(2), jnp.ones((4, 2)))
    jac = sg.DenseJacobian(rows)                                        # what JAX itself returns
    ```
    """

    rows: PyTree[Float[Array, "k ..."]]

    def __init__(self, rows: Given[ArrayLike, "k n"]):
        leaves, tree = jax.tree_util.tree_flatten_with_path(rows)
        if not leaves:
            raise ValueError("`rows` must hold at least one array, got an empty tree.")
        arrays = []
        for path, leaf in leaves:
            name = f"rows{jax.tree_util.keystr(path)}"
            array = jnp.asarray(leaf)
            if not jnp.issubdtype(array.dtype, jnp.floating):
                raise TypeError(f"`{name}` must hold real floating-point numbers, got dtype {array.dtype}.")
            if array.ndim == 0 or array.shape[0] == 0:
                raise ValueError(
                    f"`{name}` must have at least one row on its first axis, got shape {array.shape}."
                )
            if arrays and array.shape[0] != arrays[0].shape[0]:
                raise ValueError(
                    f"`{name}` must have {arrays[0].shape[0]} rows like the leaves before it, "
                    f"got shape {array.shape}."
                )
            arrays.append(array)
        self.rows = jax.tree.unflatten(tree, arrays)

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`: how many rows there are, and how many numbers the parameters hold."""
        leaves = jax.tree.leaves(self.rows)
        k = leaves[0].shape[0]
        return k, sum(leaf.size // k for leaf in leaves)

    @property
    def outputs(self) -> int:
        """How many rows belong to one point: one."""
        return 1

    def gram(self) -> Float[Array, "k k"]:
        """Returns the kernel J Jᵀ, one number for each two rows; it is summed over the leaves of the
        parameters.
        """
        return sum((gram(leaf) for leaf in self._matrices()[1:]), start=gram(self._matrices()[0]))

    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """Multiplies the Jacobian with a tangent φ shaped like the parameters; returns J φ, one number per
        row.
        """
        same_tree("tangent", tangent, self._parameters(), "the parameters")
        products = [
            jnp.matmul(row, jnp.ravel(leaf), precision=Precision.HIGHEST)
            for row, leaf in zip(self._matrices(), jax.tree.leaves(tangent), strict=True)
        ]
        return sum(products[1:], start=products[0])

    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Multiplies the transposed Jacobian with one number per row; returns Jᵀ u, like the parameters."""
        return jax.tree.map(
            lambda leaf: jnp.tensordot(cotangent, leaf, axes=1, precision=Precision.HIGHEST), self.rows
        )

    def dense(self) -> Float[Array, "k n"]:
        """Returns J as one matrix, its columns in the order of `jax.flatten_util.ravel_pytree`."""
        return jnp.concatenate(self._matrices(), axis=1)

    def source(self, block_size: int | None = None, axis: str | None = None) -> Source:
        """Returns the rows as factors, for kernels with other blocks; they are all in memory already."""
        del block_size, axis
        leaves = self._matrices()

        def of(start: Any) -> list[Leaf]:
            del start  # one block holds all rows
            return [Full(leaf[:, None]) for leaf in leaves]

        return Source(self.shape[0], 1, self.shape[0], of, jnp.result_type(*leaves))

    def _matrices(self) -> list[Float[Array, "k _"]]:
        return [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(self.rows)]

    def _per_point(self) -> Any:
        return self.rows

    def _scale(self, weights: Float[Array, " k"]) -> AbstractRows:
        def weighted(r: Float[Array, "k ..."]) -> Float[Array, "k ..."]:
            return weights.astype(r.dtype).reshape(-1, *[1] * (r.ndim - 1)) * r

        return DenseJacobian(jax.tree.map(weighted, self.rows))

    def _moved(self) -> AbstractRows:
        return DenseJacobian(jax.tree.map(lambda r: r - jnp.mean(r, axis=0, keepdims=True), self.rows))

    def _restrict(self, selection: Selection) -> AbstractRows:
        return DenseJacobian(selection.take(self.rows))

    def _parameters(self) -> Params:
        return jax.tree.map(lambda r: jax.ShapeDtypeStruct(r.shape[1:], r.dtype), self.rows)
