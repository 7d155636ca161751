"""Rows of one leaf, stored in full or as outer products, and what can be computed from either.

Row i of a leaf is `Σ_a left_ia ⊗ right_ia`; `contract` makes kernels of such rows.
"""

import math
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import Precision
from jaxtyping import Array, DTypeLike, Float, Inexact

from ..linalg import on_gpu
from ._views import Layout, assemble

SAMPLE = 256
"""So many points tell where factors lie; rows less a row from there leave nothing large to cancel."""
SHARE_ROWS, SHARED_ENTRIES = 256, 2**20
"""On a GPU sums over rows are shared out, at least so many rows to each, up to so many entries of all."""


class Outer(eqx.Module):
    """Rows as sums of `a` outer products; the axis of outputs has size one where they share a factor."""

    left: Inexact[Array, "k ol b a l"]
    right: Inexact[Array, "k or b a r"]
    layout: Layout = eqx.field(static=True)
    means: tuple[Inexact[Array, "1 ol b a l"], Inexact[Array, "1 or b a r"]] | None = None
    """If given, the rows are less the one row whose factors these are (`shifted`)."""
    names: tuple[Any, Any] = eqx.field(static=True, default_factory=lambda: (object(), object()))
    """Factors of one function on one batch are equal if their names are."""

    @property
    def outputs(self) -> int:
        """The number of rows that belong to one point."""
        return max(self.left.shape[1], self.right.shape[1])

    @property
    def products(self) -> int:
        """The number of outer products per row."""
        return self.right.shape[3]

    def form(self) -> Inexact[Array, "k o b l r"]:
        """The rows themselves, formed from their outer products."""
        rows = _outer(self.left, self.right)
        return rows if self.means is None else rows - _outer(*self.means)

    def factor(self, side: int) -> Inexact[Array, "k o b a d"]:
        """The left (0) or right (1) factors."""
        return self.right if side else self.left

    def mean(self, side: int) -> list[Inexact[Array, "1 o b a d"]]:
        """Their mean, if there is one."""
        return [] if self.means is None else [self.means[side]]

    def with_factor(self, side: int, factor: Inexact[Array, "..."], *mean: Inexact[Array, "..."]) -> "Outer":
        """The rows of some entries of one side."""
        pair = (self.left, factor) if side else (factor, self.right)
        means = self.means and ((self.means[0], mean[0]) if side else (mean[0], self.means[1]))
        return Outer(*pair, self.layout, means)


class Full(eqx.Module):
    """Rows that are stored as they are."""

    rows: Inexact[Array, "k o m"]
    name: Any = eqx.field(static=True, default=None)
    """That of the factor of outer products which these rows equal, if there is one."""

    @property
    def outputs(self) -> int:
        """The number of rows that belong to one point."""
        return self.rows.shape[1]


Leaf: TypeAlias = tuple[Outer, ...] | Full | None
"""The rows of one leaf: outer products in disjoint boxes of it, full rows, or nothing (all zero)."""


def full_rows(leaf: Full | tuple[Outer, ...]) -> Inexact[Array, "p m"]:
    """The rows of a leaf as a matrix, columns in the leaf's own order."""
    if isinstance(leaf, Full):
        return leaf.rows.reshape(-1, leaf.rows.shape[-1])
    blocks = [region.form() for region in leaf]
    blocks = [rows.reshape(-1, *rows.shape[2:]) for rows in blocks]
    total = assemble([region.layout for region in leaf], blocks)
    return total.reshape(total.shape[0], -1)


def stored(leaf: Full | tuple[Outer, ...]) -> Full:
    """The same rows, stored as they are."""
    if isinstance(leaf, Full):
        return leaf
    rows = full_rows(leaf)
    return Full(rows.reshape(-1, leaf[0].outputs, rows.shape[1]))


def apply(leaf: Leaf, tangent: Inexact[Array, "..."]) -> Float[Array, " p"] | None:
    """The product of the rows with a tangent of the leaf."""
    if leaf is None:
        return None
    if isinstance(leaf, Full):
        product = jnp.einsum("kom,m->ko", leaf.rows, tangent.reshape(-1), precision=Precision.HIGHEST)
        return product.real.reshape(-1)
    total = 0.0
    for region in leaf:
        left, right, weight = region.left, region.right, region.layout.take(tangent)
        if weight.shape[0] == 1:  # one product for all rows
            turned = jnp.matmul(left.reshape(-1, left.shape[4]), weight[0], precision=Precision.HIGHEST)
            turned = turned.reshape(*left.shape[:4], -1)
        else:
            turned = jnp.einsum("kobal,blr->kobar", left, weight, precision=Precision.HIGHEST)
        total = total + jnp.sum(jnp.sum(turned * right, axis=4), axis=(2, 3)).real
    return jnp.asarray(total).reshape(-1)


def apply_transpose(
    leaf: Leaf, cotangent: Float[Array, " p"], shape: tuple[int, ...]
) -> Inexact[Array, "..."] | None:
    """The cotangent-weighted sum of rows, shaped like the leaf."""
    if leaf is None:
        return None
    if isinstance(leaf, Full):
        u = cotangent.reshape(leaf.rows.shape[:2]).astype(leaf.rows.dtype)
        return jnp.einsum("ko,kom->m", u, leaf.rows, precision=Precision.HIGHEST).reshape(shape)
    blocks = []
    for region in leaf:
        u = cotangent.reshape(region.left.shape[0], region.outputs, 1, 1, 1)
        left, right = region.left, region.right
        if left.shape[1] == region.outputs and left.shape[4] < right.shape[4]:
            left = u * left
        else:
            right = u * right
        left, right = (_shared_out(x, region) for x in _same_outputs(left, right))
        shares = jnp.einsum("skobal,skobar->sblr", left, right, precision=Precision.HIGHEST)
        block = jnp.sum(shares, axis=0)
        blocks.append(block[None])
    return assemble([region.layout for region in leaf], blocks)[0]


def _shared_out(x: Inexact[Array, "k o b a d"], region: Outer) -> Inexact[Array, "s _ o b a d"]:
    """The points in equal shares, for sums over them: a GPU needs many to be busy where a leaf is small."""
    rows, entries = x.shape[0] * x.shape[1] * x.shape[3], math.prod(region.layout.sizes)
    wanted = min(rows // SHARE_ROWS, SHARED_ENTRIES // entries) if on_gpu() else 1
    shares = math.gcd(x.shape[0], 2 ** max(0, wanted.bit_length() - 1))
    return x.reshape(shares, -1, *x.shape[1:])


def typical(leaf: Leaf) -> Leaf:
    """The mean of every factor over some of the points, evenly chosen, as one point."""
    return jax.tree.map(lambda x: jnp.mean(x[:: max(1, x.shape[0] // SAMPLE)], axis=0, keepdims=True), leaf)


def shifted(leaf: Leaf, reference: Leaf) -> Leaf:
    """The rows less one common row, the product of the factors of the one reference point.

    Kernels are then made of deviations from the reference, so that nothing large is left to cancel.
    """
    if leaf is None or reference is None:
        return leaf
    if isinstance(leaf, Full):
        assert isinstance(reference, Full)
        return Full(leaf.rows - reference.rows, leaf.name)
    assert not isinstance(reference, Full)
    return tuple(
        Outer(x.left, x.right, x.layout, (ref.left, ref.right), x.names)
        for x, ref in zip(leaf, reference, strict=True)
    )


def points(leaf: Any, start: int, stop: int) -> Any:
    """The rows of the points from `start` up to `stop`, of a leaf or of one box of it."""
    if leaf is None:
        return None
    if isinstance(leaf, Full):
        return Full(leaf.rows[start:stop], leaf.name)
    if isinstance(leaf, Outer):
        pair = leaf.left[start:stop], leaf.right[start:stop]
        return Outer(*pair, leaf.layout, leaf.means, leaf.names)
    return tuple(points(region, start, stop) for region in leaf)


def cast(leaf: Leaf, dtype: DTypeLike) -> Leaf:
    """The same rows in another real precision (complex factors in the complex type that goes with it)."""

    def convert(x: Inexact[Array, "..."]) -> Inexact[Array, "..."]:
        wanted = jnp.result_type(dtype, jnp.complex64) if jnp.iscomplexobj(x) else dtype
        return x.astype(wanted)

    if leaf is None:
        return None
    return jax.tree.map(convert, leaf)


def _outer(left: Inexact[Array, "..."], right: Inexact[Array, "..."]) -> Inexact[Array, "k o b l r"]:
    left, right = _same_outputs(left, right)
    dims = ((3,), (3,)), ((0, 1, 2), (0, 1, 2))
    return lax.dot_general(left, right, dims, precision=Precision.HIGHEST)


def _same_outputs(*factors: Inexact[Array, "..."]) -> list[Inexact[Array, "..."]]:
    outputs = max(f.shape[1] for f in factors)
    return [jnp.broadcast_to(f, (f.shape[0], outputs, *f.shape[2:])) for f in factors]
