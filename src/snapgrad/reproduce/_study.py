"""What a study is: panels to compute, plots to draw, claims to check."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

Size: TypeAlias = Literal["full", "quick"]
"""`"full"` is the paper's size; `"quick"` a small version of the same code, for tests."""
Arrays: TypeAlias = Mapping[str, np.ndarray]
Data: TypeAlias = Mapping[str, Arrays]
"""All arrays of a study: `data[panel][name]`."""
Tick: TypeAlias = Callable[[float], None]
"""Takes the fraction of a panel that is done."""


@dataclass(frozen=True)
class Panel:
    """A part of a study that is computed and stored as a whole.

    - `settings`: everything the numbers depend on, as plain JSON values; their hash names the result.
    - `compute`: makes the arrays.
    - `cost`: about how many seconds it takes, for the progress bar.
    """

    name: str
    settings: Mapping[str, Any]
    compute: Callable[[Tick], dict[str, np.ndarray]]
    cost: float = 1.0


@dataclass(frozen=True)
class Claim:
    """A statement about the results as a number that must lie in [low, high]; NaN never does.

    `detail` says what the number is and where the threshold comes from: the paper's words, a theorem, or the
    spread between seeds.
    """

    statement: str
    value: float
    low: float = -math.inf
    high: float = math.inf
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether it holds."""
        return self.low <= self.value <= self.high

    @property
    def wanted(self) -> str:
        """The threshold in words."""
        low, high = f"{self.low:.4g}", f"{self.high:.4g}"
        if low == high:
            return f"= {low}"
        if math.isinf(self.low):
            return f"≤ {high}"
        return f"≥ {low}" if math.isinf(self.high) else f"{low} … {high}"


@dataclass(frozen=True)
class Study:
    """One figure of the paper, or one beyond it.

    - `name`, `title`, `source`: what it is called, shown as, and where in the paper it is.
    - `caption`: what the picture shows, in our words.
    - `panels`: the computations, for a size and a seed.
    - `plots`: functions that draw one set of axes each, in the paper's order.
    - `claims`: the paper's statements, measured.
    - `table`: the numbers behind the picture, one row each.
    - `notes`: where the result refines the paper.
    """

    name: str
    title: str
    source: str
    caption: str
    panels: Callable[[Size, int], Sequence[Panel]]
    plots: Sequence[Callable[[Any, Data], None]]
    claims: Callable[[Data], Sequence[Claim]]
    table: Callable[[Data], Sequence[Mapping[str, Any]]]
    notes: Callable[[Data], Sequence[str]] = field(default=lambda data: ())
