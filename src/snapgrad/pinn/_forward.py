"""The forward Laplacian: value, gradient and Laplacian of a function in one forward pass.

Every intermediate carries `(v, ∂v, Δv)`: its value, its q directional derivatives and the sum of its second
derivatives. A linear map acts on all q + 2 of them alike, so that a weight matrix sees q + 2 vectors for each
point and a row of the Jacobian is q + 2 outer products. Nested automatic differentiation has about twice as
many.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from ..structure.compat import ClosedJaxpr, JaxprEqn, Literal, bind, called

# Linear in all operands together; of select_n, gather and dynamic slices the index is not differentiated.
_LINEAR = {
    "add",
    "add_any",
    "sub",
    "neg",
    "reshape",
    "transpose",
    "broadcast_in_dim",
    "squeeze",
    "slice",
    "pad",
}
_LINEAR |= {
    "concatenate",
    "rev",
    "reduce_sum",
    "cumsum",
    "convert_element_type",
    "copy",
    "copy_p",
    "real",
    "imag",
}
_LINEAR |= {"select_n", "gather", "dynamic_slice", "split", "reduce_precision"}
# Linear in each operand alone.
_MULTILINEAR = {"mul", "dot_general", "conv_general_dilated"}
# Acts on every entry by itself.
_ELEMENTWISE = {
    "tanh",
    "sin",
    "cos",
    "tan",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "logistic",
    "sqrt",
    "rsqrt",
}
_ELEMENTWISE |= {
    "cbrt",
    "square",
    "integer_pow",
    "erf",
    "erfc",
    "erf_inv",
    "sinh",
    "cosh",
    "asin",
    "acos",
    "atan",
}
_ELEMENTWISE |= {"asinh", "acosh", "atanh", "abs", "lgamma", "digamma"}


class Jet(NamedTuple):
    """A value, its directional derivatives and the sum of its second derivatives."""

    value: Inexact[Array, "*s"]
    slopes: Inexact[Array, "q *s"]
    laplacian: Inexact[Array, "*s"]


def forward_laplacian(
    fn: Callable, x: Float[Array, " d"], directions: Float[Array, "q d"], summed: Sequence[int]
) -> Jet:
    """`fn` at x: value, derivatives along `directions`, and the second ones summed over those in `summed`."""
    closed = jax.make_jaxpr(fn)(x)
    if len(closed.jaxpr.outvars) != 1:
        raise TypeError(
            f"`u` must return one array for a point, got {len(closed.jaxpr.outvars)} of them; "
            f"differentiate them one by one."
        )
    start = Jet(x, directions, jnp.zeros_like(x))
    (out,) = _run(closed, [start], tuple(summed))
    if isinstance(out, Jet):
        return out
    zeros = jnp.zeros_like(out)  # a constant
    return Jet(out, jnp.broadcast_to(zeros, (len(directions), *zeros.shape)), zeros)


def _run(closed: ClosedJaxpr, args: Sequence[Any], summed: tuple[int, ...]) -> list[Any]:
    env: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    env |= dict(zip(closed.jaxpr.invars, args, strict=True))
    read = lambda atom: atom.val if isinstance(atom, Literal) else env[atom]  # noqa: E731
    for eqn in closed.jaxpr.eqns:
        values = [read(atom) for atom in eqn.invars]
        if not any(isinstance(value, Jet) for value in values):
            outs = bind(eqn, values)
        elif (inner := called(eqn)) is not None:
            outs = _run(inner, values, summed)
        else:
            outs = _push(eqn, values, summed)
        env |= dict(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _push(eqn: JaxprEqn, values: list[Any], summed: tuple[int, ...]) -> list[Any]:
    """One equation on jets: the chain rule to second order."""
    active = [i for i, value in enumerate(values) if isinstance(value, Jet) and _inexact(value.value)]
    plain = [value.value if isinstance(value, Jet) else value for value in values]
    if not active:
        return bind(eqn, plain)

    outs = bind(eqn, plain)
    smooth = [i for i, out in enumerate(outs) if _inexact(out)]  # a loop may carry a counter as well
    if not smooth:
        return outs

    def fn(*moving: Any) -> list[Any]:
        filled = list(plain)
        for i, value in zip(active, moving, strict=True):
            filled[i] = value
        found = bind(eqn, filled)
        return [found[i] for i in smooth]

    points = tuple(values[i].value for i in active)
    # One product for the slopes and the Laplacian: a weight then sees them side by side.
    tangents = [jnp.concatenate([values[i].slopes, values[i].laplacian[None]]) for i in active]
    pushed = jax.vmap(lambda *t: jax.jvp(fn, points, t)[1])(*tangents)
    second = _second(eqn, fn, active, points, [values[i].slopes[jnp.array(summed)] for i in active])
    for j, i in enumerate(smooth):
        laplacian = pushed[j][-1] if second is None else pushed[j][-1] + second[j]
        outs[i] = Jet(outs[i], pushed[j][:-1], laplacian)
    return outs


def _second(
    eqn: JaxprEqn, fn: Callable, active: list[int], points: tuple[Any, ...], slopes: list[Any]
) -> list[Any] | None:
    """Σ D²f[s, s] over the directions, or None where it vanishes."""
    name = eqn.primitive.name
    alone = len(active) == 1
    if name in _LINEAR or (name in _MULTILINEAR and alone) or (name == "div" and active == [0]):
        return None

    def along(*direction: Any) -> list[Any]:
        def slope(*moved: Any) -> list[Any]:
            return jax.jvp(fn, moved, direction)[1]

        return jax.jvp(slope, points, direction)[1]

    if name in _ELEMENTWISE:  # f'' once, whatever the number of directions
        ones = [jnp.ones_like(p) for p in points]
        return [along(*ones)[0] * jnp.sum(slopes[0] ** 2, axis=0)]
    return [jnp.sum(out, axis=0) for out in jax.vmap(along)(*slopes)]


def _inexact(value: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(value), jnp.inexact)
