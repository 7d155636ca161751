"""Derivatives of a function in one forward pass: Taylor polynomials along directions, collapsed at the top.

Along a direction s every intermediate v(x + ts) has derivatives v₁, v₂, … in t at t = 0. They are pushed
through the traced function, for all directions side by side, by the chain rule of Faà di Bruno: with y = f(v)

    y₁ = Df[v₁],  y₂ = Df[v₂] + D²f[v₁, v₁],  y₃ = Df[v₃] + 3 D²f[v₁, v₂] + D³f[v₁, v₁, v₁],  …

The highest one enters linearly, so that where only a sum over directions is wanted, the sum alone is carried:
for the Laplacian this is the forward Laplacian. A linear map acts on all of them alike, so that a weight
matrix sees one vector for the value and one for each derivative carried, d + 2 of them for a Laplacian, and
that is how many outer products a row of the Jacobian has. Nested automatic differentiation has many more.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import comb
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Inexact

from ..linalg import inverse_slogdet
from ..structure.compat import (
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    bind,
    call_name,
    called,
    dtype,
    loop_body,
    loop_split,
    shape,
)

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


class Wanted(NamedTuple):
    """Derivatives of one order: Σ_q weights[i, q] · dᵏ/dtᵏ along directions[q], for each i."""

    directions: Float[np.ndarray, "q d"]
    weights: Float[np.ndarray, "m q"]


class Plan(NamedTuple):
    """Which derivatives are carried: rows of order k are mixes[k - 1] times those along the directions.

    Directions are sorted by the highest order they are needed for, so that those of order k or more are the
    first ones; rows of order k begin with the derivatives along the directions that are needed beyond k.
    """

    directions: Float[np.ndarray, "q d"]
    mixes: tuple[Float[np.ndarray, "r q"], ...]


class Jet(NamedTuple):
    """A value, and the derivatives that the plan carries, in one array: a weight sees them side by side."""

    value: Inexact[Array, "*s"]
    rows: Inexact[Array, "r *s"]


def taylor(
    fn: Callable, x: Float[Array, " d"], wanted: Mapping[int, Wanted]
) -> tuple[Inexact[Array, "*s"], dict[int, Inexact[Array, "m *s"]]]:
    """`fn` at x, and for each order the derivatives that are wanted, in one forward pass."""
    closed = jax.make_jaxpr(fn)(x)
    if len(closed.jaxpr.outvars) != 1:
        raise TypeError(
            f"`u` must return one array for a point, got {len(closed.jaxpr.outvars)} of them; "
            f"differentiate them one by one."
        )
    plan, reads = make_plan(wanted)
    if not plan.mixes:
        return fn(x), {}
    first = _mixed(plan.mixes[0], jnp.asarray(plan.directions, x.dtype))
    higher = sum(mix.shape[0] for mix in plan.mixes[1:])
    rows = jnp.concatenate([first, jnp.zeros((higher, *x.shape), x.dtype)])
    (out,) = _run(closed, [Jet(x, rows)], plan)
    if not isinstance(out, Jet):  # a constant
        value = jnp.asarray(out)
        out = Jet(value, jnp.zeros((rows.shape[0], *value.shape), value.dtype))
    parts = _parts(plan, out.rows)
    return out.value, {k: _mixed(read, parts[k - 1]) for k, read in reads.items()}


def make_plan(wanted: Mapping[int, Wanted]) -> tuple[Plan, dict[int, Float[np.ndarray, "m r"]]]:
    """What to carry for the derivatives that are wanted, and how to read them off the rows of each order."""
    tops: dict[tuple[float, ...], int] = {}
    for order, (directions, _) in wanted.items():
        for direction in map(tuple, directions.tolist()):
            tops[direction] = max(order, tops.get(direction, 0))
    ordered = sorted(tops, key=lambda direction: -tops[direction])
    mixes, reads = [], {}
    for order in range(1, max(tops.values(), default=0) + 1):
        count = sum(top >= order for top in tops.values())
        beyond = sum(top > order for top in tops.values())
        asked = np.zeros((0, count))
        if order in wanted:
            asked = np.zeros((len(wanted[order].weights), count))
            for q, direction in enumerate(map(tuple, wanted[order].directions.tolist())):
                asked[:, ordered.index(direction)] += wanted[order].weights[:, q]
        # Sums are carried in place of the directions that nothing beyond needs, where they are fewer.
        sums = np.any(asked[:, beyond:], axis=1)
        if np.count_nonzero(sums) < count - beyond:
            rows = np.concatenate([np.eye(beyond, count), asked[sums]])
            read = np.zeros((len(asked), len(rows)))
            read[~sums, :beyond] = asked[~sums, :beyond]
            read[sums, beyond:] = np.eye(int(np.count_nonzero(sums)))
        else:
            rows, read = np.eye(count), asked
        mixes.append(rows)
        if order in wanted:
            reads[order] = read
    return Plan(np.array(ordered), tuple(mixes)), reads


def _run(closed: ClosedJaxpr, args: Sequence[Any], plan: Plan) -> list[Any]:
    env: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    env |= dict(zip(closed.jaxpr.invars, args, strict=True))
    read = lambda atom: atom.val if isinstance(atom, Literal) else env[atom]  # noqa: E731
    for eqn in closed.jaxpr.eqns:
        values = [read(atom) for atom in eqn.invars]
        if not any(isinstance(value, Jet) for value in values):
            outs = bind(eqn, values)
        elif _is_slogdet(eqn) and len(plan.mixes) <= 2:
            outs = _slogdet(values[0], plan)
        elif (inner := called(eqn)) is not None:
            outs = _run(inner, values, plan)
        elif eqn.primitive.name == "scan":
            outs = _loop(eqn, values, plan)
        else:
            outs = _push(eqn, values, plan)
        env |= dict(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _loop(eqn: JaxprEqn, values: list[Any], plan: Plan) -> list[Any]:
    """A `scan` whose body is pushed through like any other program: what is carried may be a jet."""
    count = sum(mix.shape[0] for mix in plan.mixes)
    consts, carried = loop_split(eqn)
    given, state, slices = values[:consts], values[consts : consts + carried], values[consts + carried :]

    def as_jet(value: Any) -> Any:
        if isinstance(value, Jet) or not _inexact(value):
            return value
        value = jnp.asarray(value)
        return Jet(value, jnp.zeros((count, *value.shape), value.dtype))

    def swapped(value: Any) -> Any:
        """Rows first outside of the loop, steps first as the loop wants them."""
        return Jet(value.value, jnp.moveaxis(value.rows, 1, 0)) if isinstance(value, Jet) else value

    def step(state: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = _run(loop_body(eqn), [*given, *state, *slices], plan)
        return [as_jet(out) for out in outs[:carried]], outs[carried:]

    options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    state, outs = lax.scan(step, [as_jet(value) for value in state], [*map(swapped, slices)], **options)
    return [*state, *map(swapped, outs)]


def _push(eqn: JaxprEqn, values: list[Any], plan: Plan) -> list[Any]:
    """One equation on jets: the chain rule."""
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
    rows = [values[i].rows for i in active]
    if eqn.primitive.name in _ELEMENTWISE:
        return [Jet(outs[0], _elementwise(_tower(eqn, fn, points[0], len(plan.mixes)), rows[0], plan))]
    pushed = jax.vmap(lambda *tangents: jax.jvp(fn, points, tangents)[1])(*rows)
    if not _is_linear(eqn, active) and len(plan.mixes) > 1:
        highest = 2 if eqn.primitive.name in _MULTILINEAR else len(plan.mixes)
        curved = _curved(_slope(fn, points), rows, plan, highest)
        pushed = [a + b for a, b in zip(pushed, curved, strict=True)]
    for i, row in zip(smooth, pushed, strict=True):
        outs[i] = Jet(outs[i], row)
    return outs


def _is_linear(eqn: JaxprEqn, active: list[int]) -> bool:
    name = eqn.primitive.name
    return name in _LINEAR or (name in _MULTILINEAR and len(active) == 1) or (name == "div" and active == [0])


def _parts(plan: Plan, rows: Inexact[Array, "r *s"]) -> list[Inexact[Array, "_ *s"]]:
    """The rows of each order."""
    return jnp.split(rows, np.cumsum([mix.shape[0] for mix in plan.mixes])[:-1].tolist())


def _elementwise(tower: list[Any], rows: Any, plan: Plan) -> Any:
    """The chain rule where f acts on every entry by itself: f⁽ʲ⁾ once, whatever the number of directions."""
    pushed = tower[0][None] * rows
    if len(plan.mixes) == 1:
        return pushed
    parts = _parts(plan, rows)
    orders = [jnp.zeros_like(parts[0])]
    for order, mix in enumerate(plan.mixes[1:], start=2):
        terms = []
        for size, group in _partitions(order).items():
            products = [
                _scaled(count, _multiplied([parts[i - 1][: mix.shape[1]] for i in block]))
                for count, block in group
            ]
            terms.append(tower[size - 1][None] * _mixed(mix, _added(products)))
        orders.append(_added(terms))
    return pushed + jnp.concatenate(orders)


def _curved(slope: Callable, rows: list[Any], plan: Plan, highest: int) -> list[Any]:
    """What the chain rule adds to Df[v_k], for each output; derivatives of f beyond the highest vanish."""
    parts = [_parts(plan, row) for row in rows]
    orders = []
    for order, mix in enumerate(plan.mixes[1:], start=2):
        terms = []
        for size, group in _partitions(order).items():
            for count, block in group if size <= highest else ():
                directions = [tuple(part[i - 1][: mix.shape[1]] for part in parts) for i in block]
                terms.append([_scaled(count, out) for out in jax.vmap(slope)(directions)])
        orders.append([_mixed(mix, _added(outs)) for outs in zip(*terms, strict=True)])
    firsts = [jnp.zeros((plan.mixes[0].shape[0], *out.shape[1:]), out.dtype) for out in orders[0]]
    return [jnp.concatenate(outs) for outs in zip(firsts, *orders, strict=True)]


def _slope(fn: Callable, points: Any) -> Callable:
    """Dʲfn[v, w, …] at the points, for a list of j directions; here j stays small and fn is one equation."""

    def along(directions: list[Any]) -> list[Any]:
        chain = fn
        for direction in directions:
            chain = (lambda inner, way: lambda *at: jax.jvp(inner, at, way)[1])(chain, direction)
        return chain(*points)

    return along


def _tower(eqn: JaxprEqn, fn: Callable, point: Any, top: int) -> list[Any]:
    """f′, f″, … of a function that acts on every entry by itself."""
    name = eqn.primitive.name
    if name in ("tanh", "logistic"):  # y′ = 1 − y² and y′ = y − y², differentiated by Leibniz's rule
        found = [fn(point)[0]]
        for k in range(top):
            square = _added([_scaled(comb(k, i), found[i] * found[k - i]) for i in range(k + 1)])
            found.append((found[k] if name == "logistic" else float(k == 0)) - square)
        return found[1:]
    ones = jnp.ones_like(point)
    return [_slope(fn, (point,))([(ones,)] * order)[0] for order in range(1, top + 1)]


@cache
def _partitions(order: int) -> dict[int, list[tuple[int, tuple[int, ...]]]]:
    """`{number of blocks: [(how many, sizes of the blocks)]}`: partitions of a set, but for the one block."""
    counts: dict[tuple[int, ...], int] = {(): 1}
    sizes: list[dict[tuple[int, ...], int]] = [counts]
    for n in range(1, order + 1):  # the block of the last element has i elements
        counts = {}
        for i in range(1, n + 1):
            for rest, count in sizes[n - i].items():
                block = tuple(sorted((*rest, i)))
                counts[block] = counts.get(block, 0) + comb(n - 1, i - 1) * count
        sizes.append(counts)
    found: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    for block, count in sizes[order].items():
        if len(block) > 1:
            found.setdefault(len(block), []).append((count, block))
    return found


def _mixed(mix: Float[np.ndarray, "r q"], along: Inexact[Array, "q *s"]) -> Inexact[Array, "r *s"]:
    """The product mix @ along, without a product where rows are merely chosen or added."""
    if mix.shape[0] == mix.shape[1] and np.array_equal(mix, np.eye(len(mix))):
        return along
    if len(mix) and np.all(np.count_nonzero(mix, axis=1) == 1) and set(mix[mix != 0]) == {1}:
        return along[np.argmax(mix, axis=1)]
    if mix.shape[0] == 1 and np.all(mix == 1):
        return jnp.sum(along, axis=0, keepdims=True)
    return jnp.stack([_added([_scaled(w, along[q]) for q, w in enumerate(row) if w]) for row in mix])


def _added(terms: Sequence[Any]) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _multiplied(factors: Sequence[Any]) -> Any:
    total = factors[0]
    for factor in factors[1:]:
        total = total * factor
    return total


def _scaled(factor: float, term: Any) -> Any:
    return term if factor == 1 else float(factor) * term


def _is_slogdet(eqn: JaxprEqn) -> bool:
    """`jnp.linalg.slogdet` or `sg.linalg.slogdet` of a stack of real matrices."""
    if call_name(eqn) != "slogdet" or len(eqn.invars) != 1 or len(eqn.outvars) != 2:
        return False
    given = eqn.invars[0]
    stacked = all(shape(out) == shape(given)[:-2] for out in eqn.outvars)
    return stacked and jnp.issubdtype(dtype(given), jnp.floating)


def _slogdet(jet: Jet, plan: Plan) -> list[Any]:
    """tr(A⁻¹ ∂A), and tr(A⁻¹ ∂²A) − tr((A⁻¹ ∂A)²): one inverse for all directions."""
    inverse, sign, log = inverse_slogdet(jet.value)
    rows = jnp.einsum("...ij,q...ji->q...", inverse, jet.rows)
    if len(plan.mixes) == 2:
        mix = plan.mixes[1]
        steps = jnp.einsum("...ij,q...jk->q...ik", inverse, jet.rows[: mix.shape[1]])
        second = _mixed(mix, jnp.einsum("q...ij,q...ji->q...", steps, steps))
        rows = rows - jnp.concatenate([jnp.zeros_like(rows[: -second.shape[0]]), second])
    return [sign, Jet(log, rows)]


def _inexact(value: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(value), jnp.inexact)
