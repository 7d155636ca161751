"""The training loop."""

from ._run import RunResult as RunResult
from ._run import TrainState as TrainState
from ._run import run as run
from ._run import start as start
