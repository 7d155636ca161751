"""The algebra of row blocks: weighted, centred and stacked Jacobians, and the kernels between them.

Each of these is a linear map of rows, T J. The kernel is T K Tᵀ, products are T (J φ) and Jᵀ (Tᵀ u), and a
kernel between two blocks is T (J J'ᵀ) T'ᵀ: only plain blocks ever look at factors.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, Float

from .._checks import real_array
from .._contracts import AbstractJacobian, Params
from ..structure.compat import jit
from ._dense import DenseJacobian
from ._rows import AbstractRows, cross_kernel
from ._sharded import ShardedJacobian, ring
from ._structured import StructuredJacobian


class ScaledJacobian(AbstractRows):
    """diag(w) J."""

    inner: AbstractJacobian
    weights: Float[Array, " k"]

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`."""
        return self.inner.shape

    @property
    def outputs(self) -> int:
        """Rows a point."""
        return _outputs(self.inner)

    def gram(self) -> Float[Array, "k k"]:
        """diag(w) K diag(w)."""
        return self.weights[:, None] * self.inner.gram() * self.weights[None, :]

    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """The weighted J φ."""
        return self.weights * self.inner.mv(tangent)

    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Jᵀ (w ∘ u)."""
        return self.inner.rmv(self.weights * cotangent)

    def dense(self) -> Float[Array, "k n"]:
        """The weighted rows."""
        return self.weights[:, None] * self.inner.dense()


class CentredJacobian(AbstractRows):
    """J − 1 (wᵀ J), with weights that sum to one, for each output of a point on its own.

    The mean is often far larger than what is left of a row once it is taken away, and in float32 would
    cancel in the kernel. So the kernel is that of rows moved by a common row, near the mean, which costs
    nothing when only deviations of the factors are multiplied; the exact mean of what remains is taken after.
    """

    inner: AbstractJacobian
    weights: Float[Array, " p"]

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`."""
        return self.inner.shape

    @property
    def outputs(self) -> int:
        """Rows a point."""
        return _outputs(self.inner)

    def gram(self) -> Float[Array, "k k"]:
        """C K Cᵀ with C = I − 1wᵀ."""
        K = _moved(self.inner).gram()
        return self._centre(self._centre(K).T).T

    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """C (J φ)."""
        return self._centre(self.inner.mv(tangent)[:, None])[:, 0]

    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Jᵀ (Cᵀ u)."""
        u = cotangent.reshape(-1, self.outputs)
        total = jnp.sum(u, axis=0, keepdims=True)
        return self.inner.rmv((u - self.weights[:, None] * total).reshape(-1))

    def dense(self) -> Float[Array, "k n"]:
        """The centred rows."""
        return self._centre(self.inner.dense())

    def _centre(self, rows: Float[Array, "k q"]) -> Float[Array, "k q"]:
        grouped = rows.reshape(-1, self.outputs, rows.shape[1])
        mean = jnp.tensordot(self.weights, grouped, axes=1, precision=Precision.HIGHEST)
        return (grouped - mean[None]).reshape(rows.shape)


class StackedJacobian(AbstractRows):
    """Blocks of rows on the same parameters, one below the other; made by `sg.stack`."""

    blocks: tuple[AbstractJacobian, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`."""
        return sum(block.shape[0] for block in self.blocks), self.blocks[0].shape[1]

    @property
    def outputs(self) -> int:
        """Rows a point, if all blocks agree, else one."""
        counts = {_outputs(block) for block in self.blocks}
        return counts.pop() if len(counts) == 1 else 1

    def gram(self) -> Float[Array, "k k"]:
        """Kernels of the blocks on the diagonal, kernels between them off it."""
        return _stacked_gram(self.blocks)

    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """J φ."""
        return jnp.concatenate([block.mv(tangent) for block in self.blocks])

    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Jᵀ u."""
        parts = [block.rmv(u) for block, u in zip(self.blocks, self._split(cotangent), strict=True)]
        return jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *parts)

    def dense(self) -> Float[Array, "k n"]:
        """J as a matrix."""
        return jnp.concatenate([block.dense() for block in self.blocks])

    def _split(self, rows: Float[Array, "k ..."]) -> list[Float[Array, "_ ..."]]:
        edges = [sum(block.shape[0] for block in self.blocks[:i]) for i in range(1, len(self.blocks))]
        return jnp.split(rows, edges)


@jit  # as a whole, so that the factors of a block are computed once for all the kernels it takes part in
def _stacked_gram(blocks: tuple[AbstractJacobian, ...]) -> Float[Array, "k k"]:
    count = len(blocks)
    grid: list[list[Any]] = [[None] * count for _ in range(count)]
    for i, a in enumerate(blocks):
        grid[i][i] = a.gram()
        for j in range(i + 1, count):
            grid[i][j] = cross(a, blocks[j])
            grid[j][i] = grid[i][j].T
    return jnp.block(grid)


def stack(blocks: Any) -> StackedJacobian:
    """Rows of several Jacobians on the same parameters, for example a PINN's interior and boundary.

    ```python
    jac = sg.stack([sg.jacobian(laplacian, params, interior).scale(w_in), sg.jacobian(u, params, edge)])
    ```
    """
    blocks = tuple(blocks)
    if not blocks:
        raise ValueError("`blocks` must hold at least one Jacobian, got none.")
    for i, block in enumerate(blocks):
        if not isinstance(block, AbstractJacobian):
            raise TypeError(f"`blocks[{i}]` must be a Jacobian, got {type(block).__name__}.")
        if block.shape[1] != blocks[0].shape[1]:
            raise ValueError(
                f"`blocks[{i}]` must have {blocks[0].shape[1]} parameters like the block before it, "
                f"got shape {block.shape}."
            )
    return StackedJacobian(blocks)


def scale(jac: AbstractJacobian, weights: Any) -> AbstractRows:
    """diag(w) J; folded into the rows where that costs nothing."""
    weights = _row_weights(jac, weights)
    if isinstance(jac, StructuredJacobian):
        old = 1.0 if jac.weights is None else jac.weights
        return eqx.tree_at(lambda j: j.weights, jac, weights * old, is_leaf=lambda x: x is None)
    if isinstance(jac, ShardedJacobian):
        return ShardedJacobian(scale(jac.inner, weights), jac.mesh)  # pyright: ignore[reportArgumentType]
    if isinstance(jac, DenseJacobian):
        rows = jax.tree.map(lambda r: weights.astype(r.dtype).reshape(-1, *[1] * (r.ndim - 1)) * r, jac.rows)
        return DenseJacobian(rows)
    if isinstance(jac, StackedJacobian):
        parts = zip(jac.blocks, jac._split(weights), strict=True)
        return StackedJacobian(tuple(scale(block, w) for block, w in parts))
    return ScaledJacobian(jac, weights)


def centre(jac: AbstractJacobian, weights: Any = None) -> CentredJacobian:
    """C J with C = I − 1wᵀ."""
    points = jac.shape[0] // _outputs(jac)
    dtype = jnp.result_type(*(leaf for leaf in jax.tree.leaves(jac) if eqx.is_inexact_array(leaf)))
    dtype = jnp.finfo(dtype).dtype
    if weights is None:
        return CentredJacobian(jac, jnp.full(points, 1 / points, dtype))
    weights = real_array("weights", weights, ndim=1, rows=points)
    total = jnp.sum(weights)
    total = eqx.error_if(total, ~(total > 0), "`weights` must have a positive sum.")
    return CentredJacobian(jac, (weights / total).astype(dtype))


def cross(a: AbstractJacobian, b: AbstractJacobian) -> Float[Array, "k q"]:
    """J J'ᵀ of two blocks of rows on the same parameters."""
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"`other` must have {a.shape[1]} parameters as well, got shape {b.shape}.")
    if isinstance(a, ScaledJacobian):
        return a.weights[:, None] * cross(a.inner, b)
    if isinstance(a, CentredJacobian):
        return a._centre(cross(_moved(a.inner), b))
    if isinstance(a, StackedJacobian):
        return jnp.concatenate([cross(block, b) for block in a.blocks])
    if isinstance(b, ScaledJacobian | CentredJacobian | StackedJacobian):
        return cross(b, a).T
    if isinstance(a, ShardedJacobian) and isinstance(b, ShardedJacobian) and a.mesh == b.mesh:
        return ring(a, b)
    if isinstance(a, _PLAIN) and isinstance(b, _PLAIN):
        return _cross_plain(a, b)
    return jnp.matmul(a.dense(), b.dense().T, precision=Precision.HIGHEST)


_PLAIN = (StructuredJacobian, DenseJacobian)


@jit
def _cross_plain(a: Any, b: Any) -> Float[Array, "k q"]:
    return cross_kernel(a.source(), b.source())


def _moved(jac: AbstractJacobian) -> AbstractJacobian:
    """The same rows less a common row, which centring takes away anyway (see `CentredJacobian`)."""
    if isinstance(jac, DenseJacobian):
        return DenseJacobian(jax.tree.map(lambda r: r - jnp.mean(r, axis=0, keepdims=True), jac.rows))
    if isinstance(jac, StructuredJacobian):
        return jac.move()
    if isinstance(jac, ShardedJacobian):
        return ShardedJacobian(_moved(jac.inner), jac.mesh)  # pyright: ignore[reportArgumentType]
    return jac


def _outputs(jac: AbstractJacobian) -> int:
    return jac.outputs if isinstance(jac, AbstractRows) else 1


def _row_weights(jac: AbstractJacobian, weights: Any) -> Float[Array, " k"]:
    array = jnp.asarray(weights)
    rows, outputs = jac.shape[0], _outputs(jac)
    if array.ndim == 0:
        array = jnp.full(rows, array)
    elif array.shape == (rows // outputs,):
        array = jnp.repeat(array, outputs)
    return real_array("weights", array, ndim=1, rows=rows)
