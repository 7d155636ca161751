"""α, β, γ and the rates that they predict, for several sample sizes: the table behind `snapgrad theory`."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray

from .._checks import Given
from ._estimate import Interval, alpha, beta, gamma
from ._spectrum import Sampling


class TableRow(NamedTuple):
    """The constants at one sample size and the rates per step that follow from them.

    `alpha`, `beta` and `gamma` are the constants at `sample_size`. Times λ_min(H)/‖H‖, `sng` = α/γ is the
    rate of SNG (Theorem 5.1) and `spring` = √(α/β)/γ is that of SPRING (Conjecture 6.2, which is not proved).
    All are intervals; the ends of one are equal where it is exact.

    ```python
    row = sg.theory.table(jax.random.normal(jax.random.key(0), (20, 4)), [2])[0]
    row.alpha.estimate, row.sng.low
    ```
    """

    sample_size: int
    alpha: Interval
    beta: Interval
    gamma: Interval
    sng: Interval
    spring: Interval


def table(
    J: Given[ArrayLike, "m n"],
    sample_sizes: Sequence[int],
    key: PRNGKeyArray | None = None,
    *,
    damping: float = 0.0,
    sampling: Sampling = "svs",
    num_samples: int | None = None,
    rtol: float = 0.1,
    progress: bool = False,
) -> list[TableRow]:
    """Returns a list with one `TableRow` for each sample size: its constants and predicted rates.

    **Arguments:**

    - `J`: the matrix, `[m, n]`.
    - `sample_sizes`: the sample sizes k, each the number of rows in a batch.
    - `key`: the randomness of the draws (default `jax.random.key(0)`). A row depends on `key` and on its own
      k alone, not on the other sample sizes.
    - `damping`: the regularisation λ ≥ 0.
    - `sampling`: `"svs"` for squared volume sampling, or `"uniform"`.
    - `num_samples`, `rtol`, `progress`: as in `sg.theory.gamma`.

    ```python
    J = jax.random.normal(jax.random.key(0), (20, 4))
    [row.sng.estimate for row in sg.theory.table(J, [1, 2, 3])]
    ```
    """
    if not sample_sizes:
        raise ValueError("`sample_sizes` must hold at least one sample size, got none.")
    key = jax.random.key(0) if key is None else key
    shared = {
        "damping": damping,
        "sampling": sampling,
        "num_samples": num_samples,
        "rtol": rtol,
        "progress": progress,
    }
    rows = []
    for k in sample_sizes:
        keys = jax.random.split(jax.random.fold_in(key, k), 3)
        a, b, g = (
            constant(J, sample_size=k, key=key, **shared)
            for constant, key in zip((alpha, beta, gamma), keys, strict=True)
        )
        rows.append(_row(k, a if isinstance(a, Interval) else Interval(a, a, a), b, g))
    return rows


def _row(k: int, a: Interval, b: Interval, g: Interval) -> TableRow:
    sng = Interval(a.low / g.high, a.estimate / g.estimate, a.high / g.low)
    spring = Interval(
        math.sqrt(a.low / b.high) / g.high,
        math.sqrt(a.estimate / b.estimate) / g.estimate,
        math.sqrt(a.high / b.low) / g.low,
    )
    return TableRow(k, a, b, g, sng, spring)
