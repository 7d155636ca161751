"""Runs: one guarded step, the compiled loop, the host loop, optax, checkpoints."""

from ._checkpoint import load as load
from ._checkpoint import read_checkpoint as read_checkpoint
from ._checkpoint import read_header as read_header
from ._checkpoint import save as save
from ._checkpoint import write_checkpoint as write_checkpoint
from ._devices import FirstProcessError as FirstProcessError
from ._devices import Team as Team
from ._fit import DEFAULT_STEPS as DEFAULT_STEPS
from ._fit import fit as fit
from ._fit import least_squares as least_squares
from ._fit import with_options_of as with_options_of
from ._optax import as_optax as as_optax
from ._run import advance as advance
from ._run import prepare as prepare
from ._run import run as run
from ._step import TrainState as TrainState
from ._step import as_transformation as as_transformation
from ._step import move as move
from ._store import CHECKPOINT as CHECKPOINT
