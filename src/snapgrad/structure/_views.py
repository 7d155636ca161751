"""Strided views of a parameter leaf: which entries of the leaf each axis of an intermediate value walks over.

The gradient of a leaf often ends in transposes, reshapes, slices and pads of an outer product. Reading the
program backwards from the leaf, a `View` follows the leaf's entries through these until the product is met:
every axis is a list of pieces `(size, stride)` in the flat index of the leaf.
"""

from math import prod
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Inexact

Pieces: TypeAlias = tuple[tuple[int, int], ...]


class UnstructuredError(Exception):
    """A leaf's gradient is not a sum of outer products; the message says where the search ended."""


class Dim(NamedTuple):
    """One axis: the entries of the leaf it walks over (None if it is summed), and a slice of it in use."""

    pieces: Pieces | None
    take: tuple[int, int] | None = None  # (start, size)

    @property
    def kept(self) -> Pieces:
        """The pieces, less those of size one."""
        return tuple(piece for piece in self.pieces or () if piece[0] != 1)


class View(NamedTuple):
    """A value whose axes walk over entries of a leaf, from an offset."""

    dims: tuple[Dim, ...]
    offset: int = 0


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """How far apart neighbours along each axis are in the flat index, for row-major order."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def leaf_view(shape: tuple[int, ...]) -> View:
    """The view of a leaf by itself: each axis walks over its own entries."""
    return View(tuple(Dim(((size, stride),)) for size, stride in zip(shape, strides(shape), strict=True)))


def before_transpose(view: View, permutation: tuple[int, ...]) -> View:
    """The view of the operand of a `transpose`, given the view of its result."""
    dims = dict(zip(permutation, view.dims, strict=True))
    return view._replace(dims=tuple(dims[i] for i in range(len(dims))))


def before_insert(view: View, positions: tuple[int, ...]) -> View:
    """The view of the operand of an operation that inserts axes of size one except at `positions`."""
    return view._replace(dims=tuple(view.dims[i] for i in positions))


def before_remove(view: View, axes: tuple[int, ...], new: Dim) -> View:
    """The view of the operand of an operation that removes `axes`, by squeezing or summing."""
    rest = iter(view.dims)
    size = len(view.dims) + len(axes)
    return view._replace(dims=tuple(new if i in axes else next(rest) for i in range(size)))


def before_reshape(view: View, shape: tuple[int, ...]) -> View:
    """The view of the operand of a `reshape`; `shape` is the shape of that operand."""
    if any(dim.take is not None or dim.pieces is None for dim in view.dims):
        raise UnstructuredError("a reshape of a slice")
    flat = [piece for dim in view.dims for piece in dim.kept]
    groups = _regroup(flat, shape) or _regroup(list(merged(tuple(flat), ordered=True)), shape)
    if groups is None:
        raise UnstructuredError("a reshape that mixes axes")
    return view._replace(dims=tuple(Dim(group) for group in groups))


def before_pad(view: View, axis: int, low: int, size: int) -> View:
    """The view of an operand that was padded with `low` zeros in front of an axis (and some behind it).

    `size` is the length of the operand along that axis.
    """
    dim = view.dims[axis]
    if dim.take is not None or dim.pieces is None:
        raise UnstructuredError("a pad of a slice")
    if size == prod(s for s, _ in dim.pieces):
        return view
    if len(dim.kept) != 1:
        raise UnstructuredError("a pad across merged axes")
    stride = dim.kept[0][1]
    dims = (*view.dims[:axis], Dim(((size, stride),)), *view.dims[axis + 1 :])
    return View(dims, view.offset + low * stride)


def before_slice(view: View, axis: int, start: int, size: int, whole: int) -> View:
    """The view of an operand of which `[start, start + size)` was taken along an axis of length `whole`."""
    if size == whole:
        return view
    dim = view.dims[axis]
    start += dim.take[0] if dim.take else 0
    take = (start, dim.take[1] if dim.take else size)
    return view._replace(dims=(*view.dims[:axis], dim._replace(take=take), *view.dims[axis + 1 :]))


def merged(pieces: Pieces, ordered: bool = False) -> Pieces:
    """The same entries in the fewest pieces, the widest stride first."""
    out: list[tuple[int, int]] = []
    for size, stride in pieces if ordered else sorted(pieces, key=lambda p: -p[1]):
        if out and out[-1][1] == size * stride:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    return tuple(out)


def _regroup(pieces: list[tuple[int, int]], shape: tuple[int, ...]) -> list[Pieces] | None:
    queue, groups = list(pieces), []
    for wanted in shape:
        group = []
        while wanted > 1:
            if not queue:
                return None
            size, stride = queue.pop(0)
            if wanted % size == 0:
                group.append((size, stride))
                wanted //= size
            elif size % wanted == 0:
                group.append((wanted, stride * (size // wanted)))
                queue.insert(0, (size // wanted, stride))
                wanted = 1
            else:
                return None
        groups.append(tuple(group))
    return groups if not queue else None


class Layout(NamedTuple):
    """Where an outer product sits in its leaf: a box of it, and which entries are batch, left and right.

    Factors of equal layout may be contracted with each other: `left` and `right` are flattened with the
    widest stride first, whatever transposes and reshapes the program went through.
    """

    shape: tuple[int, ...]
    start: tuple[int, ...]
    box: tuple[int, ...]
    batch: Pieces
    left: Pieces
    right: Pieces

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many batch, left and right entries there are."""
        return prod(s for s, _ in self.batch), prod(s for s, _ in self.left), prod(s for s, _ in self.right)

    def take(self, leaf: Inexact[Array, "..."]) -> Inexact[Array, "b l r"]:
        """The entries of a leaf in this box, as an array of batch × left × right."""
        stop = tuple(a + b for a, b in zip(self.start, self.box, strict=True))
        sizes, order = self._axes()
        return lax.slice(leaf, self.start, stop).reshape(sizes).transpose(order).reshape(self.sizes)

    def put(self, blocks: Inexact[Array, "k b l r"]) -> Inexact[Array, "k ..."]:
        """The inverse of `take` for several rows: the box of each, in the leaf's own order."""
        sizes, order = self._axes()
        inverse = tuple(1 + int(i) for i in np.argsort(order))
        split = blocks.reshape(blocks.shape[0], *(sizes[i] for i in order)).transpose(0, *inverse)
        return split.reshape(blocks.shape[0], *self.box)

    def overlaps(self, other: "Layout") -> bool:
        """Whether the two boxes share an entry."""
        return all(
            a < c + d and c < a + b
            for a, b, c, d in zip(self.start, self.box, other.start, other.box, strict=True)
        )

    def _axes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        pieces = [*self.batch, *self.left, *self.right]
        order = sorted(range(len(pieces)), key=lambda i: -pieces[i][1])
        place = {i: j for j, i in enumerate(order)}
        return tuple(pieces[i][0] for i in order), tuple(place[i] for i in range(len(pieces)))


def assemble(layouts: list[Layout], blocks: list[Inexact[Array, "k b l r"]]) -> Inexact[Array, "k ..."]:
    """Rows in the leaf's shape from those of its boxes, which do not meet; zero outside of them."""
    shape, box = layouts[0].shape, layouts[0].box
    boxes = [layout.put(block) for layout, block in zip(layouts, blocks, strict=True)]
    if all(layout.box == box for layout in layouts) and len(layouts) * prod(box) == prod(shape):
        # A grid of equal boxes, as the offsets of a convolution are.
        order = sorted(range(len(layouts)), key=lambda i: layouts[i].start)
        counts = [whole // part for whole, part in zip(shape, box, strict=True)]
        grid = jnp.stack([boxes[i] for i in order], axis=1).reshape(-1, *counts, *box)
        axes = [1 + i + side * len(box) for i in range(len(box)) for side in (0, 1)]
        return grid.transpose(0, *axes).reshape(-1, *shape)
    total = jnp.zeros((blocks[0].shape[0], *shape), jnp.result_type(*blocks))
    for layout, rows in zip(layouts, boxes, strict=True):
        total = lax.dynamic_update_slice(total, rows.astype(total.dtype), (0, *layout.start))
    return total


def layout(shape: tuple[int, ...], offset: int, batch: Pieces, left: Pieces, right: Pieces) -> Layout:
    """The layout of an outer product whose axes walk over these pieces; left and right are ordered."""
    start, box = _box(shape, offset, (*batch, *left, *right))
    left, right = sorted((merged(left), merged(right)), key=lambda p: [-stride for _, stride in p] or [1])
    return Layout(shape, start, box, merged(batch), left, right)


def _box(shape: tuple[int, ...], offset: int, pieces: Pieces) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if prod(size for size, _ in pieces) == prod(shape):
        return (0,) * len(shape), shape
    steps = strides(shape)
    start = tuple(offset // step % size for size, step in zip(shape, steps, strict=True))
    box = [1] * len(shape)
    for size, stride in pieces:
        axis = next(i for i, step in enumerate(steps) if step <= stride and shape[i] > 1)
        if stride % steps[axis] or (size - 1) * stride >= steps[axis] * shape[axis]:
            raise UnstructuredError("a slice across merged axes")
        box[axis] += (size - 1) * (stride // steps[axis])
    if prod(box) != prod(size for size, _ in pieces):
        raise UnstructuredError("a strided slice")
    return start, tuple(box)
