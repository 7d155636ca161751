"""One sum of outer products inside a leaf's gradient, and its operands in a common layout."""

from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Inexact

from . import compat
from ._trace import Captured, Ref
from ._views import Dim, Pieces, UnstructuredError
from .compat import JaxprEqn


class Role(NamedTuple):
    """What becomes of one axis of a product: it is kept (`left`, `right`, `batch`) or summed over (`sum`)."""

    kind: str
    dim: Dim
    size: int
    axes: tuple[int, int]  # its place in the left and in the right operand, or −1


class Factor(NamedTuple):
    """A number met on the way from the leaf: multiply by it, or divide."""

    ref: Ref
    divide: bool


class Term(NamedTuple):
    """`Σ_a left_a ⊗ right_a`, for every loop step and batch axis, at an offset in its leaf."""

    operands: tuple[Ref, Ref]
    roles: tuple[Role, ...]
    offset: int
    factors: tuple[Factor, ...] = ()
    sign: int = 1
    quarter_turns: int = 0  # times −i, which turns an imaginary part into a real one
    real: bool = False  # only the real part of the product reaches the leaf
    loops: tuple[int, ...] = ()  # lengths of the loops that both operands are stacked over
    convolution: JaxprEqn | None = None

    @property
    def avals(self) -> tuple[Any, Any]:
        """Shapes and dtypes of the operands, for one point."""
        return self.operands[0].atom.aval, self.operands[1].atom.aval

    @property
    def products(self) -> int:
        """The number of outer products per row."""
        twice = self.real and all(jnp.issubdtype(a.dtype, jnp.complexfloating) for a in self.avals)
        return (2 if twice else 1) * int(np.prod([r.size for r in self.roles if r.kind == "sum"], dtype=int))

    def pieces(self, kind: str) -> Pieces:
        """The entries of the leaf that axes of this kind walk over."""
        return tuple(piece for role in self.roles if role.kind == kind for piece in role.dim.kept)

    def check(self) -> None:
        """Raise `UnstructuredError` unless the roles account for every entry of both operands.

        They always should; but rows, which are right, must be kept where a program was misread.
        """
        for side, shape in enumerate(self._shapes()):
            left_over = dict(enumerate((*self.loops, *shape)))
            for role in self.roles:
                axis = role.axes[side]
                if axis < 0:
                    continue
                size = left_over.pop(axis, -1)
                start, used = role.dim.take or (0, size)
                summed = role.dim.pieces is None
                wanted = used if summed else prod(n for n, _ in role.dim.kept)
                wanted = role.size if summed and role.kind == "sum" else wanted
                if size < 0 or start + used > size or used != wanted:
                    raise UnstructuredError("a product whose operands do not fit together")
            if any(size != 1 for size in left_over.values()):
                raise UnstructuredError("a product whose operands do not fit together")

    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of both operands for one step of the loops, a convolution as in `_patches`."""
        left, right = (aval.shape for aval in self.avals)
        if self.convolution is None:
            return left, right
        numbers, out = self.convolution.params["dimension_numbers"], compat.shape(self.convolution.outvars[0])
        kernel = tuple(right[i] for i in numbers.rhs_spec)
        batch, feature = (left[i] for i in numbers.lhs_spec[:2])
        return (batch, *(out[i] for i in numbers.out_spec[2:]), feature, *kernel[2:]), kernel

    def want(self) -> "Term":
        """Have the program return the operands whenever it is run."""
        for ref in (*self.operands, *(factor.ref for factor in self.factors)):
            ref.want()
        return self

    def evaluate(self, captured: Captured) -> tuple[Inexact[Array, "b a l"], Inexact[Array, "b a r"]]:
        """Both operands, each as an array of batch × outer products × entries."""
        left, right = (jnp.asarray(captured.get(ref)) for ref in self.operands)
        if self.convolution is not None:
            patches = partial(_patches, self.convolution)
            for _ in self.loops:
                patches = jax.vmap(patches)
            left, right = patches(left, right)
        for factor in self.factors:
            number = jnp.asarray(captured.get(factor.ref))
            number = number.reshape(number.shape + (1,) * (left.ndim - number.ndim))
            left = left / number if factor.divide else left * number
        left = left * self.sign if self.sign != 1 else left
        left = left * (-1j) ** self.quarter_turns if self.quarter_turns else left
        left, right = _arrange(left, self.roles, 0), _arrange(right, self.roles, 1)
        if self.real and jnp.iscomplexobj(left) and jnp.iscomplexobj(right):
            # Re(l ⊗ r) = Re l ⊗ Re r − Im l ⊗ Im r
            left = jnp.concatenate([left.real, left.imag], axis=1)
            return left, jnp.concatenate([right.real, -right.imag], axis=1)
        return (left.real, right.real) if self.real else (left, right)


def _arrange(array: Inexact[Array, "..."], roles: tuple[Role, ...], side: int) -> Inexact[Array, "b a f"]:
    """Axes in the order batch, sum, free; within each the widest stride in the leaf first."""
    own = ("left", "right")[side]
    present = sorted(
        ((role.axes[side], place, role) for place, role in enumerate(roles) if role.axes[side] >= 0),
        key=lambda entry: entry[0],
    )
    summed, tags = [], []
    for axis, place, role in present:
        if role.dim.take is not None:
            start, size = role.dim.take
            array = lax.slice_in_dim(array, start, start + size, axis=axis)
        if role.kind == own and role.dim.pieces is None:
            summed.append(axis)
        elif role.kind == "sum":
            tags.append((1, place, role.size))
        else:
            group = 0 if role.kind == "batch" else 2
            tags += [(group, -stride, size) for size, stride in role.dim.kept]
    array = jnp.sum(array, axis=tuple(summed)) if summed else array
    order = sorted(range(len(tags)), key=lambda i: tags[i][:2])
    sizes = [int(np.prod([size for group, _, size in tags if group == g], dtype=int)) for g in range(3)]
    return array.reshape([size for _, _, size in tags]).transpose(order).reshape(sizes)


def _patches(
    eqn: JaxprEqn, left: Inexact[Array, "..."], right: Inexact[Array, "..."]
) -> tuple[Inexact[Array, "..."], Inexact[Array, "..."]]:
    """A convolution as a product of patches `[batch, *out, feature, *window]` and a kernel."""
    params = eqn.params
    numbers = params["dimension_numbers"]
    left, right = left.transpose(numbers.lhs_spec), right.transpose(numbers.rhs_spec)
    window = right.shape[2:]
    cut = lax.conv_general_dilated_patches(
        left,
        window,
        params["window_strides"],
        params["padding"],
        lhs_dilation=params["lhs_dilation"],
        rhs_dilation=params["rhs_dilation"],
        precision=lax.Precision.HIGHEST,
    )
    batch, feature, space = left.shape[0], left.shape[1], len(window)
    cut = cut.reshape(batch, feature, *window, *cut.shape[2:])
    out = range(2 + space, 2 + 2 * space)
    return cut.transpose(0, *out, *range(1, 2 + space)), right
