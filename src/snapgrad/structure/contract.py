"""Kernels from the factors of two blocks of rows: by products of factors, or from rows formed in pieces.

Row i of a leaf is `Σ_a left_ia ⊗ right_ia`. Two blocks of such rows give the kernel

    K_ij = Σ_ab (left_ia · left_jb) (right_ia · right_jb),

which costs `A² (d_left + d_right)` per entry and never forms a row; forming them costs `d_left d_right`.
Leaves that share a factor, as the weights and the bias of a layer do, are taken together: the products of
their other factors are added up first. The cheaper way is found by counting. Complex factors stand for pairs
of real columns, so that the kernel is the real part of a Hermitian product.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, DTypeLike, Float, Inexact

from ..linalg import (
    SPLIT_COLUMNS,
    SymmetricSum,
    gram_onto,
    mirror,
    on_gpu,
    product,
    splits,
    symmetric_share,
    symmetric_sum,
    syrk_pays,
)
from .factors import Full, Leaf, Outer, cast, points, stored

AT_ONCE = 2**17
"""A kernel block is computed in one go if its terms, over all pairs of outer products, are fewer numbers."""
GPU_TERMS = 2**26
"""The same on a GPU, where large products are the quick ones."""
CPU_PIECE, GPU_PIECE = 2**21, 2**27
"""Rows are formed this many numbers at a time: for the cache of a CPU, for all the cores of a GPU."""
SMALL = 4096
"""Leaves with fewer entries are formed together: a product of few columns costs no more than adding it up.
On a GPU all leaves are, as many as make a piece."""

Factor: TypeAlias = tuple[Inexact[Array, "_ _ _ _ _"], Inexact[Array, "1 _ _ _ _"] | None]
"""One side of outer products, `[k, o, b, a, d]`, and its mean where rows are deviations from a common row."""


class Cost(NamedTuple):
    """Multiply-adds of a kernel block, by the outer products and by forming rows."""

    outer: int
    formed: int


def cost(
    sizes: tuple[int, int, int], counts: tuple[int, int], rows: tuple[int, int], shared: int, same: bool
) -> Cost:
    """What it costs to contract `rows[0] × rows[1]` rows of `counts` outer products each.

    `sizes` are the batch, left and right sizes; `shared` outputs of a point share their left factors. Of the
    kernel of rows with themselves (`same`) only about one half is computed.
    """
    batch, left, right = sizes
    entries = rows[0] * rows[1]
    pairs = counts[0] * (counts[0] + 1) // 2 if same else counts[0] * counts[1]
    outer = batch * pairs * (entries // shared**2 * left + entries * right + entries)
    formed = entries * batch * left * right
    forming = batch * left * right * (rows[0] * counts[0] + (0 if same else rows[1] * counts[1]))
    if same:  # one half of many pairs, or else of the entries
        kept = symmetric_share(rows[0])
        outer = int(kept * outer) if counts[0] == 1 else outer
        formed = int(kept * formed)
    return Cost(outer, formed + forming)


class Sharing(NamedTuple):
    """Outer products with one factor in common: its side, which of them, and which vectors join them."""

    side: int
    members: tuple[int, ...]
    vectors: tuple[int, ...] = ()


def sharings(names: Sequence[tuple[Any, Any]], vectors: Sequence[Any]) -> list[Sharing]:
    """Outer products, given by the names of their factors, gathered by the factor that most of them share.

    A vector shares the factor that it equals; its own other factor is the number one.
    """
    uses: dict[tuple[int, Any], list[int]] = {}
    for index, pair in enumerate(names):
        for side, name in enumerate(pair):
            uses.setdefault((side, name), []).append(index)
    extra = {key: [i for i, v in enumerate(vectors) if v is not None and v == key[1]] for key in uses}
    found, taken, joined = [], set(), set()
    for key in sorted(uses, key=lambda key: (-len(uses[key]) - len(extra[key]), key[0] == 0)):
        members = [i for i in uses[key] if i not in taken]
        if members:
            joins = [i for i in extra[key] if i not in joined]
            found.append(Sharing(key[0], tuple(members), tuple(joins)))
            taken |= set(members)
            joined |= set(joins)
    return found


def total_sizes(sizes: Sequence[tuple[int, int, int]], side: int) -> tuple[int, int, int]:
    """The sizes of outer products with one factor in common: those of their own factors added up."""
    total = [sizes[0][0], sum(s[1] for s in sizes), sum(s[2] for s in sizes)]
    total[1 + side] = sizes[0][1 + side]
    return total[0], total[1], total[2]


def workspace(columns: Sequence[int], terms: int, rows: int) -> int:
    """How many numbers a kernel block of so many rows needs at a time, besides itself and the factors.

    `columns` are the numbers of columns of the leaves, `terms` the most terms of an entry (`Group.terms`).
    """
    piece = max(piece_columns(rows), SMALL)
    formed = rows * min(sum(columns), 2 * piece)
    at_once = min(max(terms * rows**2, AT_ONCE), GPU_TERMS if on_gpu() else AT_ONCE)
    return 2 * formed + 3 * at_once


class Group(NamedTuple):
    """Outer products that share their right factor; `ones` counts vectors, whose left factor is one."""

    lefts: tuple[Factor, ...]
    right: Factor
    ones: int

    @property
    def terms(self) -> int:
        """How many terms an entry of the kernel with a block like it has: batch × pairs of outer products."""
        return self.right[0].shape[2] * self.right[0].shape[3] ** 2

    @property
    def outputs(self) -> int:
        """The number of rows that belong to one point."""
        return max(x.shape[1] for x, _ in (*self.lefts, self.right))

    def map(self, fn: Callable[[Inexact[Array, "..."]], Any], means: bool = False) -> "Group":
        """The group with every factor, and if wanted every mean, changed."""

        def change(factor: Factor) -> Factor:
            x, mean = factor
            return fn(x), fn(mean) if means and mean is not None else mean

        return Group(tuple(map(change, self.lefts)), change(self.right), self.ones)


def contract(
    mine: Sequence[Leaf],
    others: Sequence[Leaf] | None,
    shape: tuple[int, int],
    dtype: DTypeLike,
    split: bool = False,
) -> Float[Array, "p q"]:
    """The kernel block of two blocks of rows, given leaf by leaf; without `others`, of one block with itself.

    `shape` is that of the block and `dtype` the real type it is computed in; with `split`, float32 products
    are those of float16 parts (`linalg.product`).
    """
    first = [cast(leaf, dtype) for leaf in mine]
    second = None if others is None else [cast(leaf, dtype) for leaf in others]
    groups, columns = _arranged(first, first if second is None else second, shape, second is None)
    if second is None:
        return _symmetric([a for a, _ in groups], columns, shape[0], dtype, split)
    total = jnp.zeros(shape, dtype)
    for a, b in groups:
        total = total + _by_pairs(a, b, split).reshape(shape)
    piece = piece_columns(max(shape), split and splits(dtype))
    for pair in _joined(columns, piece):
        total = _over_pieces(pair, total, piece, lambda K, x, y: K + product(x, y, split))
    return total


Columns: TypeAlias = Outer | Full
"""Rows that are to be formed, or are stored."""


def _arranged(
    first: list[Leaf], second: list[Leaf], shape: tuple[int, int], same: bool
) -> tuple[list[tuple[Group, Group]], list[tuple[Columns, Columns]]]:
    """What is contracted by products, groups that share a factor together, and what as rows."""
    regions: list[tuple[Outer, Outer]] = []
    columns: list[tuple[Columns, Columns]] = []
    vectors: list[tuple[Full, Full]] = []
    for a, b in zip(first, second, strict=True):
        if a is None or b is None:
            continue
        if isinstance(a, Full) and isinstance(b, Full):
            vectors.append((a, b))
        elif isinstance(a, Full) or isinstance(b, Full) or not _matching(a, b):
            columns.append((stored(a), stored(b)))
        else:
            others = {region.layout: region for region in b}
            regions += [(x, others[x.layout]) for x in a if x.layout in others]
    groups = []
    names = [((x.names[0], y.names[0]), (x.names[1], y.names[1])) for x, y in regions]
    known = [None if x.name is None or y.name is None else (x.name, y.name) for x, y in vectors]
    used = set()
    for sharing in sharings(names, known):
        members = [regions[i] for i in sharing.members]
        if _products_cost_less(members, sharing, shape, same):
            joins = len(sharing.vectors)
            groups.append(tuple(_group([m[i] for m in members], sharing.side, joins) for i in (0, 1)))
            used |= set(sharing.vectors)
        else:
            columns += members
    return groups, [pair for i, pair in enumerate(vectors) if i not in used] + columns


def _matching(a: tuple[Outer, ...], b: tuple[Outer, ...]) -> bool:
    """Whether boxes of the two either are the same or do not meet."""
    return all(x.layout == y.layout or not x.layout.overlaps(y.layout) for x in a for y in b)


def _products_cost_less(
    members: Sequence[tuple[Outer, Outer]], sharing: Sharing, shape: tuple[int, int], same: bool
) -> bool:
    counts = members[0][0].products, members[0][1].products
    if any((x.products, y.products) != counts for x, y in members):
        return False
    shared = members[0][0].outputs if members[0][0].left.shape[1] == 1 else 1
    price = cost(
        total_sizes(tuple(x.layout.sizes for x, _ in members), sharing.side), counts, shape, shared, same
    )
    return price.outer <= price.formed


def _group(members: Sequence[Outer], side: int, ones: int) -> Group:
    def factor(x: Outer, which: int) -> Factor:
        return x.factor(which), next(iter(x.mean(which)), None)

    return Group(tuple(factor(x, 1 - side) for x in members), factor(members[0], side), ones)


def _symmetric(
    groups: list[Group], columns: list[tuple[Columns, Columns]], size: int, dtype: DTypeLike, split: bool
) -> Float[Array, "k k"]:
    """The kernel of rows with themselves: its half on and below the diagonal, mirrored once at the end."""
    outputs = max([g.outputs for g in groups] + [c.outputs for c, _ in columns], default=1)
    total = symmetric_sum(size, dtype, split, multiple=outputs)
    for group in groups:
        if group.terms == 1:
            strips = []
            for start, stop in total.blocks(outputs):
                mine, others = (group.map(lambda x, a=a, b=stop: x[a:b]) for a in (start, 0))
                strips.append(_at_once(mine, mine if start == 0 else others, split, half=start == 0))
            total = total.add_strips([s.reshape(s.shape[0] * outputs, -1) for s in strips])
    piece = piece_columns(size, total.split)
    for part, _ in _joined(columns, piece):
        total = _over_pieces((part,), total, piece, SymmetricSum.add)
    K = total.lower()
    for group in groups:
        if group.terms > 1:
            K = K + _by_pairs(group, group, split, same=True).reshape(size, size)
    widths = [x.shape[4] for group in groups for x, _ in (*group.lefts, group.right)]
    most = max(sum(_width(c) for c, _ in columns), *widths, 1)
    return mirror(K) if len(total.strips) > 1 or syrk_pays(size, most) else K


def _by_pairs(a: Group, b: Group, split: bool, same: bool = False) -> Float[Array, "k o q p"]:
    """All pairs of outer products at once where that is little, else one after the other."""
    count, other = a.right[0].shape[3], b.right[0].shape[3]
    batch = a.right[0].shape[2]
    shape = (a.right[0].shape[0], a.outputs, b.right[0].shape[0], b.outputs)
    every = batch * count * other
    if every == 1 or every * math.prod(shape) <= (GPU_TERMS if on_gpu() else AT_ONCE):
        return _at_once(a, b, split)
    # The kernel of a block with itself is symmetric in (i, j): half of the pairs, and then the transpose.
    pairs = [(z, i, j) for z in range(batch) for i in range(count) for j in range(i if same else 0, other)]
    weights = [0.5 if same and i == j else 1.0 for _, i, j in pairs]
    dtype = jnp.finfo(a.right[0].dtype).dtype

    def step(total, item):
        (z, i, j), weight = item
        first, second = (
            g.map(lambda x, n=n: x[:, :, z, n][:, :, None, None], means=True) for g, n in ((a, i), (b, j))
        )
        return total + weight * _at_once(first, second, split), None

    total, _ = lax.scan(step, jnp.zeros(shape, dtype), (jnp.asarray(pairs), jnp.asarray(weights, dtype)))
    return total + total.transpose(2, 3, 0, 1) if same else total


def _at_once(a: Group, b: Group, split: bool, half: bool = False) -> Float[Array, "k o q p"]:
    """Σ over batches and pairs of outer products of (left · left)(right · right), for two groups.

    With `half` the two are one, and of a single product per row a GPU computes the lower half alone.
    """
    right = _dots(a.right, b.right, split, half)
    parts = [_dots(x, y, split, half) for x, y in zip(a.lefts, b.lefts, strict=True)]
    left = [sum(alike[1:], start=alike[0]) for alike in zip(*parts, strict=True)]
    if len(left) == 1:
        total = (left[0] + a.ones) * right[0]
    elif len(left) == 2:  # only the rows of one of the two are less a mean
        total = (left[0] + a.ones) * right[0] - (left[1] + a.ones) * right[1]
    else:
        # With l = λ + l̄ and r = ρ + r̄ the products of means with means drop out of ⟨lr − l̄r̄, l'r' − l̄'r̄'⟩.
        (l_0, l_i, l_j, l_m), (r_0, r_i, r_j, r_m) = left, right
        total = l_0 * (r_0 + r_i + r_j + r_m) + r_0 * (l_i + l_j + l_m + a.ones) + l_i * r_j + l_j * r_i
    return jnp.sum(total.real, axis=(0, 1, 4))


def _dots(x: Factor, y: Factor, split: bool, half: bool) -> list[Inexact[Array, "b a _ o c _ p"]]:
    """The products of one side of two groups: of deviations, of these with the means, and of the means."""

    def dot(a: Inexact[Array, "k o b a d"], b: Inexact[Array, "q p b c d"], half: bool = False) -> Array:
        shape = (a.shape[2], a.shape[3], *a.shape[:2], b.shape[3], *b.shape[:2])
        a, b = (v.transpose(2, 3, 0, 1, 4).reshape(v.shape[2], -1, v.shape[4]) for v in (a, b))
        if half and not split and a.shape[0] == 1 and not jnp.iscomplexobj(a) and syrk_pays(*a.shape[1:]):
            return gram_onto(a[0], jnp.zeros((a.shape[1], a.shape[1]), a.dtype)).reshape(shape)
        return product(a, b, split).reshape(shape)

    (a, mean_a), (b, mean_b) = x, y
    if mean_a is None:
        return [dot(a, b, half)] if mean_b is None else [dot(a, b), dot(a, mean_b)]
    if mean_b is None:
        return [dot(a, b), dot(mean_a, b)]
    a, b = a - mean_a, b - mean_b
    return [dot(a, b, half), dot(a, mean_b), dot(mean_a, b), dot(mean_a, mean_b)]


def _width(columns: Columns) -> int:
    """How many real columns there are."""
    if isinstance(columns, Full):
        return columns.rows.shape[2] * (2 if jnp.iscomplexobj(columns.rows) else 1)
    complex_ = jnp.iscomplexobj(columns.left) or jnp.iscomplexobj(columns.right)
    return math.prod(columns.layout.sizes) * (2 if complex_ else 1)


def piece_columns(rows: int, split: bool = False) -> int:
    """How many columns of so many rows are formed at a time."""
    columns = max(1, (GPU_PIECE if on_gpu() else CPU_PIECE) // rows)
    return min(columns, 4 * SPLIT_COLUMNS) if split else columns


Part: TypeAlias = tuple[Columns, ...]
"""Columns that are formed together."""


def _joined(columns: Sequence[tuple[Columns, Columns]], piece: int) -> Iterator[tuple[Part, Part]]:
    """Small leaves together, as many as make a piece of so many columns; each of the others by itself."""
    small: list[tuple[Columns, Columns]] = []
    most = max(piece, SMALL)
    room = most
    for pair in columns:
        width = max(map(_width, pair))
        if width >= (piece if on_gpu() else SMALL):
            yield pair[:1], pair[1:]
            continue
        if width > room:
            yield tuple(a for a, _ in small), tuple(b for _, b in small)
            small, room = [], most
        small.append(pair)
        room -= width
    if small:
        yield tuple(a for a, _ in small), tuple(b for _, b in small)


def _over_pieces(parts: Sequence[Part], total: Any, piece: int, add: Callable) -> Any:
    """`add` the columns of one part (to a symmetric sum) or of two (to a matrix), a piece at a time."""

    def rows(part: Part) -> Any:
        if not isinstance(total, SymmetricSum):
            return _form(part)
        blocks = total.blocks(part[0].outputs)
        return [_form(tuple(points(columns, a, b) for columns in part)) for a, b in blocks]

    steps = -(-_width(parts[0][0]) // piece)
    regions = [part[0] for part in parts if isinstance(part[0], Outer)]
    if steps == 1 or len(regions) < len(parts):
        return add(total, *map(rows, parts))
    # Rows are formed for a part of the longer side at a time.
    side = 1 if regions[0].layout.sizes[2] > regions[0].layout.sizes[1] else 0
    cuts = [_cut([x.factor(side), *x.mean(side)], steps) for x in regions]

    def step(total, pieces):
        found = [x.with_factor(side, *cut) for x, cut in zip(regions, pieces, strict=True)]
        return add(total, *(rows((region,)) for region in found)), None

    return lax.scan(step, total, cuts)[0]


def _cut(arrays: list[Inexact[Array, "_ o b a d"]], steps: int) -> list[Inexact[Array, "s _ o b a w"]]:
    """Pieces of the last axis, of equal width."""
    size = arrays[0].shape[4]
    width = -(-size // min(steps, size))
    steps = -(-size // width)
    padded = [jnp.pad(x, [(0, 0)] * 4 + [(0, steps * width - size)]) for x in arrays]
    return [jnp.moveaxis(x.reshape(*x.shape[:4], steps, width), 4, 0) for x in padded]


def _form(part: Part) -> Float[Array, "p m"]:
    """The real columns of some leaves, side by side, in an order of their own."""
    blocks = []
    for columns in part:
        rows = columns.rows if isinstance(columns, Full) else columns.form()
        rows = rows.reshape(rows.shape[0] * rows.shape[1], -1)
        blocks += [rows.real, rows.imag] if jnp.iscomplexobj(rows) else [rows]
    return blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks, axis=1)
