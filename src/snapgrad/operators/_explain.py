"""What a Jacobian will cost, before it is computed: the table of `jac.explain()` and the choice of blocks."""

from math import prod
from typing import Any, NamedTuple

import jax.numpy as jnp

from .. import _memory
from ..linalg import splits
from ..structure import LeafPlan, Plan, contract

SPLIT = "float16x3"
"""The precision that makes a float32 kernel of three products of float16 parts."""


class Options(NamedTuple):
    """Everything about a structured Jacobian that is fixed when it is compiled."""

    block_size: int | None = None
    memory_limit: int | None = None
    precision: str = "highest"
    factor_dtype: str | None = None  # names: NumPy finds its float64 equal to None
    gram_dtype: str | None = None
    holomorphic: bool = False

    @property
    def split(self) -> bool:
        """Whether float32 kernels may be made of products of float16 parts."""
        return self.precision == SPLIT

    @property
    def matmul(self) -> str:
        """The precision of all other products."""
        return "highest" if self.split else self.precision


class Sizes(NamedTuple):
    """The numbers of points and rows per point, the kernel's type, and the bytes per number of a factor."""

    points: int
    outputs: int
    kernel: Any
    factor_bytes: int


class LeafReport(NamedTuple):
    """One line of the table: how a leaf is handled, why, and what it costs."""

    leaf: str
    shape: tuple[int, ...]
    how: str
    why: str
    flops: int
    memory: int
    fallback: bool


class Explanation(NamedTuple):
    """How each leaf is handled; `flops` and `memory` are those of one `gram()`.

    - `product_flops`: the floating-point operations of one product K v = J (Jᵀ v) without the kernel.
    - `iterations`: as many of such products cost as much as the kernel and its factorisation, so that
      `solver="cg"` is the cheaper one if it needs fewer.
    - `products`: in which precision the kernel is computed, in words.
    """

    leaves: tuple[LeafReport, ...]
    rows: int
    block_size: int
    points: int
    memory: int
    choice: str
    product_flops: int
    products: str

    @property
    def flops(self) -> int:
        """Those of the kernel."""
        return sum(report.flops for report in self.leaves)

    @property
    def iterations(self) -> float:
        """How many products K v cost as much as the kernel and its factorisation."""
        return (self.flops + self.rows**3 // 3) / max(1, self.product_flops)

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Leaves of two axes or more in which no outer products were found."""
        return tuple(report.leaf for report in self.leaves if report.fallback)

    def __str__(self) -> str:
        head = ("leaf", "shape", "how", "flops", "memory", "why")
        table = [head] + [
            (r.leaf, str(list(r.shape)), r.how, _short(r.flops), _memory.size(r.memory), r.why)
            for r in self.leaves
        ]
        widths = [max(len(line[i]) for line in table) for i in range(len(head))]
        lines = [
            "  ".join(
                t.rjust(w) if i in (3, 4) else t.ljust(w)
                for i, (t, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in table
        ]
        lines.append(
            f"gram of {self.rows} rows: {_short(self.flops)} flops, at most {_memory.size(self.memory)}; "
            f"blocks of {self.block_size} of {self.points} points ({self.choice}); {self.products}"
        )
        lines.append(
            f"K v without the kernel: {_short(self.product_flops)} flops; solver='cg' costs less than the "
            f"kernel and its factorisation below {self.iterations:.3g} iterations"
        )
        return "\n".join(line.rstrip() for line in lines)


def explain(plan: Plan, sizes: Sizes, options: Options) -> Explanation:
    """The table of a plan, for `jac.explain()`."""
    block = choose_block(plan, sizes, options)
    choice = "all at once"
    if options.memory_limit is not None:
        choice = f"chosen for a memory limit of {_memory.size(options.memory_limit)}"
    elif block < sizes.points:
        choice = "as given"
    rows = sizes.points * sizes.outputs
    return Explanation(
        leaves=_reports(plan, sizes, block),
        rows=rows,
        block_size=block,
        points=sizes.points,
        memory=gram_bytes(plan, sizes, block),
        choice=choice,
        product_flops=8 * rows * sum(map(_uses, plan.leaves)),
        products=_products(sizes, options),
    )


def _uses(leaf: LeafPlan) -> int:
    """Multiply-adds of one pass over a row: each entry of a leaf as often as it is used."""
    if leaf.how == "unused":
        return 0
    return sum(r.products * prod(r.layout.sizes) for r in leaf.regions) or prod(leaf.shape)


def _products(sizes: Sizes, options: Options) -> str:
    kernel = jnp.dtype(sizes.kernel).name
    if not options.split:
        return f"products in {kernel}"
    if splits(sizes.kernel):
        return f"products in {kernel}, each as three of float16 parts"
    return f"products in {kernel} ({SPLIT} is for float32 on a GPU)"


def gram_bytes(plan: Plan, sizes: Sizes, block: int) -> int:
    """The bound that `gram` keeps: bytes at its peak, the kernel included, the parameters and batch not.

    With k rows, blocks of b rows, F numbers in the factors of one point and W at the peak of its gradient:
    the kernel and one copy of it, four kernel blocks of b², the rows or terms that are formed at a time
    (`contract.workspace`), and for the b rows at hand W plus F (three times F when there are several blocks:
    the block that is held, the one that meets it, and a copy in the loop).
    """
    rows, several = sizes.points * sizes.outputs, block < sizes.points
    item = jnp.dtype(sizes.kernel).itemsize
    kernel = 2 * rows**2 + 4 * (block * sizes.outputs) ** 2
    kernel += contract.workspace(plan.columns(), plan.terms(), block * sizes.outputs)
    cast = max((leaf.numbers(plan.outputs) for leaf in plan.leaves), default=0) * item
    held = (3 if several else 1) * plan.numbers() * sizes.factor_bytes
    return kernel * item + block * (held + 2 * cast + plan.workspace() * sizes.factor_bytes)


def check_memory(plan: Plan, sizes: Sizes, block: int) -> None:
    """`MemoryError` where the kernel and the factors it is made of certainly do not fit."""
    item = jnp.dtype(sizes.kernel).itemsize
    rows = sizes.points * sizes.outputs
    _memory.require(2 * rows**2 * item, f"the kernel of {rows} rows and one copy of it", _memory.FEWER_ROWS)
    held = rows**2 * item + block * plan.numbers() * sizes.factor_bytes
    _memory.require(
        held,
        f"the kernel of {rows} rows in blocks of {block} of {sizes.points} points",
        "a smaller `block_size` or a `memory_limit` of sg.jacobian, fewer rows per step (`batch_size`, "
        'points), or solver="cg" take less',
    )


def choose_block(plan: Plan, sizes: Sizes, options: Options, wanted: int | None = None) -> int:
    """The number of points per block: as asked, else the most that fit in the memory limit, else all."""
    if wanted is not None or options.memory_limit is None:
        return min(sizes.points, wanted or options.block_size or sizes.points)
    if gram_bytes(plan, sizes, sizes.points) <= options.memory_limit:
        return sizes.points
    low, high = 0, sizes.points - 1  # the largest block that fits lies in [low, high]
    while low < high:
        middle = (low + high + 1) // 2
        fits = gram_bytes(plan, sizes, middle) <= options.memory_limit
        low, high = (middle, high) if fits else (low, middle - 1)
    if low == 0:
        least = gram_bytes(plan, sizes, 1)
        raise ValueError(
            f"`memory_limit` must be at least {_memory.size(least)} for {sizes.points * sizes.outputs} rows, "
            f"even one point at a time; got {_memory.size(options.memory_limit)}."
        )
    return low


def _reports(plan: Plan, sizes: Sizes, block: int) -> tuple[LeafReport, ...]:
    """A line per leaf; leaves that share a factor are counted together, and say so."""
    rows = sizes.points * sizes.outputs
    found: dict[int, list[Any]] = {}  # how, why and flops
    regions = [
        (i, region) for i, leaf in enumerate(plan.leaves) if leaf.how == "outer" for region in leaf.regions
    ]
    vectors = [i for i, leaf in enumerate(plan.leaves) if leaf.how == "rows"]
    for i, leaf in enumerate(plan.leaves):
        flops = rows**2 * prod(leaf.shape) if leaf.how == "rows" else 0
        found[i] = [leaf.how, leaf.why, int(2 * contract.symmetric_share(rows) * flops)]
    groups = contract.sharings(
        [region.names for _, region in regions], [plan.leaves[i].name_of_rows for i in vectors]
    )
    for group in groups:
        members = [regions[i] for i in group.members]
        boxes = [region.layout.sizes for _, region in members]
        count = members[0][1].products
        shared = 1 if members[0][1].per_output[0] else sizes.outputs
        price = contract.cost(
            contract.total_sizes(boxes, group.side), (count, count), (rows, rows), shared, same=True
        )
        formed = price.formed < price.outer or any(region.products != count for _, region in members)
        joined = [] if formed else [vectors[i] for i in group.vectors]
        together = sorted({i for i, _ in members} | set(joined))
        for place, (i, region) in enumerate(members):
            batch, left, right = region.layout.sizes
            own = contract.total_sizes([(batch, left, right)], group.side)
            if place and not formed:  # the shared factor is counted once
                own = (batch, 0, right) if group.side == 0 else (batch, left, 0)
            alone = contract.cost(own, (region.products, region.products), (rows, rows), shared, same=True)
            found[i][2] += 2 * (alone.formed if formed else alone.outer)
            if formed:
                found[i][:2] = "formed", f"{plan.leaves[i].why}; forming rows in pieces costs less"
        if not formed and len(together) > 1:
            for i in together:
                others = ", ".join(plan.leaves[j].name for j in together if j != i)
                found[i][1] += f"; shares a factor with {others}"
            for i in joined:
                found[i][0], found[i][2] = "outer", 2 * rows**2
    return tuple(
        LeafReport(
            leaf=leaf.name,
            shape=leaf.shape,
            how=found[i][0],
            why=found[i][1],
            flops=found[i][2],
            memory=block * leaf.numbers(plan.outputs) * sizes.factor_bytes,
            fallback=leaf.fallback,
        )
        for i, leaf in enumerate(plan.leaves)
    )


def _short(number: int) -> str:
    for exponent, unit in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if number >= 10**exponent:
            return f"{number / 10**exponent:.3g}{unit}"
    return str(number)
