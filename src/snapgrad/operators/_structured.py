"""The Jacobian of a batched function as an operator that keeps outer products, not rows."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Inexact, PRNGKeyArray, PyTree

from .. import _memory
from .._checks import same_tree
from .._contracts import Batch, Params
from ..structure import Full, Leaf, Outer, Plan, factors, make_plan, reverse_only
from ..structure.compat import jit
from ._explain import Explanation, Options, Sizes, check_memory, choose_block, explain
from ._kernel import Source, kernel
from ._rows import AbstractFactored, AbstractRows
from ._selection import Selection
from ._sharded import ShardedJacobian, shard


class StructuredJacobian(AbstractFactored):
    """The rows ∂f(θ, x_i)/∂θ of a function on a batch, with the structure that was found in them.

    `sg.jacobian` makes one and says what its options mean; there is no need to call this class.

    ```python
    model = lambda p, x: jnp.tanh(x @ p["W"]) @ p["v"]
    params, points = {"W": jnp.ones((2, 3)), "v": jnp.ones(3)}, jnp.linspace(-1, 1, 8).reshape(4, 2)
    jac = sg.jacobian(model, params, points)
    K, gradient = jac.gram(), jac.rmv(jnp.ones(4))
    print(jac.explain())
    ```
    """

    params: Params
    batch: Batch
    weights: Float[Array, " k"] | None
    fn_arrays: PyTree
    fn_static: Any = eqx.field(static=True)
    output: tuple[tuple[int, ...], Any] = eqx.field(static=True)  # shape and dtype of one point's output
    options: Options = eqx.field(static=True)
    shifted: bool = eqx.field(static=True, default=False)

    @property
    def points(self) -> int:
        """The number of points in the batch."""
        return jax.tree.leaves(self.batch)[0].shape[0]

    @property
    def outputs(self) -> int:
        """The number of rows that belong to one point."""
        return int(np.prod(self.output[0], dtype=int)) * (2 if self.options.holomorphic else 1)

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`: how many rows there are, and how many numbers the parameters hold; a complex one counts
        as two.
        """
        n = sum(leaf.size * (2 if jnp.iscomplexobj(leaf) else 1) for leaf in jax.tree.leaves(self.params))
        return self.points * self.outputs, n

    @property
    def dtype(self) -> Any:
        """The real type of mv, rmv and, unless chosen otherwise, of the kernel."""
        leaves = jax.tree.leaves(self.params)
        return jnp.finfo(jnp.result_type(*leaves, jnp.finfo(self.output[1]).dtype)).dtype

    def gram(self, block_size: int | None = None) -> Float[Array, "k k"]:
        """Returns the kernel J Jᵀ, one number for each two rows, without forming J.

        With a `block_size` of b points (here or given to `sg.jacobian`) the factors of at most two blocks
        exist at a time, and are computed again for each block before theirs. `explain` states the bound.
        `MemoryError` says what takes less where it certainly does not fit.
        """
        return _gram(self, block_size)

    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """Multiplies the Jacobian with a tangent φ shaped like the parameters; returns J φ, one number per
        row.
        """
        same_tree("tangent", tangent, self.params, "the parameters")
        return _mv(self, jax.tree.map(lambda p, t: jnp.asarray(t).astype(p.dtype), self.params, tangent))

    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Multiplies the transposed Jacobian with one number per row; returns Jᵀ u, like the parameters.

        For a complex leaf the real and imaginary parts hold the two gradients.
        """
        if jnp.shape(cotangent) != self.shape[:1]:
            raise ValueError(
                f"`cotangent` must have one entry per row, shape {self.shape[:1]}; "
                f"got {jnp.shape(cotangent)}."
            )
        return _rmv(self, jnp.asarray(cotangent))

    def dense(self) -> Float[Array, "k n"]:
        """Returns J as a matrix; a complex leaf gives its real columns, then its imaginary ones."""
        k, n = self.shape
        _memory.require(
            k * n * jnp.dtype(self.dtype).itemsize,
            f"the Jacobian of {k} rows and {n} parameters as a matrix",
            "fewer rows per step (`batch_size`, points) take less",
        )
        return _dense(self)

    def explain(self) -> Explanation:
        """Returns a table: how each leaf is handled, why, and what it costs; `str()` of it is meant to be
        read.
        """
        plan, _ = self._factor_plan()
        return explain(plan, self._sizes(), self.options)

    def values(self) -> Float[Array, " k"]:
        """Returns the outputs f(θ, x_i) themselves, one number for each row."""
        return _values(self)

    @property
    def gram_dtype(self) -> Any:
        """The real type of the numbers of the kernel."""
        name = self.options.gram_dtype
        return self.dtype if name is None else jnp.dtype(name)

    @property
    def source_dtype(self) -> Any:
        """The real type of the factors that the kernel is made of."""
        name = self.options.factor_dtype
        return self.dtype if name is None else jnp.dtype(name)

    def gram_error(self, key: PRNGKeyArray, gram: Float[Array, "k k"] | None = None) -> Float[Array, ""]:
        """Returns the relative error of K v on a random v.

        It is measured against J (Jᵀ v) in the parameters' own precision.
        """
        v = jax.random.normal(key, self.shape[:1], self.dtype)
        K = self.gram() if gram is None else gram
        exact = self.mv(self.rmv(v))
        given = jnp.matmul(K, v.astype(K.dtype), precision=lax.Precision.HIGHEST)
        return jnp.linalg.norm(given - exact) / jnp.linalg.norm(exact)

    def plan(self) -> Plan:
        """Returns how the gradient of one row is computed and how each leaf is kept.

        It is read once for each function and shape.
        """
        x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.batch)
        given = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (self.params, x, self.fn_arrays)
        )
        leaves, tree = jax.tree.flatten(given)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        context = jax.config.read("jax_enable_x64"), jax.sharding.get_abstract_mesh()
        key = self.fn_static, tree, shapes, self.output, self.options.matmul, context
        if key in _PLANS:
            return _PLANS[key]
        params, x, arrays = given

        def fn(params: Params, inputs: Any) -> Any:
            x, arrays = inputs
            return join_function(arrays, self.fn_static)(params, x)

        with jax.default_matmul_precision(self.options.matmul):
            plan = make_plan(fn, params, (x, arrays), jax.ShapeDtypeStruct(*self.output))
        if not plan.program.traced:  # it would outlive the trace that it belongs to
            while len(_PLANS) >= MOST_PLANS:
                del _PLANS[next(iter(_PLANS))]
            _PLANS[key] = plan
        return plan

    def source(self, block_size: int | None = None, axis: str | None = None) -> Source:
        """Returns the factors of blocks of rows, for kernels; `axis` names the mesh axis that holds other
        rows.
        """
        plan, jac = self._factor_plan()
        block = choose_block(plan, self._sizes(), self.options, block_size)
        check_memory(plan, self._sizes(), block)

        def reference(sample: list[Leaf]) -> list[Leaf]:
            means = [factors.typical(leaf) for leaf in sample]
            return means if axis is None else lax.pmean(means, axis)

        several = self.shifted and block < jac.points
        common = reference(jac._factors(plan, 0, min(block, factors.SAMPLE))) if several else None

        def of(start: Any) -> list[Leaf]:
            found = jac._factors(plan, start, block)
            if not self.shifted:
                return found
            means = reference(found) if common is None else common
            return [factors.shifted(leaf, ref) for leaf, ref in zip(found, means, strict=True)]

        return Source(self.points, self.outputs, block, of, self.gram_dtype, self.options.split)

    def _scale(self, weights: Float[Array, " k"]) -> AbstractRows:
        return self._with(weights=weights if self.weights is None else weights * self.weights)

    def _moved(self) -> AbstractRows:
        return self._with(shifted=True)

    def _restrict(self, selection: Selection) -> AbstractRows:
        frozen = PartlyFrozen(self._point_fn(), selection.frozen(self.params), selection)
        arrays, static = split_function(frozen)
        return self._with(params=selection.take(self.params), fn_arrays=arrays, fn_static=static)

    def _parameters(self) -> Params:
        return self.params

    def _shard(self, mesh: Any) -> ShardedJacobian:
        return shard(self, mesh)

    def _per_point(self) -> Any:
        return self.batch, self.weights

    def _with(self, **changes: Any) -> "StructuredJacobian":
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return StructuredJacobian(**(fields | changes))

    def _sizes(self) -> Sizes:
        complex_ = any(map(jnp.iscomplexobj, jax.tree.leaves(self.params)))
        factor_bytes = jnp.dtype(self.source_dtype).itemsize * (2 if complex_ else 1)
        return Sizes(self.points, self.outputs, self.gram_dtype, factor_bytes)

    def _factor_plan(self) -> tuple[Plan, "StructuredJacobian"]:
        """The plan, and this Jacobian in the precision in which its factors are computed."""
        jac = self
        if self.options.factor_dtype is not None:
            params, batch, weights, arrays = jax.tree.map(
                lambda x: _to_real_type(x, self.options.factor_dtype),
                (self.params, self.batch, self.weights, self.fn_arrays),
            )
            shape, dtype = self.output
            output = shape, _to_real_type(jnp.zeros((), dtype), self.options.factor_dtype).dtype
            jac = self._with(params=params, batch=batch, weights=weights, fn_arrays=arrays, output=output)
        return jac.plan(), jac

    def _factors(self, plan: Plan, start: Any, size: int) -> list[Leaf]:
        cut = lambda x: lax.dynamic_slice_in_dim(x, start, size) if size < self.points else x  # noqa: E731
        shape, dtype = self.output
        outputs = plan.outputs
        basis = jnp.eye(outputs, dtype=dtype).reshape(1, outputs, *shape)
        cotangents = jnp.broadcast_to(basis, (size, outputs, *shape))
        if self.weights is not None and not self.options.holomorphic:
            weights = cut(self.weights.reshape(self.points, outputs)).astype(dtype)
            cotangents = cotangents * weights.reshape(size, outputs, *[1] * len(shape))
        found = plan.factors(
            jax.tree.leaves(self.params), jax.tree.map(cut, self.batch), self.fn_arrays, cotangents
        )
        if self.options.holomorphic:
            weights = None if self.weights is None else cut(self.weights.reshape(self.points, outputs, 2))
            found = [_with_imaginary_rows(leaf, weights) for leaf in found]
        return found

    def _point_fn(self) -> Callable:
        """`fn(params, x)`, with the arrays that `fn` itself holds."""
        return join_function(self.fn_arrays, self.fn_static)

    def _batch_fn(self) -> Callable:
        fn = self._point_fn()

        def rows(params: Params) -> Float[Array, " k"]:
            with jax.default_matmul_precision(self.options.matmul):
                out = jax.vmap(fn, (None, 0))(params, self.batch)
            if self.options.holomorphic:
                out = jnp.stack([out.real, out.imag], axis=-1)
            out = out.reshape(-1)
            return out if self.weights is None else out * self.weights.astype(out.dtype)

        return rows


class PartlyFrozen(eqx.Module):
    """`fn(params, x)` as a function of the trained leaves alone; the frozen ones are arrays it holds."""

    fn: Callable
    frozen: list[Array]
    selection: Selection = eqx.field(static=True)

    def __call__(self, params: Params, x: Any) -> Any:
        """The output at one point."""
        return self.fn(self.selection.merge(params, self.frozen), x)


_ARRAY = "array"
MOST_PLANS = 64
"""Plans are kept for this many functions and shapes, the oldest being forgotten first."""
_PLANS: dict[Any, Plan] = {}


def split_function(fn: Any) -> tuple[list[Any], tuple[tuple[Any, ...], Any]]:
    """A callable as the arrays in it (an equinox module has some) and a hashable rest."""
    leaves, tree = jax.tree.flatten(fn)
    arrays = [leaf for leaf in leaves if eqx.is_array(leaf)]
    return arrays, (tuple(_ARRAY if eqx.is_array(leaf) else leaf for leaf in leaves), tree)


def join_function(arrays: list[Any], static: tuple[tuple[Any, ...], Any]) -> Any:
    """The inverse of `split_function`."""
    leaves, tree = static
    rest = iter(arrays)
    return jax.tree.unflatten(tree, [next(rest) if leaf is _ARRAY else leaf for leaf in leaves])


def _to_real_type(x: Inexact[Array, "..."], dtype: Any) -> Any:
    if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
        return x
    return x.astype(jnp.result_type(dtype, jnp.complex64) if jnp.iscomplexobj(x) else dtype)


def _with_imaginary_rows(leaf: Leaf, weights: Float[Array, "k o 2"] | None) -> Leaf:
    """Rows of Re f and Im f from the holomorphic derivative: Im f = Re(−i f)."""

    def double(x: Inexact[Array, "k o ..."]) -> Inexact[Array, "k _ ..."]:
        pair = jnp.stack([x, -1j * x], axis=2)
        if weights is not None:
            pair = pair * weights.reshape(*weights.shape, *[1] * (x.ndim - 2)).astype(pair.dtype)
        return pair.reshape(x.shape[0], 2 * x.shape[1], *x.shape[2:])

    if leaf is None:
        return None
    if isinstance(leaf, Full):
        return Full(double(leaf.rows), (leaf.name, leaf.rows.shape[1]))
    outputs = max(r.outputs for r in leaf)
    blocks = []
    for region in leaf:
        right = jnp.broadcast_to(region.right, (region.right.shape[0], outputs, *region.right.shape[2:]))
        left = region.left if region.left.shape[1] == 1 else jnp.repeat(region.left, 2, axis=1)
        names = (region.names[0], outputs), (region.names[1], outputs)
        blocks.append(Outer(left, double(right), region.layout, None, names))
    return tuple(blocks)


@jit
def _gram(jac: StructuredJacobian, block_size: int | None) -> Float[Array, "k k"]:
    return kernel(jac.source(block_size))


@jit
def _values(jac: StructuredJacobian) -> Float[Array, " k"]:
    return jac._batch_fn()(jac.params).astype(jac.dtype)


@jit
def _dense(jac: StructuredJacobian) -> Float[Array, "k n"]:
    plan, own = jac._factor_plan()
    k = jac.shape[0]
    columns = []
    found = own._factors(plan, 0, jac.points)
    for leaf, like in zip(found, jax.tree.leaves(jac.params), strict=True):
        rows = jnp.zeros((k, like.size), like.dtype) if leaf is None else factors.full_rows(leaf)
        columns += [rows.real, -rows.imag] if jnp.iscomplexobj(like) else [rows]
    return jnp.concatenate([c.astype(jac.dtype) for c in columns], axis=1)


@jit
def _mv(jac: StructuredJacobian, tangent: Params) -> Float[Array, " k"]:
    plan = _product_plan(jac)
    if plan is not None:
        found = jac._factors(plan, 0, jac.points)
        products = [factors.apply(x, t) for x, t in zip(found, jax.tree.leaves(tangent), strict=True)]
        return sum((p for p in products if p is not None), start=jnp.zeros(jac.shape[0], jac.dtype))
    rows = jac._batch_fn()
    if not reverse_only(rows, jac.params):
        return jax.jvp(rows, (jac.params,), (tangent,))[1].astype(jac.dtype)
    # Forward mode refuses a custom_vjp: J is the transpose of its transpose.
    out, pull = jax.vjp(rows, jac.params)
    back, push = jax.vjp(lambda u: jax.tree.map(jnp.conj, pull(u)[0]), jnp.zeros_like(out))
    # A rule may give the gradient of a float32 leaf in float64, and `push` wants what it gave.
    conjugate = jax.tree.map(lambda t, g: jnp.conj(t).astype(g.dtype), tangent, back)
    return push(conjugate)[0].astype(jac.dtype)


@jit
def _rmv(jac: StructuredJacobian, cotangent: Float[Array, " k"]) -> Params:
    leaves, tree = jax.tree.flatten(jac.params)
    plan = _product_plan(jac)
    if plan is None:
        out, pull = jax.vjp(jac._batch_fn(), jac.params)
        gradient = jax.tree.leaves(pull(cotangent.astype(out.dtype))[0])
    else:
        found = jac._factors(plan, 0, jac.points)
        u = cotangent.astype(jac.dtype)
        gradient = [factors.apply_transpose(f, u, x.shape) for f, x in zip(found, leaves, strict=True)]
    gradient = [
        jnp.zeros_like(x) if g is None else jnp.conj(g).astype(x.dtype)
        for g, x in zip(gradient, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, gradient)


def _product_plan(jac: StructuredJacobian) -> Plan | None:
    """The plan, if products are to be taken from the factors: then `gram` shares them in one compilation."""
    options = jac.options
    if (options.factor_dtype, options.block_size, options.memory_limit) != (None, None, None):
        return None
    plan = jac.plan()
    return plan if plan.mostly_outer() else None
