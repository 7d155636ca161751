"""The product at the end of a trail: which of its axes are kept, and which are summed over."""

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from . import compat
from ._terms import Factor, Offset, Role, Term
from ._trace import Program, Ref
from ._views import Dim, UnstructuredError, View
from .compat import JaxprEqn, Literal


class Trail(NamedTuple):
    """What has been passed on the way from the leaf."""

    view: View
    visits: Iterator[int]  # gives out a number for each equation that may still be read
    loops: tuple[tuple[Dim, int], ...] = ()  # with their lengths
    factors: tuple[Factor, ...] = ()
    sign: int = 1
    quarter_turns: int = 0
    real: bool = False


MOST_OFFSETS = 64
"""A convolution with a larger window keeps its rows: each offset in the window is a product of its own."""


def products(program: Program, eqn: JaxprEqn, trail: Trail) -> list[Term]:
    """The terms of a product (matrix product, convolution, `mul`) whose output the trail's view describes."""
    if eqn.primitive.name != "conv_general_dilated":
        return [_product(program, eqn, trail)]
    _, _, *space = eqn.params["dimension_numbers"].out_spec
    dims = [trail.view.dims[axis] for axis in space]
    sizes = [compat.shape(eqn.outvars[0])[axis] for axis in space]
    if prod(sizes) > MOST_OFFSETS:
        raise UnstructuredError(f"used by a convolution with {prod(sizes)} offsets")
    if any(dim.take is not None or dim.pieces is None or len(dim.kept) > 1 for dim in dims):
        raise UnstructuredError("a view of the offsets of a convolution")
    terms = []
    for place in np.ndindex(*sizes):
        steps = [dim.kept[0][1] if dim.kept else 0 for dim in dims]
        offset = trail.view.offset + sum(i * step for i, step in zip(place, steps, strict=True))
        view = View(trail.view.dims, offset)
        terms.append(_product(program, eqn, trail._replace(view=view), place))
    return terms


def _product(program: Program, eqn: JaxprEqn, trail: Trail, place: tuple[int, ...] | None = None) -> Term:
    skip = len(trail.loops)
    roles = [
        Role(_kept(dim), dim, dim.take[1] if dim.take else length, (i, i))
        for i, (dim, length) in enumerate(trail.loops)
    ]
    left, right = eqn.invars
    if place is not None:
        roles += _convolution_roles(eqn, trail.view.dims, skip)
    elif eqn.primitive.name == "dot_general":
        roles += _dot_roles(eqn, trail.view.dims, skip)
    else:
        (left, axes), (right, others) = _narrow(program, left), _narrow(program, right)
        roles += _broadcast_roles(compat.shape(eqn.outvars[0]), axes, others, trail.view.dims, skip)
    return Term(
        operands=(Ref(program, left), Ref(program, right)),
        roles=tuple(roles),
        offset=trail.view.offset,
        factors=trail.factors,
        sign=trail.sign,
        quarter_turns=trail.quarter_turns,
        real=trail.real,
        loops=tuple(length for _, length in trail.loops),
        convolution=None if place is None else Offset(eqn, place),
    )


def _kept(dim: Dim) -> str:
    return "sum" if dim.pieces is None else "batch"


def _dot_roles(eqn: JaxprEqn, dims: tuple[Dim, ...], skip: int) -> list[Role]:
    left, right = (compat.shape(atom) for atom in eqn.invars)
    (sum_l, sum_r), (batch_l, batch_r) = eqn.params["dimension_numbers"]
    rest = iter(dims)
    roles = []
    for a, b in zip(batch_l, batch_r, strict=True):
        dim = next(rest)
        roles.append(Role(_kept(dim), dim, dim.take[1] if dim.take else left[a], (skip + a, skip + b)))
    for a in range(len(left)):
        if a not in sum_l and a not in batch_l:
            roles.append(Role("left", next(rest), left[a], (skip + a, -1)))
    for b in range(len(right)):
        if b not in sum_r and b not in batch_r:
            roles.append(Role("right", next(rest), right[b], (-1, skip + b)))
    for a, b in zip(sum_l, sum_r, strict=True):
        roles.append(Role("sum", Dim(None), left[a], (skip + a, skip + b)))
    return roles


def _narrow(program: Program, atom: Any) -> tuple[Any, dict[int, int]]:
    """A value before it was broadcast, and which axes of the result its own axes (longer than one) are."""
    axes = {i: i for i, size in enumerate(compat.shape(atom)) if size > 1}
    while not isinstance(atom, Literal):
        eqn = program.made_by(atom)
        if eqn is None or eqn.primitive.name != "broadcast_in_dim":
            break
        atom, places = eqn.invars[0], eqn.params["broadcast_dimensions"]
        own = {place: i for i, place in enumerate(places) if compat.shape(atom)[i] > 1}
        axes = {axis: own[place] for axis, place in axes.items() if place in own}
    return atom, axes


def _broadcast_roles(
    shape: tuple[int, ...], left: dict[int, int], right: dict[int, int], dims: tuple[Dim, ...], skip: int
) -> list[Role]:
    """Axes of an elementwise product: those that only one operand really has make it an outer product."""
    roles = []
    for axis, dim in enumerate(dims):
        size = dim.take[1] if dim.take else shape[axis]
        a, b = (skip + side[axis] if axis in side else -1 for side in (left, right))
        if a < 0 and b < 0:
            if size > 1:
                raise UnstructuredError("the same number for several entries (broadcast)")
            continue
        kind = "left" if b < 0 else "right" if a < 0 else _kept(dim)
        roles.append(Role(kind, dim, size, (a, b)))
    kinds = {role.kind for role in roles if role.dim.kept}
    if not {"left", "right"} <= kinds:
        raise UnstructuredError("an elementwise product with an array")
    return roles


def _convolution_roles(eqn: JaxprEqn, dims: tuple[Dim, ...], skip: int) -> list[Role]:
    """Axes of a slice `[batch, feature, *window]` and of the kernel `[out, feature, *window]`."""
    if eqn.params["feature_group_count"] != 1 or eqn.params["batch_group_count"] != 1:
        raise UnstructuredError("used by a grouped convolution")
    numbers = eqn.params["dimension_numbers"]
    right = [compat.shape(eqn.invars[1])[i] for i in numbers.rhs_spec]
    out = compat.shape(eqn.outvars[0])
    batch, feature, *_ = numbers.out_spec
    roles = [
        Role("left", dims[batch], out[batch], (skip, -1)),
        Role("right", dims[feature], out[feature], (-1, skip)),
    ]
    return roles + [
        Role("sum", Dim(None), size, (skip + i, skip + i)) for i, size in enumerate(right[1:], start=1)
    ]
