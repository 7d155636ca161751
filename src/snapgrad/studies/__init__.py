"""One file per figure of the paper, and per question beyond it: runs, a plot, and the claims it checks."""

from importlib import import_module

from ._pool import settle_environment as settle_environment
from ._store import ResultsError as ResultsError
from ._store import settings_hash as settings_hash
from ._study import Claim as Claim
from ._study import Data as Data
from ._study import Panel as Panel
from ._study import Size as Size
from ._study import Study as Study

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
)
"""The figures in the order of the paper, then what goes beyond it."""


def load(name: str) -> Study:
    """The study of that name."""
    if name not in NAMES:
        raise ValueError(f"`name` must be one of {', '.join(NAMES)}; got {name!r}.")
    return import_module(f".{name}", __package__).STUDY
