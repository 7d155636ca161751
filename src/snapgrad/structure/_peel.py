"""Reading a leaf's gradient backwards until its outer products are found.

The gradient of a weight used in `y = x @ W` is computed as `x ⊗ g`: a `dot_general` (or a convolution of
patches) near the end of the gradient program, followed by transposes, reshapes, casts, slices and sums.
`peel` undoes the latter symbolically and asks the program for the operands `x` and `g`, not the product.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np

from . import _views as views
from . import compat
from ._products import Trail, products
from ._terms import Factor, Term
from ._trace import Program, Ref
from ._views import Dim, UnstructuredError, View
from .compat import JaxprEqn, Literal

MOST_TERMS = 128
"""A leaf keeps its rows if its gradient has more sums of outer products: each is compiled on its own."""
MOST_EQUATIONS = 64 * MOST_TERMS
"""A leaf keeps its rows if more equations have to be read: shared sums are walked along every path."""


def peel(program: Program, index: int, shape: tuple[int, ...]) -> list[Term]:
    """The outer products that add up to output `index`.

    Raises `UnstructuredError` if something else contributes to it, or if there are too many of them.
    """
    visits = iter(range(MOST_EQUATIONS))
    terms = _peel(program, program.jaxpr.outvars[index], Trail(views.leaf_view(shape), visits))
    if len(terms) > MOST_TERMS:
        raise UnstructuredError(f"{len(terms)} sums of outer products, which would take long to compile")
    return terms


def is_zero(program: Program, atom: Any) -> bool:
    """Whether a value is zero by construction."""
    if isinstance(atom, Literal):
        return bool(np.all(np.asarray(atom.val) == 0))
    eqn = program.made_by(atom)
    if eqn is None or eqn.primitive.name not in (
        "broadcast_in_dim",
        "convert_element_type",
        "reshape",
        "pad",
    ):
        return False
    return all(is_zero(program, a) for a in eqn.invars)


def _peel(program: Program, atom: Any, trail: Trail) -> list[Term]:
    if next(trail.visits, None) is None:
        raise UnstructuredError(f"a sum along more than {MOST_EQUATIONS} equations")
    if is_zero(program, atom):
        return []
    eqn = program.made_by(atom)
    if eqn is None:
        raise UnstructuredError("it is an input of the gradient program")
    name = eqn.primitive.name
    if name in ("dot_general", "conv_general_dilated"):
        return products(program, eqn, trail)
    if name == "scan":
        return _peel_loop(program, eqn, atom, trail)
    if name in _SUMS:
        signs = _SUMS[name]
        return [
            term
            for operand, sign in zip(eqn.invars, signs, strict=True)
            for term in _peel(program, operand, trail._replace(sign=trail.sign * sign))
        ]
    if name in ("mul", "div"):
        return _peel_scaled(program, eqn, trail)
    if name == "concatenate":
        return _peel_concatenate(program, eqn, trail)
    if name == "split":
        whole = compat.shape(eqn.invars[0])
        axis, position = eqn.params["axis"], _position(eqn, atom)
        sizes = [int(size) for size in eqn.params["sizes"]]  # NumPy's, where the program is a transposed one
        start, size = sum(sizes[:position]), sizes[position]
        view = views.before_slice(trail.view, axis, start, size, whole[axis])
        return _peel(program, eqn.invars[0], trail._replace(view=view))
    if name in _ONE_OPERAND:
        operand, trail = _ONE_OPERAND[name](program, eqn, trail)
        return _peel(program, operand, trail)
    raise UnstructuredError(f"used by `{name}`")


_SUMS = {"add_any": (1, 1), "add": (1, 1), "sub": (1, -1), "neg": (-1,), "copy": (1,), "copy_p": (1,)}


def _reshape(program: Program, eqn: JaxprEqn, trail: Trail) -> tuple[Any, Trail]:
    del program
    view = views.before_reshape(trail.view, compat.shape(eqn.invars[0]))
    return eqn.invars[0], trail._replace(view=view)


def _transpose(program: Program, eqn: JaxprEqn, trail: Trail) -> tuple[Any, Trail]:
    del program
    view = views.before_transpose(trail.view, eqn.params["permutation"])
    return eqn.invars[0], trail._replace(view=view)


def _squeeze(program: Program, eqn: JaxprEqn, trail: Trail) -> tuple[Any, Trail]:
    del program
    view = views.before_remove(trail.view, eqn.params["dimensions"], Dim(()))
    return eqn.invars[0], trail._replace(view=view)


def _reduce_sum(program: Program, eqn: JaxprEqn, trail: Trail) -> tuple[Any, Trail]:
    del program
    view = views.before_remove(trail.view, eqn.params["axes"], Dim(None))
    return eqn.invars[0], trail._replace(view=view)


def _broadcast(program: Program, eqn: JaxprEqn, trail: Trail) -> tuple[Any, Trail]:
    del program
    operand, places = eqn.invars[0], eqn.params["broadcast_dimensions"]
    if prod(compat.shape(operand)) != prod(eqn.params["shape"]):
        raise UnstructuredError("the same number for several entries (broadcast)")
    return operand, trail._replace(view=views.before_insert(trail.view, places))


def _pad(program: Program, eqn: JaxprEqn, trail: Trail) -> tuple[Any, Trail]:
    operand, value = eqn.invars
    view = trail.view
    for axis, (low, high, interior) in enumerate(eqn.params["padding_config"]):
        if low < 0 or high < 0 or interior or not is_zero(program, value):
            raise UnstructuredError("a strided or cropping pad")
        view = views.before_pad(view, axis, int(low), compat.shape(operand)[axis])
    return operand, trail._replace(view=view)


def _slice(program: Program, eqn: JaxprEqn, trail: Trail) -> tuple[Any, Trail]:
    del program
    if any(step != 1 for step in eqn.params["strides"] or ()):
        raise UnstructuredError("a strided slice")
    view = trail.view
    whole = compat.shape(eqn.invars[0])
    for axis, (a, b) in enumerate(zip(eqn.params["start_indices"], eqn.params["limit_indices"], strict=True)):
        view = views.before_slice(view, axis, int(a), int(b) - int(a), whole[axis])
    return eqn.invars[0], trail._replace(view=view)


def _update_slice(program: Program, eqn: JaxprEqn, trail: Trail) -> tuple[Any, Trail]:
    base, update, *starts = eqn.invars
    if not is_zero(program, base) or not all(isinstance(s, Literal) for s in starts):
        raise UnstructuredError("a slice at a computed position")
    view = trail.view
    for axis, start in enumerate(starts):
        most = compat.shape(base)[axis] - compat.shape(update)[axis]  # JAX clamps the start
        low = min(max(int(compat.value(start)), 0), most)
        view = views.before_pad(view, axis, low, compat.shape(update)[axis])
    return update, trail._replace(view=view)


def _cast(program: Program, eqn: JaxprEqn, trail: Trail) -> tuple[Any, Trail]:
    del program
    given, result = compat.dtype(eqn.invars[0]), compat.dtype(eqn.outvars[0])
    if not jnp.issubdtype(given, jnp.inexact):
        raise UnstructuredError(f"a cast from {given}")
    loses = jnp.issubdtype(given, jnp.complexfloating) and not jnp.issubdtype(result, jnp.complexfloating)
    return eqn.invars[0], trail._replace(real=trail.real or loses)


def _imag(program: Program, eqn: JaxprEqn, trail: Trail) -> tuple[Any, Trail]:
    operand, trail = _cast(program, eqn, trail)
    return operand, trail._replace(quarter_turns=trail.quarter_turns + 1)


_ONE_OPERAND: dict[str, Callable[[Program, JaxprEqn, Trail], tuple[Any, Trail]]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "reduce_sum": _reduce_sum,
    "broadcast_in_dim": _broadcast,
    "pad": _pad,
    "slice": _slice,
    "dynamic_update_slice": _update_slice,
    "convert_element_type": _cast,
    "real": _cast,
    "imag": _imag,
}


def _position(eqn: JaxprEqn, atom: Any) -> int:
    return next(i for i, var in enumerate(eqn.outvars) if var is atom)


def _peel_scaled(program: Program, eqn: JaxprEqn, trail: Trail) -> list[Term]:
    """A product or quotient by one number, or an outer product written as `x[:, None] * g[None, :]`."""
    divide = eqn.primitive.name == "div"
    for operand, other in ((0, 1),) if divide else ((0, 1), (1, 0)):
        number = _one_number(program, eqn.invars[other])
        if number is not None and compat.shape(eqn.invars[operand]) == compat.shape(eqn.outvars[0]):
            factor = Factor(Ref(program, number), divide)
            return _peel(program, eqn.invars[operand], trail._replace(factors=(*trail.factors, factor)))
    if divide:
        raise UnstructuredError("an elementwise quotient")
    return products(program, eqn, trail)


def _one_number(program: Program, atom: Any) -> Any:
    while compat.shape(atom) != ():
        eqn = program.made_by(atom)
        if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "reshape"):
            return None
        atom = eqn.invars[0]
    return atom


def _peel_concatenate(program: Program, eqn: JaxprEqn, trail: Trail) -> list[Term]:
    axis, low, terms = eqn.params["dimension"], 0, []
    for operand in eqn.invars:
        size = compat.shape(operand)[axis]
        view = views.before_pad(trail.view, axis, low, size)
        terms += _peel(program, operand, trail._replace(view=view))
        low += size
    return terms


def _peel_loop(program: Program, eqn: JaxprEqn, atom: Any, trail: Trail) -> list[Term]:
    """Stacked outputs of a loop keep its steps apart; a carry that only adds up sums over them."""
    index, position = program.producer[atom], _position(eqn, atom)
    consts, carry = compat.loop_split(eqn)
    body, length = program.loop(index), eqn.params["length"]
    out = body.jaxpr.outvars[position]
    if position >= carry:
        step, *rest = trail.view.dims
        trail = trail._replace(
            view=View(tuple(rest), trail.view.offset), loops=(*trail.loops, (step, length))
        )
        return _peel(body, out, trail)
    if not is_zero(program, eqn.invars[consts + position]):
        raise UnstructuredError("a loop that does not start from zero")
    before = body.jaxpr.invars[consts + position]
    terms = _peel_sum(body, out, before, trail._replace(loops=(*trail.loops, (Dim(None), length))))
    body.sums.add(position)
    return terms


def _peel_sum(body: Program, out: Any, before: Any, trail: Trail) -> list[Term]:
    """The terms of `out = before + terms`, where neither `before` nor a partial sum is read elsewhere."""
    if body.consumers(out) == 1 and out is before:
        return []
    eqn = body.made_by(out)
    if body.consumers(out) == 1 and eqn is not None and eqn.primitive.name in ("add_any", "add"):
        a, b = eqn.invars
        if _leads_to(body, a, before):
            return _peel_sum(body, a, before, trail) + _peel(body, b, trail)
        if _leads_to(body, b, before):
            return _peel_sum(body, b, before, trail) + _peel(body, a, trail)
    raise UnstructuredError("a loop that transforms its carried gradient")


def _leads_to(body: Program, atom: Any, before: Any) -> bool:
    """Whether `before` is one of the summands of a value."""
    queue, seen = [atom], set()
    while queue:
        atom = queue.pop()
        if atom is before:
            return True
        eqn = body.made_by(atom)
        if eqn is not None and eqn.primitive.name in ("add_any", "add") and atom not in seen:
            seen.add(atom)
            queue += eqn.invars
    return False
