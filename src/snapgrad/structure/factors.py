"""Rows of one leaf, stored in full or as outer products, and what can be computed from either.

Row i of a leaf is `Σ_a left_ia ⊗ right_ia`. Two blocks of such rows give the kernel

    K_ij = Σ_ab (left_ia · left_jb) (right_ia · right_jb),

which costs `A² (d_left + d_right)` per entry and never forms a row; forming them costs `d_left d_right`.
`contract` counts and takes the cheaper way. Complex factors stand for pairs of real columns, so that
the kernel is the real part of a Hermitian product.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import Precision
from jaxtyping import Array, DTypeLike, Float, Inexact

from ._views import Layout

AT_ONCE = 2**17
"""A kernel block is computed in one go if its terms, over all pairs of outer products, are fewer numbers."""


class Outer(eqx.Module):
    """Rows as sums of `a` outer products; the axis of outputs has size one where they share a factor."""

    left: Inexact[Array, "k ol b a l"]
    right: Inexact[Array, "k or b a r"]
    layout: Layout = eqx.field(static=True)
    means: tuple[Inexact[Array, "1 ol b a l"], Inexact[Array, "1 or b a r"]] | None = None
    """If given, the factors are deviations from these and the rows are less `mean ⊗ mean` (`shifted`)."""

    @property
    def outputs(self) -> int:
        """The number of rows that belong to one point."""
        return max(self.left.shape[1], self.right.shape[1])

    def form(self) -> Inexact[Array, "k o b l r"]:
        """The rows themselves, formed from their outer products."""
        if self.means is not None:
            return self.without_means().form()
        left, right = _same_outputs(self.left, self.right)
        return jnp.einsum("kobal,kobar->koblr", left, right, precision=Precision.HIGHEST)

    def without_means(self) -> "Outer":
        """The same rows as twice as many outer products: l ⊗ r − l̄ ⊗ r̄ = (l − l̄) ⊗ r + l̄ ⊗ (r − r̄)."""
        if self.means is None:
            return self
        left, right = self.means
        spread = jnp.broadcast_to(left, self.left.shape)
        return Outer(
            jnp.concatenate([self.left, spread], axis=3),
            jnp.concatenate([self.right + right, self.right], axis=3),
            self.layout,
        )


class Full(eqx.Module):
    """Rows that are stored as they are."""

    rows: Inexact[Array, "k o m"]


Leaf: TypeAlias = tuple[Outer, ...] | Full | None
"""The rows of one leaf: outer products in disjoint boxes of it, full rows, or nothing (all zero)."""


class Cost(NamedTuple):
    """Multiply-adds of a kernel block, by the outer products and by forming rows."""

    outer: int
    formed: int


def cost(
    sizes: tuple[int, int, int], counts: tuple[int, int], rows: tuple[int, int], shared: int, same: bool
) -> Cost:
    """What it costs to contract `rows[0] × rows[1]` rows of `counts` outer products each.

    `sizes` are the batch, left and right sizes; `shared` outputs of a point share their left factors.
    """
    batch, left, right = sizes
    pairs = counts[0] * (counts[0] + 1) // 2 if same else counts[0] * counts[1]
    entries = rows[0] * rows[1]
    outer = batch * pairs * (entries // shared**2 * left + entries * right + entries)
    form = batch * left * right * sum(c * r for c, r in zip(counts, rows, strict=True)) // (2 if same else 1)
    return Cost(outer, entries * batch * left * right + form)


def contract(a: Leaf, b: Leaf, *, same: bool = False) -> Float[Array, "p q"] | None:
    """The kernel block of two blocks of rows of one leaf (`same`: the two are one)."""
    if a is None or b is None:
        return None
    if isinstance(a, Full) or isinstance(b, Full) or not _matching(a, b):
        return _dot(full_rows(a), full_rows(b)).real
    others = {region.layout: region for region in b}
    blocks = [_contract_outer(x, others[x.layout], same) for x in a if x.layout in others]
    return sum(blocks[1:], start=blocks[0]) if blocks else None


def full_rows(leaf: Full | tuple[Outer, ...]) -> Inexact[Array, "p m"]:
    """The rows of a leaf as a matrix, columns in the leaf's own order."""
    if isinstance(leaf, Full):
        return leaf.rows.reshape(-1, leaf.rows.shape[-1])
    blocks = []
    for region in leaf:
        rows = region.form()
        blocks.append(region.layout.put(rows.reshape(-1, *rows.shape[2:])))
    total = sum(blocks[1:], start=blocks[0])
    return total.reshape(total.shape[0], -1)


def apply(leaf: Leaf, tangent: Inexact[Array, "..."]) -> Float[Array, " p"] | None:
    """The product of the rows with a tangent of the leaf."""
    if leaf is None:
        return None
    if isinstance(leaf, Full):
        product = jnp.einsum("kom,m->ko", leaf.rows, tangent.reshape(-1), precision=Precision.HIGHEST)
        return product.real.reshape(-1)
    total = 0.0
    for region in leaf:
        left, right = _same_outputs(region.left, region.right)
        turned = jnp.einsum(
            "kobal,blr->kobar", left, region.layout.take(tangent), precision=Precision.HIGHEST
        )
        total = total + jnp.sum(turned * right, axis=(2, 3, 4)).real
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
    total = jnp.zeros(shape)
    for index, region in enumerate(leaf):
        u = cotangent.reshape(region.left.shape[0], region.outputs, 1, 1, 1)
        left, right = _same_outputs(region.left, region.right)
        block = jnp.einsum("kobal,kobar->blr", left, u * right, precision=Precision.HIGHEST)
        rows = region.layout.put(block[None])[0]
        total = rows if index == 0 else total + rows
    return total


def mean(leaf: Leaf) -> Leaf:
    """The mean over points of every factor, as one point."""
    return jax.tree.map(lambda x: jnp.mean(x, axis=0, keepdims=True), leaf)


def shifted(leaf: Leaf, reference: Leaf) -> Leaf:
    """The rows less one common row, the product of the factors of the one reference point.

    Only deviations from the reference's factors are kept, so that nothing large is left to cancel.
    """
    if leaf is None or reference is None:
        return leaf
    if isinstance(leaf, Full):
        assert isinstance(reference, Full)
        return Full(leaf.rows - reference.rows)
    assert not isinstance(reference, Full)
    out = []
    for region, ref in zip(leaf, reference, strict=True):
        left, right = region.left - ref.left, region.right - ref.right
        out.append(Outer(left, right, region.layout, (ref.left, ref.right)))
    return tuple(out)


def points(leaf: Leaf, start: int, stop: int) -> Leaf:
    """The rows of the points from `start` up to `stop`."""
    if leaf is None:
        return None
    if isinstance(leaf, Full):
        return Full(leaf.rows[start:stop])
    return tuple(Outer(r.left[start:stop], r.right[start:stop], r.layout, r.means) for r in leaf)


def cast(leaf: Leaf, dtype: DTypeLike) -> Leaf:
    """The same rows in another real precision (complex factors in the complex type that goes with it)."""

    def convert(x: Inexact[Array, "..."]) -> Inexact[Array, "..."]:
        wanted = jnp.result_type(dtype, jnp.complex64) if jnp.iscomplexobj(x) else dtype
        return x.astype(wanted)

    if leaf is None:
        return None
    return jax.tree.map(convert, leaf)


def _matching(a: tuple[Outer, ...], b: tuple[Outer, ...]) -> bool:
    """Whether boxes of the two either are the same or do not meet."""
    return all(x.layout == y.layout or not x.layout.overlaps(y.layout) for x in a for y in b)


def _same_outputs(*factors: Inexact[Array, "..."]) -> list[Inexact[Array, "..."]]:
    outputs = max(f.shape[1] for f in factors)
    return [jnp.broadcast_to(f, (f.shape[0], outputs, *f.shape[2:])) for f in factors]


def _dot(a: Inexact[Array, "p m"], b: Inexact[Array, "q m"]) -> Inexact[Array, "p q"]:
    """Every row with every row; a bias repeats the product of its layer, which XLA then computes once."""
    return jnp.matmul(a, b.conj().T, precision=Precision.HIGHEST)


def _contract_outer(a: Outer, b: Outer, same: bool) -> Float[Array, "p q"]:
    counts = a.left.shape[3], b.left.shape[3]
    rows = a.left.shape[0] * a.outputs, b.left.shape[0] * b.outputs
    shared = a.outputs if a.left.shape[1] == 1 else 1
    if (a.means is None) != (b.means is None):
        return _contract_outer(a.without_means(), b.without_means(), same)
    price = cost(a.layout.sizes, counts, rows, shared, same)
    if price.outer <= price.formed:
        return _by_products(a, b, same).reshape(rows)
    a, b = a.without_means(), b.without_means()
    return _by_forming(a, b, same).reshape(rows)


def _by_products(a: Outer, b: Outer, same: bool) -> Float[Array, "..."]:
    """Σ over batches and pairs of outer products of (left · left)(right · right)."""
    ends = [(x.left, x.right, *(x.means or ())) for x in (a, b)]
    batch, count, other = a.layout.sizes[0], a.left.shape[3], b.left.shape[3]
    shape = (a.left.shape[0], a.outputs, b.left.shape[0], b.outputs)
    every = batch * count * other
    if every == 1 or every * prod(shape) <= AT_ONCE:
        # By axes, not by indices: those of a single product would become a broadcast, and the sum of batched
        # products with a broadcast operand is wrong on CPU in jaxlib 0.10.2 and 0.11.
        by_pairs = jax.vmap(jax.vmap(_product_of_pair, (None, 2)), (2, None))
        return jnp.sum(jax.vmap(by_pairs, 2)(*ends), axis=(0, 1, 2))
    # The kernel of a block with itself is symmetric in (i, j): half of the pairs, and then the transpose.
    pairs = [(z, i, j) for z in range(batch) for i in range(count) for j in range(i if same else 0, other)]
    weights = [0.5 if same and i == j else 1.0 for _, i, j in pairs]
    dtype = jnp.finfo(jnp.result_type(a.left, a.right)).dtype

    def step(total, item):
        (z, i, j), weight = item
        pair = [[x[:, :, z, n] for x in end] for end, n in zip(ends, (i, j), strict=True)]
        return total + weight * _product_of_pair(*pair), None

    total, _ = lax.scan(step, jnp.zeros(shape, dtype), (jnp.asarray(pairs), jnp.asarray(weights, dtype)))
    return total + total.transpose(2, 3, 0, 1) if same else total


def _product_of_pair(
    a: Sequence[Inexact[Array, "..."]], b: Sequence[Inexact[Array, "..."]]
) -> Float[Array, "k o q p"]:
    """(left · left)(right · right) of one outer product per row: left, right and, if kept, their means."""

    def dot(x: Inexact[Array, "k o d"], y: Inexact[Array, "q p d"]) -> Inexact[Array, "k o q p"]:
        product = _dot(x.reshape(-1, x.shape[2]), y.reshape(-1, y.shape[2]))
        return product.reshape(*x.shape[:2], *y.shape[:2])

    left, right = map(dot, a[:2], b[:2])
    if len(a) == 2:
        return (left * right).real
    # With l = λ + l̄ and r = ρ + r̄ the products of means with means drop out of ⟨lr − l̄r̄, l'r' − l̄'r̄'⟩.
    left_i, right_i = map(dot, a[:2], b[2:])
    left_j, right_j = map(dot, a[2:], b[:2])
    left_m, right_m = map(dot, a[2:], b[2:])
    total = left * right + left * (right_i + right_j + right_m) + right * (left_i + left_j + left_m)
    return (total + left_i * right_j + left_j * right_i).real


def _by_forming(a: Outer, b: Outer, same: bool) -> Float[Array, "p q"]:
    """Form the rows a few columns at a time, no more numbers at once than the kernel block holds."""
    batch, left, right = a.layout.sizes
    p, q = a.left.shape[0] * a.outputs, b.left.shape[0] * b.outputs
    if left < right:  # cut the longer side
        a, b = (Outer(x.right, x.left, x.layout) for x in (a, b))
        left, right = right, left
    width = max(1, min(left, min(p, q) // (batch * right)))
    steps = -(-left // width)

    def cut(x: Outer) -> Inexact[Array, "s k o b a w"]:
        padded = jnp.pad(x.left, [(0, 0)] * 4 + [(0, steps * width - left)])
        return jnp.moveaxis(padded.reshape(*x.left.shape[:4], steps, width), 4, 0)

    def form(x: Outer, piece: Inexact[Array, "k o b a w"]) -> Inexact[Array, "p m"]:
        rows = Outer(piece, x.right, x.layout).form()
        return rows.reshape(-1, prod(rows.shape[2:]))

    def step(total, pieces):
        mine = form(a, pieces[0])
        return total + _dot(mine, mine if same else form(b, pieces[1])).real, None

    cuts = (cut(a),) if same else (cut(a), cut(b))
    dtype = jnp.finfo(jnp.result_type(a.left, a.right)).dtype
    return lax.scan(step, jnp.zeros((p, q), dtype), cuts)[0]
