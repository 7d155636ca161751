"""Blocks of rows on the same parameters, one below the other, and the kernels between them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from .._checks import Given
from .._contracts import AbstractJacobian, Params
from ..structure.compat import jit
from ._rows import AbstractRows, as_rows
from ._selection import Selection


class StackedJacobian(AbstractRows):
    """Blocks of rows on the same parameters, one below the other; `sg.stack(blocks)` makes one.

    ```python
    interior, boundary = sg.DenseJacobian(jnp.ones((3, 5))), sg.DenseJacobian(jnp.ones((2, 5)))
    sg.stack([interior, boundary]).gram()          # [5, 5]: the kernels between the two blocks included
    ```
    """

    blocks: tuple[AbstractRows, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`: how many rows there are, and how many numbers the parameters hold."""
        return sum(block.shape[0] for block in self.blocks), self.blocks[0].shape[1]

    @property
    def outputs(self) -> int:
        """The number of rows that belong to one point if all blocks agree on it, else one."""
        counts = {block.outputs for block in self.blocks}
        return counts.pop() if len(counts) == 1 else 1

    def gram(self) -> Float[Array, "k k"]:
        """Returns the kernel of all rows: those of the blocks on its diagonal, and between them off it."""
        return _stacked_gram(self.blocks)

    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """Multiplies the Jacobian with a tangent φ shaped like the parameters; returns J φ, block after
        block.
        """
        return jnp.concatenate([block.mv(tangent) for block in self.blocks])

    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Multiplies the transposed Jacobian with one number per row; returns Jᵀ u, summed over blocks."""
        parts = [block.rmv(u) for block, u in zip(self.blocks, self._split(cotangent), strict=True)]
        return jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *parts)

    def dense(self) -> Float[Array, "k n"]:
        """Returns J as one matrix, block below block."""
        return jnp.concatenate([block.dense() for block in self.blocks])

    def _split(self, rows: Float[Array, "k ..."]) -> list[Float[Array, "_ ..."]]:
        edges = [sum(block.shape[0] for block in self.blocks[:i]) for i in range(1, len(self.blocks))]
        return jnp.split(rows, edges)

    def _scale(self, weights: Float[Array, " k"]) -> AbstractRows:
        parts = zip(self.blocks, self._split(weights), strict=True)
        return StackedJacobian(tuple(block._scale(w) for block, w in parts))

    def _distribute(self, kernel: Callable[[AbstractRows], Float[Array, "_ q"]]) -> Float[Array, "k q"]:
        return jnp.concatenate([block._distribute(kernel) for block in self.blocks])

    def _restrict(self, selection: Selection) -> AbstractRows:
        return StackedJacobian(tuple(block._restrict(selection) for block in self.blocks))

    def _shard(self, mesh: Mesh) -> AbstractRows:
        return StackedJacobian(tuple(block._shard(mesh) for block in self.blocks))

    def _parameters(self) -> Params:
        return self.blocks[0]._parameters()


@jit  # as a whole, so that the factors of a block are computed once for all the kernels it takes part in
def _stacked_gram(blocks: tuple[AbstractRows, ...]) -> Float[Array, "k k"]:
    count = len(blocks)
    grid: list[list[Any]] = [[None] * count for _ in range(count)]
    for i, a in enumerate(blocks):
        grid[i][i] = a.gram()
        for j in range(i + 1, count):
            grid[i][j] = a.cross(blocks[j])
            grid[j][i] = grid[i][j].T
    return jnp.block(grid)


def stack(blocks: Given[Sequence[AbstractJacobian], ""]) -> StackedJacobian:
    """Returns the rows of several Jacobians on the same parameters as one, such as a PINN's interior and
    boundary.

    **Arguments:**

    - `blocks`: the Jacobians, one below the other. `ValueError` if they differ in their number of parameters.

    The kernel of the whole holds the kernels between any two of the blocks as well.

    ```python
    model = lambda p, x: jnp.tanh(x @ p["W"]) @ p["v"]
    params, points = {"W": jnp.ones((2, 3)), "v": jnp.ones(3)}, jnp.linspace(-1, 1, 8).reshape(4, 2)
    slope = lambda p, x: jax.grad(model, argnums=1)(p, x)[0]
    jac = sg.stack([sg.jacobian(slope, params, points).scale(0.5), sg.jacobian(model, params, points)])
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
    return StackedJacobian(tuple(map(as_rows, blocks)))
