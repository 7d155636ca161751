"""One sum of outer products inside a leaf's gradient, and its operands in a common layout."""

from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Inexact

from . import compat
from ._trace import Captured, Ref, Taken
from ._views import Dim, Pieces, UnstructuredError
from .compat import JaxprEqn, Literal


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


class Offset(NamedTuple):
    """One entry of a convolution's output, where it is a plain product of a slice with the kernel."""

    eqn: JaxprEqn
    place: tuple[int, ...]

    def slices(
        self, left: Inexact[Array, "..."], right: Inexact[Array, "..."]
    ) -> tuple[Inexact[Array, "..."], Inexact[Array, "..."]]:
        """The slice `[batch, feature, *window]`, and the kernel `[out, feature, *window]`."""
        params = self.eqn.params
        numbers = params["dimension_numbers"]
        right = right.transpose(numbers.rhs_spec)
        ends = zip(params["padding"], params["lhs_dilation"], strict=True)
        config = {
            axis: (low, high, step - 1)
            for axis, ((low, high), step) in zip(numbers.lhs_spec[2:], ends, strict=True)
        }
        left = lax.pad(left, jnp.zeros((), left.dtype), [config.get(i, (0, 0, 0)) for i in range(left.ndim)])
        start, stop, steps = [0] * left.ndim, list(left.shape), [1] * left.ndim
        for i, axis in enumerate(numbers.lhs_spec[2:]):
            start[axis] = self.place[i] * params["window_strides"][i]
            steps[axis] = params["rhs_dilation"][i]
            stop[axis] = start[axis] + (right.shape[2 + i] - 1) * steps[axis] + 1
        return lax.slice(left, start, stop, steps).transpose(numbers.lhs_spec), right


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
    convolution: Offset | None = None

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
        """Shapes of both operands for one step of the loops, of a convolution as `Offset` slices them."""
        left, right = (aval.shape for aval in self.avals)
        if self.convolution is None:
            return left, right
        numbers = self.convolution.eqn.params["dimension_numbers"]
        kernel = tuple(right[i] for i in numbers.rhs_spec)
        return (left[numbers.lhs_spec[0]], *kernel[1:]), kernel

    def want(self) -> "Term":
        """Have the program return the operands whenever it is run."""
        for ref in self.refs():
            ref.want()
        return self

    def refs(self) -> list[Ref]:
        """The values that it is made of."""
        return [*self.operands, *(factor.ref for factor in self.factors)]

    @property
    def plain(self) -> bool:
        """Whether its operands are taken as they are, up to their arrangement."""
        return not (self.factors or self.quarter_turns or self.real or self.loops) and self.sign == 1

    def name(self, side: int) -> Any:
        """Equal for operands that are equal arrays once they are arranged."""
        ref, form = self.operands[side], arrangement(self.roles, side)
        numbers = [factor.ref.atom for factor in self.factors] if side == 0 else []
        if self.convolution is not None or any(isinstance(atom, Literal) for atom in (ref.atom, *numbers)):
            return object()
        if (
            self.plain
            and not form.takes
            and not form.summed
            and form.sizes[:2] == (1, 1)
            and len(form.split) == 1
        ):
            return vector_name(ref, compat.dtype(ref.atom))
        changes = (self.factors, self.sign, self.quarter_turns) if side == 0 else ()
        other = compat.dtype(self.operands[1 - side].atom) if self.real else None
        return ref.program.path, ref.atom, form, self.loops, self.real, other, changes

    def evaluate(self, captured: Captured | Taken) -> tuple[Inexact[Array, "b a l"], Inexact[Array, "b a r"]]:
        """Both operands, each as an array of batch × outer products × entries."""
        left, right = (jnp.asarray(captured.get(ref)) for ref in self.operands)
        if self.convolution is not None:
            patches = self.convolution.slices
            for _ in self.loops:
                patches = jax.vmap(patches)
            left, right = patches(left, right)
        for factor in self.factors:
            number = jnp.asarray(captured.get(factor.ref))
            number = number.reshape(number.shape + (1,) * (left.ndim - number.ndim))
            left = left / number if factor.divide else left * number
        left = left * self.sign if self.sign != 1 else left
        left = left * (-1j) ** self.quarter_turns if self.quarter_turns else left
        left, right = arrangement(self.roles, 0)(left), arrangement(self.roles, 1)(right)
        if self.real and jnp.iscomplexobj(left) and jnp.iscomplexobj(right):
            # Re(l ⊗ r) = Re l ⊗ Re r − Im l ⊗ Im r
            left = jnp.concatenate([left.real, left.imag], axis=1)
            return left, jnp.concatenate([right.real, -right.imag], axis=1)
        return (left.real, right.real) if self.real else (left, right)


def vector_name(ref: Ref, dtype: Any) -> Any:
    """Equal for vectors that are equal up to axes of size one; unlike any other if it is no vector."""
    program, atom = ref
    while not isinstance(atom, Literal):
        eqn = program.made_by(atom)
        if eqn is None or eqn.primitive.name not in _SAME_NUMBERS or len(eqn.invars) != 1:
            break
        if compat.dtype(eqn.invars[0]) != dtype or prod(compat.shape(eqn.invars[0])) != prod(
            compat.shape(atom)
        ):
            break
        atom = eqn.invars[0]
    if isinstance(atom, Literal) or sum(size > 1 for size in compat.shape(atom)) > 1:
        return object()
    return program.path, atom, compat.dtype(atom) == dtype or object()


_SAME_NUMBERS = ("reshape", "squeeze", "broadcast_in_dim", "copy", "copy_p", "reduce_sum", "transpose")
"""These give the numbers of a vector again, in the same order, if the result has as many entries."""


class Arrangement(NamedTuple):
    """How one operand of a product becomes an array of batch × outer products × entries.

    Slices of it are taken, some axes are summed, and the others split and reordered: batch, sum, free,
    within each the widest stride in the leaf first.
    """

    takes: tuple[tuple[int, int, int], ...]  # axis, start, size
    summed: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]
    sizes: tuple[int, int, int]

    def __call__(self, array: Inexact[Array, "..."]) -> Inexact[Array, "b a f"]:
        """The operand, so arranged."""
        for axis, start, size in self.takes:
            array = lax.slice_in_dim(array, start, start + size, axis=axis)
        array = jnp.sum(array, axis=self.summed) if self.summed else array
        return array.reshape(self.split).transpose(self.order).reshape(self.sizes)


def arrangement(roles: tuple[Role, ...], side: int) -> Arrangement:
    """That of the left (0) or right (1) operand."""
    own = ("left", "right")[side]
    present = sorted(
        ((role.axes[side], place, role) for place, role in enumerate(roles) if role.axes[side] >= 0),
        key=lambda entry: entry[0],
    )
    takes, summed, tags = [], [], []
    for axis, place, role in present:
        if role.dim.take is not None:
            takes.append((axis, *role.dim.take))
        if role.kind == own and role.dim.pieces is None:
            summed.append(axis)
        elif role.kind == "sum":
            tags.append((1, place, role.size))
        else:
            group = 0 if role.kind == "batch" else 2
            tags += [(group, -stride, size) for size, stride in role.dim.kept]
    order = sorted(range(len(tags)), key=lambda i: tags[i][:2])
    sizes = [prod(size for group, _, size in tags if group == g) for g in range(3)]
    split = tuple(size for _, _, size in tags)
    return Arrangement(tuple(takes), tuple(summed), split, tuple(order), (sizes[0], sizes[1], sizes[2]))
