"""What a Jacobian will cost, before it is computed: the table of `jac.explain()` and the choice of blocks."""

from math import prod
from typing import Any, NamedTuple

import jax.numpy as jnp

from ..structure import LeafPlan, Plan, contract


class Options(NamedTuple):
    """Everything about a structured Jacobian that is fixed when it is compiled."""

    block_size: int | None = None
    memory_limit: int | None = None
    precision: str = "highest"
    factor_dtype: str | None = None  # names: NumPy finds its float64 equal to None
    gram_dtype: str | None = None
    holomorphic: bool = False


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
    """How each leaf is handled; `flops` and `memory` are those of one `gram()`."""

    leaves: tuple[LeafReport, ...]
    rows: int
    block_size: int
    points: int
    memory: int
    choice: str

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Leaves of two axes or more in which no outer products were found."""
        return tuple(report.leaf for report in self.leaves if report.fallback)

    def __str__(self) -> str:
        head = ("leaf", "shape", "how", "flops", "memory", "why")
        table = [head] + [
            (r.leaf, str(list(r.shape)), r.how, _short(r.flops), _bytes(r.memory), r.why) for r in self.leaves
        ]
        widths = [max(len(line[i]) for line in table) for i in range(len(head))]
        lines = [
            "  ".join(
                t.rjust(w) if i in (3, 4) else t.ljust(w)
                for i, (t, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in table
        ]
        total = sum(r.flops for r in self.leaves)
        lines.append(
            f"gram of {self.rows} rows: {_short(total)} flops, at most {_bytes(self.memory)}; "
            f"blocks of {self.block_size} of {self.points} points ({self.choice})"
        )
        return "\n".join(line.rstrip() for line in lines)


def explain(plan: Plan, sizes: Sizes, options: Options) -> Explanation:
    """The table of a plan, for `jac.explain()`."""
    block = choose_block(plan, sizes, options)
    choice = "all at once"
    if options.memory_limit is not None:
        choice = f"chosen for a memory limit of {_bytes(options.memory_limit)}"
    elif block < sizes.points:
        choice = "as given"
    reports = tuple(_report(leaf, plan, sizes, block) for leaf in plan.leaves)
    rows = sizes.points * sizes.outputs
    return Explanation(reports, rows, block, sizes.points, gram_bytes(plan, sizes, block), choice)


def gram_bytes(plan: Plan, sizes: Sizes, block: int) -> int:
    """The bound that `gram` keeps: bytes at its peak, the kernel included, the parameters and batch not.

    With k rows, blocks of b rows, F numbers in the factors of one point and W at the peak of its gradient:
    the kernel and one copy of it, four kernel blocks of b², a few MiB, and for the b rows at hand W plus F
    (three times F when there are several blocks: the block that is held, the one that meets it, and a copy
    in the loop).
    """
    rows, several = sizes.points * sizes.outputs, block < sizes.points
    item = jnp.dtype(sizes.kernel).itemsize
    kernel = (2 * rows**2 + 4 * (block * sizes.outputs) ** 2) * item
    kernel += 3 * contract.AT_ONCE * item
    cast = max((leaf.numbers(plan.outputs) for leaf in plan.leaves), default=0) * item
    held = (3 if several else 1) * plan.numbers() * sizes.factor_bytes
    return kernel + block * (held + 2 * cast + plan.workspace() * sizes.factor_bytes)


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
            f"`memory_limit` must be at least {_bytes(least)} for {sizes.points * sizes.outputs} rows, "
            f"even one point at a time; got {_bytes(options.memory_limit)}."
        )
    return low


def _report(leaf: LeafPlan, plan: Plan, sizes: Sizes, block: int) -> LeafReport:
    rows = sizes.points * sizes.outputs
    how, why, flops = leaf.how, leaf.why, 0
    if how == "rows":
        flops = 2 * rows**2 * prod(leaf.shape)
    elif how == "outer":
        for region in leaf.regions:
            shared = 1 if region.per_output[0] else sizes.outputs
            count = (region.products, region.products)
            price = contract.cost(region.layout.sizes, count, (rows, rows), shared, same=True)
            flops += 2 * min(price)
            if price.formed < price.outer:
                how, why = "formed", f"{leaf.why}; forming rows in pieces costs less"
    memory = block * leaf.numbers(plan.outputs) * sizes.factor_bytes
    return LeafReport(leaf.name, leaf.shape, how, why, flops, memory, leaf.fallback)


def _short(number: int) -> str:
    for exponent, unit in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if number >= 10**exponent:
            return f"{number / 10**exponent:.3g}{unit}"
    return str(number)


def _bytes(number: int) -> str:
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 2**exponent:
            return f"{number / 2**exponent:.3g} {unit}"
    return f"{number} B"
