"""For each leaf, how its rows are kept: as outer products, in full, or not at all."""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Inexact

from ..linalg import on_gpu
from . import _views as views
from . import factors
from ._peel import is_zero, peel
from ._terms import Term, vector_name
from ._trace import Captured, Program, Ref, Taken, row_gradient
from ._views import Layout, UnstructuredError
from .factors import Full, Leaf, Outer

CPU_SLICES, GPU_SLICES = 2**20, 2**26
"""Slices of a convolution's operand hold about this many numbers at a time."""


class Region(NamedTuple):
    """The outer products in one box of a leaf; `swapped` marks those whose operands change sides."""

    layout: Layout
    terms: tuple[Term, ...]
    swapped: tuple[bool, ...]
    per_output: tuple[bool, bool]  # whether the left and right factors differ between outputs of a point
    names: tuple[Any, Any] = (None, None)  # equal for equal factors

    @property
    def products(self) -> int:
        """The number of outer products per row."""
        return sum(term.products for term in self.terms)

    def evaluate(self, captured: Captured | Taken) -> tuple[Inexact[Array, "b a l"], Inexact[Array, "b a r"]]:
        """The left and right factors of one row, from the values that the program gave."""
        pairs = [term.evaluate(captured) for term in self.terms]
        pairs = [(b, a) if swap else (a, b) for (a, b), swap in zip(pairs, self.swapped, strict=True)]
        if len(pairs) == 1:
            return pairs[0]
        left, right = zip(*pairs, strict=True)
        return jnp.concatenate(left, axis=1), jnp.concatenate(right, axis=1)

    def outer(self, left: Inexact[Array, "k o b a l"], right: Inexact[Array, "k o b a r"]) -> Outer:
        """The outer products with these factors, stacked over points and outputs."""
        left = left if self.per_output[0] else left[:, :1]
        right = right if self.per_output[1] else right[:, :1]
        return Outer(left, right, self.layout, None, self.names)

    def numbers(self, outputs: int) -> int:
        """How many numbers are stored per point."""
        batch, left, right = self.layout.sizes
        own = [outputs if many else 1 for many in self.per_output]
        return batch * self.products * (own[0] * left + own[1] * right)


class LeafPlan(NamedTuple):
    """How the rows of one leaf are kept, and why so."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    how: str  # "outer", "rows" or "unused"
    why: str
    fallback: bool = False
    regions: tuple[Region, ...] = ()
    rows: Ref | None = None
    name_of_rows: Any = None  # that of an equal factor of another leaf

    def evaluate(self, captured: Captured) -> Any:
        """The values of one row that the factors are made of."""
        if self.how == "unused":
            return None
        if self.rows is not None:
            return jnp.asarray(captured.get(self.rows)).astype(self.dtype).reshape(-1)
        if self.how == "rows":
            return [jnp.asarray(captured.get(ref)) for ref in self._operands()]
        return [region.evaluate(captured) for region in self.regions]

    def factor(self, values: Any) -> Leaf:
        """Factors from the stacked values `[k, o, ...]`."""
        if values is None:
            return None
        if self.rows is not None:
            return Full(values, self.name_of_rows)
        if self.how == "rows":
            return Full(self._form(values))
        return tuple(region.outer(*pair) for region, pair in zip(self.regions, values, strict=True))

    def _operands(self) -> list[Ref]:
        every = [ref for region in self.regions for term in region.terms for ref in term.refs()]
        return list({id(ref.atom): ref for ref in every}.values())

    def _form(self, values: list[Inexact[Array, "k o ..."]]) -> Inexact[Array, "k o m"]:
        """Rows of a convolution, a few points at a time: products of slices, which is faster than it is."""

        def row(values: list[Array]) -> Inexact[Array, " m"]:
            taken = Taken(self._operands(), values)
            boxes = []
            for region in self.regions:
                left, right = region.evaluate(taken)
                boxes.append(Outer(left[None, None], right[None, None], region.layout))
            return factors.full_rows(tuple(boxes))[0].astype(self.dtype)

        points = max(1, (GPU_SLICES if on_gpu() else CPU_SLICES) // sum(r.numbers(1) for r in self.regions))
        if points >= values[0].shape[0]:
            return jax.vmap(jax.vmap(row))(values)
        return lax.map(jax.vmap(row), values, batch_size=points)

    def numbers(self, outputs: int) -> int:
        """How many numbers are stored per point."""
        if self.how == "unused":
            return 0
        if self.how == "rows":
            return outputs * prod(self.shape)
        return sum(region.numbers(outputs) for region in self.regions)


class Plan(NamedTuple):
    """The gradient program of one row and what to take from it for each leaf."""

    program: Program
    leaves: tuple[LeafPlan, ...]
    outputs: int

    def numbers(self) -> int:
        """How many numbers the factors of one point hold."""
        return sum(leaf.numbers(self.outputs) for leaf in self.leaves)

    def workspace(self) -> int:
        """How many numbers the gradient program of one point needs at its peak, besides the parameters."""
        return self.outputs * self.program.workspace()

    def columns(self) -> list[int]:
        """The numbers of real columns of the leaves."""
        return [
            prod(leaf.shape) * (2 if jnp.issubdtype(leaf.dtype, jnp.complexfloating) else 1)
            for leaf in self.leaves
            if leaf.how != "unused"
        ]

    def terms(self) -> int:
        """The most terms that an entry of the kernel has for one leaf, if that is not formed."""
        return max(
            (r.layout.sizes[0] * r.products**2 for leaf in self.leaves for r in leaf.regions), default=1
        )

    def mostly_outer(self) -> bool:
        """Whether full rows are the smaller part, so that products are best taken from the factors."""
        full = sum(leaf.numbers(self.outputs) for leaf in self.leaves if leaf.rows is not None)
        return 2 * full <= self.numbers()

    def factors(
        self, params: list[Any], batch: Any, held: Any, cotangents: Inexact[Array, "k o ..."]
    ) -> list[Leaf]:
        """The factors of the rows `c ∂f/∂θ`, for every point and each of its `o` cotangents.

        The function's second argument is a pair of a point of the batch and what is `held` for all of them.
        """

        def row(x, c):
            captured = self.program.run(*params, *jax.tree.leaves((x, held)), c)
            return [leaf.evaluate(captured) for leaf in self.leaves]

        if self.outputs == 1:  # a vmap over one would only cost compile time
            values = jax.vmap(lambda x, c: jax.tree.map(lambda v: v[None], row(x, c[0])))(batch, cotangents)
        else:
            values = jax.vmap(lambda x, c: jax.vmap(lambda one: row(x, one))(c))(batch, cotangents)
        return [leaf.factor(value) for leaf, value in zip(self.leaves, values, strict=True)]


def make_plan(fn: Callable, params: Any, x: Any, output: Any) -> Plan:
    """Trace the gradient of one row and decide each leaf; `x` and `output` are abstract, of one point."""
    paths, tree = jax.tree_util.tree_flatten_with_path(params)
    leaves = [leaf for _, leaf in paths]
    abstract = [jax.ShapeDtypeStruct(jnp.shape(leaf), leaf.dtype) for leaf in leaves]
    program = row_gradient(lambda p, x: fn(jax.tree.unflatten(tree, p), x), abstract, x, output)
    outputs = max(1, output.size)

    found: list[Any] = []
    for index, leaf in enumerate(abstract):
        try:
            found.append(peel(program, index, leaf.shape))
        except UnstructuredError as reason:
            found.append(reason)
    inputs = len(program.jaxpr.invars)
    program.mark([False] * (inputs - 1) + [True])

    plans = []
    for index, ((path, _), leaf, terms) in enumerate(zip(paths, abstract, found, strict=True)):
        name = jax.tree_util.keystr(path) or "params"
        out = program.jaxpr.outvars[index]
        plan = LeafPlan(name, leaf.shape, leaf.dtype, "unused", "the output does not depend on it")
        if leaf.size and not is_zero(program, out) and terms != []:
            plan = _decide(plan, terms, outputs)
        if plan.how == "rows" and not plan.regions:
            plan = plan._replace(rows=Ref(program, out).want())
        plans.append(plan)
    return Plan(program, _named(plans), outputs)


def _named(plans: list[LeafPlan]) -> tuple[LeafPlan, ...]:
    """The same plans, with equal factors under equal names."""
    numbers: dict[Any, int] = {}

    def number(name: Any) -> int:
        return numbers.setdefault(name, len(numbers))

    def named(region: Region) -> Region:
        found = [
            tuple(
                term.name(int(side != swap)) for term, swap in zip(region.terms, region.swapped, strict=True)
            )
            for side in (False, True)
        ]
        left, right = (name[0] if len(name) == 1 else name for name in found)
        return region._replace(names=(number(left), number(right)))

    out = []
    for plan in plans:
        plan = plan._replace(regions=tuple(map(named, plan.regions)))
        if plan.rows is not None:
            plan = plan._replace(name_of_rows=number(vector_name(plan.rows, plan.dtype)))
        out.append(plan)
    return tuple(out)


def _decide(plan: LeafPlan, terms: Any, outputs: int) -> LeafPlan:
    """Outer products where they were found and are smaller than the rows; rows otherwise."""
    if isinstance(terms, UnstructuredError):
        return _unstructured(plan, terms)
    try:
        regions = _regions(plan.shape, terms, outputs)
    except UnstructuredError as reason:
        return _unstructured(plan, reason)
    size = outputs * prod(plan.shape)
    stored = sum(region.numbers(outputs) for region in regions)
    count = "+".join(str(region.products) for region in regions)
    uses = f"{count} outer product{'s' if count != '1' else ''} per row"
    if any(term.convolution is not None for term in terms):
        if stored > size:
            for term in terms:
                term.want()
            why = f"a convolution: formed from {count} outer products per row"
            return plan._replace(how="rows", why=why, regions=regions)
    elif stored > size:
        return plan._replace(how="rows", why=f"{uses} would hold {stored} numbers, the row itself {size}")
    for term in terms:
        term.want()
    return plan._replace(how="outer", why=uses, regions=regions)


def _unstructured(plan: LeafPlan, reason: UnstructuredError) -> LeafPlan:
    if len(plan.shape) <= 1:
        return plan._replace(how="rows", why="a vector: its row is the gradient itself")
    return plan._replace(how="rows", why=f"no outer product found: {reason}", fallback=True)


def _regions(shape: tuple[int, ...], terms: list[Term], outputs: int) -> tuple[Region, ...]:
    """Terms grouped by the box of the leaf they fill; boxes must not overlap."""
    groups: dict[Layout, Region] = {}
    for term in terms:
        term.check()
        left, right = term.pieces("left"), term.pieces("right")
        layout = views.layout(shape, term.offset, term.pieces("batch"), left, right)
        swap = layout.left != views.merged(left)
        many = [outputs > 1 and ref.marked for ref in term.operands]
        many = many[::-1] if swap else many
        old = groups.get(layout, Region(layout, (), (), (False, False)))
        groups[layout] = Region(
            layout,
            (*old.terms, term),
            (*old.swapped, swap),
            (old.per_output[0] or many[0], old.per_output[1] or many[1]),
        )
    boxes = list(groups)
    if any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i]):
        raise UnstructuredError("uses that split its axes differently")
    return tuple(groups.values())
