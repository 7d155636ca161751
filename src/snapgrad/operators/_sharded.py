"""Rows spread over the devices of a mesh: factors travel in a ring, Jacobians never do."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from .._checks import same_tree
from .._contracts import Params
from ..structure.compat import jit, shard_map
from ._kernel import Source, meet
from ._rows import AbstractFactored, AbstractRows
from ._selection import Selection


class ShardedJacobian(AbstractRows):
    """A Jacobian whose points are shared out over the devices of a `mesh`; made by `jac.shard(mesh)`.

    Each device keeps the factors of its own points. For the kernel they pass round the ring, half of the way:
    the other half of the blocks are transposes, sent back. `gram` and `mv` come out sharded by rows,
    `rmv` is summed over the devices. The result equals that of one device to rounding.

    `inner` has as many points as the devices can share evenly: the last one is repeated where `points` is
    not a multiple of their number, and the rows of what was added are left out of every result.

    ```python
    model = lambda p, x: jnp.tanh(x @ p["W"]) @ p["v"]
    params, points = {"W": jnp.ones((2, 3)), "v": jnp.ones(3)}, jnp.linspace(-1, 1, 8).reshape(4, 2)
    mesh = jax.make_mesh((jax.device_count(),), ("points",))
    K = sg.jacobian(model, params, points).shard(mesh).gram()
    ```
    """

    inner: AbstractFactored
    points: int = eqx.field(static=True)
    mesh: Mesh = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`: how many rows there are on all devices, and how many numbers the parameters hold."""
        return self.points * self.outputs, self.inner.shape[1]

    @property
    def outputs(self) -> int:
        """The number of rows that belong to one point."""
        return self.inner.outputs

    def gram(self) -> Float[Array, "k k"]:
        """Returns the kernel J Jᵀ, of which each device holds its own rows."""
        return self._cut(ring(self), 2)

    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """Multiplies the Jacobian with a tangent φ shaped like the parameters; returns J φ by rows."""
        same_tree("tangent", tangent, self._parameters(), "the parameters")
        return self._cut(_mv(self, tangent))

    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Multiplies the transposed Jacobian with one number per row; returns Jᵀ u, summed over devices."""
        if jnp.shape(cotangent) != self.shape[:1]:
            raise ValueError(
                f"`cotangent` must have one entry per row, shape {self.shape[:1]}; "
                f"got {jnp.shape(cotangent)}."
            )
        return _rmv(self, jnp.pad(cotangent, (0, self.inner.shape[0] - self.shape[0])))

    def dense(self) -> Float[Array, "k n"]:
        """Returns J as a matrix that is sharded by rows."""
        return self._cut(_dense(self))

    def _scale(self, weights: Float[Array, " k"]) -> AbstractRows:
        return self._like(self.inner._scale(_lengthened(weights, self.inner.shape[0])))

    def _moved(self) -> AbstractRows:
        return self._like(self.inner._moved())

    def _meet(self, other: AbstractRows) -> Float[Array, "k q"]:
        if isinstance(other, ShardedJacobian) and other.mesh == self.mesh:
            return self._cut(ring(self, other))[:, : other.shape[0]]
        return jnp.matmul(self.dense(), other.dense().T, precision=lax.Precision.HIGHEST)

    def _restrict(self, selection: Selection) -> AbstractRows:
        return self._like(self.inner._restrict(selection))

    def _parameters(self) -> Params:
        return self.inner._parameters()

    def _like(self, rows: AbstractRows) -> AbstractRows:
        assert isinstance(rows, AbstractFactored), "rows with factors stay so when weighted or restricted"
        return ShardedJacobian(rows, self.points, self.mesh)

    def _cut(self, rows: Float[Array, "..."], axes: int = 1) -> Float[Array, "..."]:
        """Without the rows (and columns) of points that were added."""
        return rows if rows.shape[0] == self.shape[0] else rows[(slice(self.shape[0]),) * axes]

    @property
    def _axis(self) -> str:
        return self.mesh.axis_names[0]


def shard(jac: AbstractFactored, mesh: Mesh) -> ShardedJacobian:
    """The same Jacobian with its points spread over a one-dimensional mesh."""
    points = jac.shape[0] // jac.outputs
    shared = -(-points // mesh.size) * mesh.size
    if shared > points:
        lengthen = lambda leaf: _lengthened(leaf, leaf.shape[0] // points * shared)  # noqa: E731
        jac = eqx.tree_at(
            lambda j: j._per_point(),
            jac,
            jax.tree.map(lengthen, jac._per_point()),
            is_leaf=lambda x: x is None,
        )
    return ShardedJacobian(jac, points, mesh)


def _lengthened(array: Float[Array, "k ..."], count: int) -> Float[Array, "q ..."]:
    """With its last entry repeated, so that nothing new and perhaps not finite comes in."""
    return jnp.pad(array, [(0, count - array.shape[0])] + [(0, 0)] * (array.ndim - 1), mode="edge")


@jit
def _mv(jac: ShardedJacobian, tangent: Params) -> Float[Array, " k"]:
    return _spread(jac, lambda own, t: own.mv(t), (tangent, P()), P(jac._axis))


@jit
def _rmv(jac: ShardedJacobian, cotangent: Float[Array, " k"]) -> Params:
    axis = jac._axis
    return _spread(jac, lambda own, u: lax.psum(own.rmv(u), axis), (cotangent, P(axis)), P())


@jit
def _dense(jac: ShardedJacobian) -> Float[Array, "k n"]:
    return _spread(jac, lambda own, _: own.dense(), ((), P()), P(jac._axis))


@jit
def ring(a: ShardedJacobian, b: ShardedJacobian | None = None) -> Float[Array, "k q"]:
    """J J'ᵀ: the factors of `b` pass by those of `a`, which stay where they are; without `b`, J Jᵀ."""
    axis, count = a._axis, a.mesh.size
    same = b is None

    def local(mine: AbstractFactored, others: Any) -> Float[Array, "k q"]:
        rows = _all_at_once(mine, axis)
        columns = rows if same else _all_at_once(others, axis)
        held = rows.factors(0)
        passing = held if same else columns.factors(0)
        me, width = lax.axis_index(axis), columns.points * columns.outputs
        K = jnp.zeros((rows.points * rows.outputs, count * width), jnp.result_type(rows.dtype, columns.dtype))
        for step in range(count // 2 + 1 if same else count):
            if step:
                passing = lax.ppermute(passing, axis, [(i, (i - 1) % count) for i in range(count)])
            block = meet(held, None if same and step == 0 else passing, rows, columns)
            K = lax.dynamic_update_slice_in_dim(K, block, (me + step) % count * width, axis=1)
            if same and 0 < 2 * step < count:
                back = lax.ppermute(block.T, axis, [(i, (i + step) % count) for i in range(count)])
                K = lax.dynamic_update_slice_in_dim(K, back, (me - step) % count * width, axis=1)
        return K

    if b is None:
        return _spread(a, lambda jac, _: local(jac, None), ((), P()), P(axis))
    arrays, rebuild = _parts(b)
    return _spread(a, lambda jac, parts: local(jac, rebuild(parts)), (arrays, _specs(b)), P(axis))


def _all_at_once(share: AbstractFactored, axis: str) -> Source:
    return share.source(share.shape[0] // share.outputs, axis)


def _parts(jac: ShardedJacobian) -> tuple[Any, Callable]:
    """The arrays of a Jacobian, and the way back from a device's share of them."""
    arrays, static = eqx.partition(jac.inner, eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    return leaves, lambda parts: eqx.combine(jax.tree.unflatten(tree, parts), static)


def _specs(jac: ShardedJacobian) -> list[Any]:
    """Points are sharded; parameters and what the function holds are not."""
    whole = jax.tree.map(lambda _: P(), jac.inner)
    split = jax.tree.map(lambda _: P(jac._axis), jac.inner._per_point())
    spec = eqx.tree_at(lambda j: j._per_point(), whole, split, is_leaf=lambda x: x is None)
    return jax.tree.leaves(spec, is_leaf=lambda x: isinstance(x, P))


def _spread(jac: ShardedJacobian, fn: Callable, argument: tuple[Any, Any], out: Any) -> Any:
    """Run `fn(share, argument)` on every device, the share being a Jacobian of its own points."""
    value, spec = argument
    arrays, rebuild = _parts(jac)
    run = lambda parts, x: fn(rebuild(parts), x)  # noqa: E731
    return shard_map(run, jac.mesh, (_specs(jac), spec), out)(arrays, value)
