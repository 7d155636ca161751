"""The algebra of row blocks: what every Jacobian can do besides products.

A weighted, centred or summed block is a linear map of rows, T J. Its kernel is T K Tᵀ, its products are
T (J φ) and Jᵀ (Tᵀ u), and its kernel with another block is T (J J'ᵀ) T'ᵀ: only plain blocks ever look at
factors. An operator that can do better than the classes of this file replaces the methods whose names start
with an underscore; those of `AbstractRows` are the fallback.
"""

import abc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import Precision
from jax.sharding import AxisType, Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._checks import Given, real_array
from .._contracts import AbstractJacobian, Params
from ..linalg import gram
from ..structure.compat import jit
from ._kernel import Source, cross_kernel
from ._selection import Selection, select


class AbstractRows(AbstractJacobian):
    """A Jacobian whose rows belong to points, `outputs` consecutive rows to each.

    Those of `sg.jacobian`, `sg.DenseJacobian` and `sg.stack` are such. They can be weighted, centred,
    restricted to some of the parameters and spread over devices, and stay such rows.

    ```python
    model = lambda p, x: jnp.tanh(x @ p["W"]) @ p["v"]
    params, points = {"W": jnp.ones((2, 3)), "v": jnp.ones(3)}, jnp.linspace(-1, 1, 8).reshape(4, 2)
    jac = sg.jacobian(model, params, points)
    isinstance(jac.scale(2.0).centre(), sg.operators.AbstractRows)                 # True
    ```
    """

    @property
    @abc.abstractmethod
    def outputs(self) -> int:
        """The number of rows that belong to one point."""

    @final
    def scale(self, weights: Given[ArrayLike, "..."]) -> "AbstractRows":
        """Returns weighted rows, diag(w) J: with one weight per row, one per point, or one for all.

        ```python
        sg.DenseJacobian(jnp.eye(3)).scale(jnp.array([1.0, 2.0, 3.0])).dense()
        ```
        """
        array = jnp.asarray(weights)
        rows = self.shape[0]
        if array.ndim == 0:
            array = jnp.full(rows, array)
        elif array.shape == (rows // self.outputs,):
            array = jnp.repeat(array, self.outputs)
        return self._scale(real_array("weights", array, ndim=1, rows=rows))

    @final
    def centre(self, weights: Given[ArrayLike, " p"] | None = None) -> "AbstractRows":
        """Returns every row less the mean of the rows, J − 1 (wᵀ J), weighted by `weights` if given.

        The weights, one per point, are divided by their sum. Where a point has several rows (outputs), each
        output has its own mean.

        ```python
        sg.DenseJacobian(jnp.eye(3)).centre(jnp.array([1.0, 1.0, 2.0])).dense()
        ```
        """
        points, dtype = self.shape[0] // self.outputs, _real_type(self)
        if weights is None:
            return CentredJacobian(self, jnp.full(points, 1 / points, dtype))
        weights = real_array("weights", weights, ndim=1, rows=points)
        total = jnp.sum(weights)
        total = eqx.error_if(total, ~(total > 0), "`weights` must have a positive sum.")
        return CentredJacobian(self, (weights / total).astype(dtype))

    @final
    def combine(self, matrix: Given[ArrayLike, "q p"]) -> "AbstractRows":
        """Returns sums of rows over points, M J: `matrix` has one row for each sum and one column per point.

        Where a point has several rows (outputs), each output is summed by itself. With quadrature weights and
        test functions as rows of M these are the integrals of a weak form.

        ```python
        sg.DenseJacobian(jnp.eye(3)).combine(jnp.array([[0.5, 0.5, 0.0]])).dense()      # [[0.5, 0.5, 0]]
        ```
        """
        array = real_array("matrix", matrix, ndim=2)
        points = self.shape[0] // self.outputs
        if array.shape[1] != points:
            raise ValueError(f"`matrix` must have one column for each of {points} points, got {array.shape}.")
        return CombinedJacobian(self, array.astype(_real_type(self)))

    @final
    def cross(self, other: AbstractJacobian) -> Float[Array, "k q"]:
        """Returns the kernel J J'ᵀ with another block of rows on the same parameters.

        ```python
        sg.DenseJacobian(jnp.eye(3)).cross(sg.DenseJacobian(jnp.ones((2, 3))))      # [3, 2]
        ```
        """
        if self.shape[1] != other.shape[1]:
            raise ValueError(
                f"`other` must have {self.shape[1]} parameters as well, got shape {other.shape}."
            )
        right = as_rows(other)
        return self._distribute(lambda a: right._distribute(lambda b: a._meet(b).T).T)

    @final
    def restrict(self, keep: Any) -> "AbstractRows":
        """Returns the columns of J that belong to some of the parameters; the others are held fixed.

        `keep` is a tree of booleans (or a prefix of such a tree), or the parameters themselves with None or
        `optax.MaskedNode()` in place of what is frozen. `mv` then takes and `rmv` returns trees with the same
        placeholders; None stands for what a False froze.

        ```python
        jac = sg.DenseJacobian({"body": jnp.ones((3, 4)), "head": jnp.ones((3, 2))})
        jac.restrict({"body": False, "head": True}).rmv(jnp.ones(3))      # {"body": None, "head": ...}
        ```
        """
        selection = select(self._parameters(), keep)
        return self if selection.whole == selection.part else self._restrict(selection)

    @final
    def shard(self, mesh: Given[Mesh, ""]) -> "AbstractRows":
        """Returns the same rows spread over the devices of a one-dimensional `jax.sharding.Mesh`.

        Points that devices cannot share evenly are no obstacle. Rows that are stored, as those of
        `sg.DenseJacobian`, stay where they are.

        ```python
        model = lambda p, x: jnp.tanh(x @ p["W"]) @ p["v"]
        params, points = {"W": jnp.ones((2, 3)), "v": jnp.ones(3)}, jnp.linspace(-1, 1, 8).reshape(4, 2)
        mesh = jax.make_mesh((jax.device_count(),), ("rows",))
        sg.jacobian(model, params, points).centre().shard(mesh).gram()
        ```
        """
        return self._shard(rows_mesh(mesh))

    def _shard(self, mesh: Mesh) -> "AbstractRows":
        """These rows over a mesh that was checked."""
        del mesh
        return self

    def _scale(self, weights: Float[Array, " k"]) -> "AbstractRows":
        """diag(w) J."""
        return ScaledJacobian(self, weights)

    def _moved(self) -> "AbstractRows":
        """The same rows less a common row, if that costs nothing; for rows that are centred afterwards."""
        return self

    def _distribute(self, kernel: Callable[["AbstractRows"], Float[Array, "_ q"]]) -> Float[Array, "k q"]:
        """`kernel(J)` = J X for a matrix X, by asking for it on the plain blocks that J is made of."""
        return kernel(self)

    def _meet(self, other: "AbstractRows") -> Float[Array, "k q"]:
        """The kernel of two plain blocks."""
        return jnp.matmul(self.dense(), other.dense().T, precision=Precision.HIGHEST)

    def _restrict(self, selection: Selection) -> "AbstractRows":
        """The selected columns."""
        return RestrictedJacobian(self, selection)

    def _parameters(self) -> Params:
        """The parameters, or their shapes."""
        return jax.eval_shape(self.rmv, jax.ShapeDtypeStruct(self.shape[:1], _real_type(self)))


class AbstractFactored(AbstractRows):
    """Plain rows that give their factors, so that a kernel with others like it needs no Jacobian."""

    @abc.abstractmethod
    def source(self, block_size: int | None = None, axis: str | None = None) -> Source:
        """The factors of blocks of rows; `axis` names the mesh axis, if any, that holds the other rows."""

    @abc.abstractmethod
    def _per_point(self) -> Any:
        """The arrays in it whose first axis runs over points, to be shared out over devices."""

    def _meet(self, other: AbstractRows) -> Float[Array, "k q"]:
        if isinstance(other, AbstractFactored):
            return _cross_factors(self, other)
        return jnp.matmul(self.dense(), other.dense().T, precision=Precision.HIGHEST)


@jit
def _cross_factors(a: AbstractFactored, b: AbstractFactored) -> Float[Array, "k q"]:
    return cross_kernel(a.source(), b.source())


class AbstractMapped(AbstractRows):
    """T J: a linear map T of the rows of another Jacobian, `inner`."""

    inner: eqx.AbstractVar[AbstractRows]

    @property
    def outputs(self) -> int:
        """The number of rows that belong to one point."""
        return self.inner.outputs

    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """Multiplies the mapped rows with a tangent φ shaped like the parameters; returns T (J φ)."""
        return self._map(self.inner.mv(tangent)[:, None])[:, 0]

    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Multiplies the transposed rows with one number each; returns Jᵀ (Tᵀ u), like the parameters."""
        return self.inner.rmv(self._back(cotangent))

    def dense(self) -> Float[Array, "k n"]:
        """Returns the mapped rows as a matrix."""
        return self._map(self.inner.dense())

    @abc.abstractmethod
    def _map(self, rows: Float[Array, "p q"]) -> Float[Array, "k q"]:
        """T times a matrix with the rows of `inner`."""

    @abc.abstractmethod
    def _back(self, cotangent: Float[Array, " k"]) -> Float[Array, " p"]:
        """Tᵀ u."""

    def _restrict(self, selection: Selection) -> AbstractRows:
        return replace(self, inner=self.inner._restrict(selection))

    def _shard(self, mesh: Mesh) -> AbstractRows:
        return replace(self, inner=self.inner._shard(mesh))

    def _parameters(self) -> Params:
        return self.inner._parameters()


class ScaledJacobian(AbstractMapped):
    """diag(w) J: each row of `inner` times its weight, of which `weights` has one for each row.

    `jac.scale(weights)` makes one where rows cannot take up the weights themselves.

    ```python
    centred = sg.DenseJacobian(jnp.eye(3)).centre()
    centred.scale(jnp.array([1.0, 2.0, 3.0])).dense()
    ```
    """

    inner: AbstractRows
    weights: Float[Array, " k"]

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`: how many rows there are, and how many numbers the parameters hold."""
        return self.inner.shape

    def gram(self) -> Float[Array, "k k"]:
        """Returns the kernel of the weighted rows, diag(w) K diag(w), one number for each two rows."""
        return self.weights[:, None] * self.inner.gram() * self.weights[None, :]

    def _map(self, rows: Float[Array, "k q"]) -> Float[Array, "k q"]:
        return self.weights[:, None] * rows

    def _back(self, cotangent: Float[Array, " k"]) -> Float[Array, " k"]:
        return self.weights * cotangent

    def _distribute(self, kernel: Callable[[AbstractRows], Float[Array, "_ q"]]) -> Float[Array, "k q"]:
        return self._map(self.inner._distribute(kernel))


class CentredJacobian(AbstractMapped):
    """J − 1 (wᵀ J): the rows of `inner` less their mean, with `weights` of the points that sum to one.

    `jac.centre(weights)` makes one. Where a point has several outputs, each has a mean of its own.

    The mean is often far larger than what is left of a row once it is taken away, and in float32 would
    cancel in the kernel. So the kernel is that of rows moved by a common row, near the mean, which costs
    nothing when only deviations of the factors are multiplied; the exact mean of what remains is taken after.

    ```python
    sg.DenseJacobian(jnp.eye(3)).centre().dense()      # each row less the mean of the rows
    ```
    """

    inner: AbstractRows
    weights: Float[Array, " p"]

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`: how many rows there are, and how many numbers the parameters hold."""
        return self.inner.shape

    def gram(self) -> Float[Array, "k k"]:
        """Returns the kernel of the centred rows, C K Cᵀ with C = I − 1wᵀ, in one pass over K.

        It is K − 1(Kw)ᵀ − (Kw)1ᵀ + wᵀKw.
        """
        K = self.inner._moved().gram()
        k, o = K.shape[0], self.outputs
        grouped = K.reshape(k // o, o, k // o, o)
        means = jnp.tensordot(self.weights, grouped, axes=1, precision=Precision.HIGHEST)[None]
        both = jnp.tensordot(means, self.weights, axes=(2, 0), precision=Precision.HIGHEST)[:, :, None]
        return (grouped - means - means.transpose(2, 3, 0, 1) + both).reshape(k, k)

    def _map(self, rows: Float[Array, "k q"]) -> Float[Array, "k q"]:
        grouped = rows.reshape(-1, self.outputs, rows.shape[1])
        mean = jnp.tensordot(self.weights, grouped, axes=1, precision=Precision.HIGHEST)
        return (grouped - mean[None]).reshape(rows.shape)

    def _back(self, cotangent: Float[Array, " k"]) -> Float[Array, " k"]:
        u = cotangent.reshape(-1, self.outputs)
        total = jnp.sum(u, axis=0, keepdims=True)
        return (u - self.weights[:, None] * total).reshape(-1)

    def _distribute(self, kernel: Callable[[AbstractRows], Float[Array, "_ q"]]) -> Float[Array, "k q"]:
        return self._map(self.inner._moved()._distribute(kernel))


class CombinedJacobian(AbstractMapped):
    """M J: sums of the rows of `inner` over its points, with one row of `matrix` for each sum.

    `jac.combine(matrix)` makes one. Where a point has several outputs, each is summed by itself.

    ```python
    sums = sg.DenseJacobian(jnp.eye(3)).combine(jnp.array([[1.0, 1.0, 1.0]]))
    sums.dense()                                       # [[1, 1, 1]]
    ```
    """

    inner: AbstractRows
    matrix: Float[Array, "q p"]

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`: how many sums there are, and how many numbers the parameters hold."""
        return self.matrix.shape[0] * self.outputs, self.inner.shape[1]

    def gram(self) -> Float[Array, "k k"]:
        """Returns the kernel of the sums, M K Mᵀ, one number for each two of them."""
        return self._map(self._map(self.inner.gram()).T)

    def _map(self, rows: Float[Array, "p q"]) -> Float[Array, "k q"]:
        return _combined(self.matrix, rows, self.outputs)

    def _back(self, cotangent: Float[Array, " k"]) -> Float[Array, " p"]:
        return _combined(self.matrix.T, cotangent[:, None], self.outputs)[:, 0]

    def _distribute(self, kernel: Callable[[AbstractRows], Float[Array, "_ q"]]) -> Float[Array, "k q"]:
        return self._map(self.inner._distribute(kernel))


def _combined(matrix: Float[Array, "q p"], rows: Float[Array, "k c"], outputs: int) -> Float[Array, "_ c"]:
    """Sums of rows over points, each output by itself."""
    grouped = rows.reshape(matrix.shape[1], -1)
    summed = jnp.matmul(matrix, grouped, precision=Precision.HIGHEST)
    return summed.reshape(matrix.shape[0] * outputs, rows.shape[1])


class RestrictedJacobian(AbstractRows):
    """Some columns of a Jacobian `inner`: those of the parameters in `selection`; others are held fixed.

    `jac.restrict(keep)` makes one where a Jacobian cannot leave columns out by itself. `gram` forms J.

    ```python
    stored = sg.DenseJacobian({"body": jnp.ones((3, 4)), "head": jnp.ones((3, 2))})
    sg.stack([stored]).restrict({"body": False, "head": True}).shape      # (3, 2)
    ```
    """

    inner: AbstractRows
    selection: Selection = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`: how many rows there are, and how many numbers the trained parameters hold."""
        return self.inner.shape[0], self.selection.columns().size

    @property
    def outputs(self) -> int:
        """The number of rows that belong to one point."""
        return self.inner.outputs

    def gram(self) -> Float[Array, "k k"]:
        """Returns the kernel J Jᵀ, to which trained columns alone contribute."""
        return gram(self.dense())

    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """Multiplies the Jacobian with a tangent φ, which has no entries for what is held fixed."""
        return self.inner.mv(self.selection.fill(tangent))

    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Multiplies the transposed Jacobian with one number per row; returns the trained part of Jᵀ u."""
        return self.selection.take(self.inner.rmv(cotangent))

    def dense(self) -> Float[Array, "k n"]:
        """Returns the trained columns as a matrix."""
        return self.inner.dense()[:, self.selection.columns()]

    def _shard(self, mesh: Mesh) -> AbstractRows:
        return RestrictedJacobian(self.inner._shard(mesh), self.selection)


class AnyRows(AbstractRows):
    """A Jacobian of a class that this library does not know, as a block with one row per point."""

    inner: AbstractJacobian

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`: how many rows there are, and how many numbers the parameters hold."""
        return self.inner.shape

    @property
    def outputs(self) -> int:
        """How many rows belong to one point: one."""
        return 1

    def gram(self) -> Float[Array, "k k"]:
        """Returns the kernel J Jᵀ, one number for each two rows."""
        return self.inner.gram()

    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """Multiplies the Jacobian with a tangent φ shaped like the parameters; returns J φ, one number per
        row.
        """
        return self.inner.mv(tangent)

    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Multiplies the transposed Jacobian with one number per row; returns Jᵀ u, like the parameters."""
        return self.inner.rmv(cotangent)

    def dense(self) -> Float[Array, "k n"]:
        """Returns J as one matrix."""
        return self.inner.dense()


def rows_mesh(mesh: Given[Mesh, ""]) -> Mesh:
    """A mesh for rows, checked. The compiler may place arrays in it as it likes: collectives are explicit.

    **Arguments:**

    - `mesh`: a `jax.sharding.Mesh` of one axis, of whatever name.

    **Returns:** a mesh of the same devices. `TypeError` if it is no mesh, `ValueError` if it has more axes.

    ```python
    sg.operators.rows_mesh(jax.make_mesh((jax.device_count(),), ("rows",)))
    ```
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f'`mesh` must be a jax.sharding.Mesh such as jax.make_mesh((jax.device_count(),), ("rows",)), '
            f"got {type(mesh).__name__}."
        )
    if len(mesh.axis_names) != 1:
        raise ValueError(f"`mesh` must have one axis, over rows; got {mesh.axis_names}.")
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,))


def as_rows(jac: AbstractJacobian) -> AbstractRows:
    """The Jacobian itself if it is a block of rows, else one wrapped as such."""
    return jac if isinstance(jac, AbstractRows) else AnyRows(jac)


def _real_type(jac: AbstractJacobian) -> Any:
    leaves = [leaf for leaf in jax.tree.leaves(jac) if eqx.is_inexact_array(leaf)]
    return jnp.finfo(jnp.result_type(*leaves)).dtype
