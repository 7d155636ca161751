"""Problems with known solutions, by name: `sg.pinn.zoo("burgers")`."""

from collections.abc import Sequence

from ._problem import PINN
from ._zoo_basic import BASIC
from ._zoo_entry import ZooEntry
from ._zoo_flows import FLOWS
from ._zoo_inverse import INVERSE
from ._zoo_time import TIME

ZOO: dict[str, ZooEntry] = BASIC | TIME | FLOWS | INVERSE
"""The problems of the zoo by name."""
NAMES = tuple(ZOO)
"""The names that `sg.pinn.zoo` knows."""
CANONICAL = (*(name for name, entry in BASIC.items() if entry.record is not None), *TIME, *FLOWS, *INVERSE)
"""Those that are set exactly as published, most of them with a record to beat."""


def zoo(name: str, *, hidden: Sequence[int] | None = None, points: Sequence[int] | None = None) -> PINN:
    """Returns the problem of that name, with its own network and number of points unless you give others.

    Where `sg.pinn.ZOO[name].slabs` is not one, network, points and weights are made for one slab of
    time: solve it by `sg.pinn.march(problem, key, slabs=sg.pinn.ZOO[name].slabs)`. `sg.pinn.solve` warns.

    **Arguments:**

    - `name`: one of `sg.pinn.NAMES`.
    - `hidden`: widths of the hidden layers.
    - `points`: points per step for each block.

    Raises `ValueError` for a name it does not know or another number of blocks. `sg.pinn.ZOO[name]` describes
    the problem in words, with the best published error and the time it took.

    ```python
    problem = sg.pinn.zoo("heat-1d", hidden=(16,), points=(150, 20, 20))
    print(sg.pinn.advice(problem))
    ```
    """
    if name not in ZOO:
        raise ValueError(f"`name` must be one of {', '.join(NAMES)}; got {name!r}.")
    entry = ZOO[name]
    counts = tuple(entry.points if points is None else points)
    if len(counts) != len(entry.points):
        raise ValueError(
            f"`points` must have {len(entry.points)} entries for {name}, one for each block; got {counts}."
        )
    widths = tuple(entry.hidden if hidden is None else hidden)
    problem = entry.make(widths, counts)
    # A module is frozen once it is made; nobody else has this one yet.
    object.__setattr__(problem, "recipe", (name, widths, counts))
    return problem


def slabs_of(problem: PINN) -> str | None:
    """The slabs of time that a problem of the zoo is made to be cut into, as code; None if there are none."""
    if problem.recipe is None or ZOO[problem.recipe[0]].slabs == 1:
        return None
    name, entry = problem.recipe[0], ZOO[problem.recipe[0]]
    return str(entry.slabs) if isinstance(entry.slabs, int) else f"sg.pinn.ZOO[{name!r}].slabs"
