"""What the zoo says of a problem, and of the best published result on it."""

from collections.abc import Callable
from typing import NamedTuple

from ._problem import PINN


class Record(NamedTuple):
    """The best published result on a problem.

    - `error`: the relative L2 error.
    - `holder`: who reached it, and with which network where that is known.
    - `seconds`: how long it took, on their GPU; None where they do not say.
    - `note`: what else to know, such as a better error with features made for that solution.

    ```python
    print(sg.pinn.ZOO["kdv"].record.holder)
    ```
    """

    error: float
    holder: str
    seconds: float | None = None
    note: str = ""


def sizes_of(hidden: tuple[int, ...], what: str, count: int) -> tuple[int, ...]:
    """The sizes of a network without hidden layers; `ValueError` unless there are so many of them."""
    if len(hidden) != count:
        raise ValueError(
            f"`hidden` must be {what} for this problem, whose network has no layers; got {hidden}."
        )
    return hidden


class ZooEntry(NamedTuple):
    """A problem of the zoo in words: what `snapgrad pinn list` prints.

    - `make`: builds the `PINN` from the widths of the hidden layers and the points per step of each block.
    - `hidden`, `points`: the sizes that are used by default.
    - `equation`, `setting`: the equation, and where it holds with which conditions.
    - `network`: what surrounds the hidden layers: activation, features, conditions that hold exactly.
    - `record`: the best published result, where there is one for exactly this problem.
    - `goal`: the relative error to be reached on one GPU in ten minutes, where one is set.
    - `slabs`: into how many intervals of time training is best cut (`sg.pinn.march`), or the times between
      them where they are not equally long; 1 for none.

    ```python
    print(sg.pinn.ZOO["burgers"].equation)
    ```
    """

    make: Callable[..., PINN]
    hidden: tuple[int, ...]
    points: tuple[int, ...]
    equation: str
    setting: str
    network: str = "tanh"
    record: Record | None = None
    goal: float | None = None
    slabs: int | tuple[float, ...] = 1

    @property
    def pieces(self) -> int:
        """How many slabs of time there are."""
        return self.slabs if isinstance(self.slabs, int) else len(self.slabs) - 1

    @property
    def layers(self) -> str:
        """The network in words, such as `sin 40-40, periodic`."""
        kind, _, rest = self.network.partition(", ")
        return f"{kind} {'-'.join(map(str, self.hidden))}{rest and ', ' + rest}"
