"""One file per figure of the paper, and per question beyond it: its runs, its plot, the claims it checks."""

from importlib import import_module

from ..reproduce import Study

NAMES = (
    "nn_proxy",
    "alpha_gamma",
    "superlinear",
    "spring",
    "gaussian_proxy",
    "inflated_proxy",
    "conjecture",
    "noise_floor",
    "tail_averaging",
    "tuning",
    "diagnosis",
)
"""The figures in the order of the paper, then what goes beyond it."""


def load(name: str) -> Study:
    """Returns the study of that name; raises `ValueError` if there is none.

    ```python
    from snapgrad import figures

    panels = figures.load("superlinear").panels("quick", 0)
    ```
    """
    if name not in NAMES:
        raise ValueError(f"`name` must be one of {', '.join(NAMES)}; got {name!r}.")
    return import_module(f".{name}", __package__).STUDY
