"""The checkpoint of a run of `sg.fit`: what is kept, by which marks it is known, and when it is due."""

import hashlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _files
from .._contracts import Params
from ._checkpoint import read_checkpoint, read_header, write_checkpoint
from ._devices import Team
from ._step import Setup, TrainState

CHECKPOINT_SECONDS = 30.0
"""Between two checkpoints, so that a large state does not spend its time on the disk."""
CHECKPOINT = "checkpoint.snap"
"""The name of the checkpoint in its folder."""


class Kept(NamedTuple):
    """The present state, and the best parameters so far where they are kept."""

    state: TrainState
    best: Params

    @property
    def stored(self) -> Any:
        """What a checkpoint holds."""
        return self.state if self.best is None else tuple(self)

    def restored(self, found: Any) -> "Kept":
        """The same kind, from what a checkpoint held."""
        return Kept(found, None) if self.best is None else Kept(*found)


@dataclass
class Log:
    """What was recorded so far, and the time it took."""

    first: int = 0
    spent: float = 0.0
    rows: list[dict[str, float]] = field(default_factory=list)
    converged: bool = False

    def cut(self, rows: int, spent: float, converged: bool) -> "Log":
        return Log(self.first, spent, self.rows[:rows], converged)

    def arrays(self) -> dict[str, np.ndarray]:
        names = dict.fromkeys(name for row in self.rows for name in row)
        return {name: np.array([row.get(name, np.nan) for row in self.rows]) for name in names}


@dataclass
class Store:
    """The checkpoint of one run; `mark` says which run."""

    path: Path
    mark: dict[str, str]
    team: Team
    written: float = field(default_factory=time.monotonic)

    def begin(self, like: Kept, resume: bool) -> tuple[Kept, Log] | None:
        """What there is to go on from, on every process of the run, though the first alone reads it."""
        found = like, Log()

        def read() -> str | None:
            nonlocal found
            stored = self.read(like, resume)
            found = found if stored is None else stored
            return None if stored is None else json.dumps(asdict(stored[1]))

        text = self.team.told(read)
        return None if text is None else (self.team.shared(found[0]), Log(**json.loads(text)))

    def read(self, like: Kept, resume: bool) -> tuple[Kept, Log] | None:
        if not self.path.exists():
            return None
        if not resume:
            raise ValueError(
                f"`checkpoint` holds a run already, {self.path}: go on with `resume=True`, delete it, or "
                f"choose another folder."
            )
        about = read_header(self.path)["about"]
        if not isinstance(about.get("mark"), dict) or not {"first", "spent", "rows"} <= about.keys():
            raise ValueError(
                f"{self.path} holds no run of sg.fit: choose another folder for `checkpoint`, or delete it."
            )
        for name, stored in about["mark"].items():
            if stored != self.mark.get(name):
                raise ValueError(
                    f"{self.path} belongs to a run with another {name}: choose another folder for "
                    f"`checkpoint`, or delete that one."
                )
        try:
            stored, _ = read_checkpoint(self.path, like.stored)
        except ValueError as error:
            raise ValueError(f"{error} To begin anew, delete that file.") from None
        log = Log(about["first"], about["spent"], about["rows"], about.get("converged", False))
        return like.restored(stored), log

    def write(self, kept: Kept, log: Log) -> None:
        about = {"mark": self.mark, "first": log.first, "spent": log.spent, "rows": log.rows}
        about["converged"] = log.converged

        def store() -> None:
            try:
                write_checkpoint(self.path, jax.device_get(kept.stored), about)
            except OSError as error:
                text = f"{error.strerror}: free space, and the same call goes on from the last checkpoint"
                raise OSError(error.errno, text, str(self.path)) from None

        self.team.told(store)
        self.written = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether the last one was long ago, by the clock of the first process."""
        (late,) = self.team.agree(time.monotonic() - self.written > CHECKPOINT_SECONDS)
        return bool(late)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """The folder of a checkpoint for this process alone; errors say what to do."""
    with ExitStack() as stack:
        try:
            stack.enter_context(_files.locked(folder))
        except BlockingIOError as error:
            raise BlockingIOError(
                error.errno,
                "another process is training there: wait for it, or choose another folder for `checkpoint`",
                str(folder),
            ) from None
        except OSError as error:
            text = f"{error.strerror}: choose another folder for `checkpoint`"
            raise OSError(error.errno, text, str(folder)) from None
        yield


def fingerprint(setup: Setup, every: int) -> dict[str, str]:
    """What must be the same for a run to go on bit for bit."""

    def digest(tree: Any) -> str:
        text = re.sub(r" at 0x[0-9a-f]+", "", eqx.tree_pformat(tree))  # functions say where they are
        found = hashlib.sha256(text.encode())
        for leaf in jax.tree.leaves(tree):
            if eqx.is_array(leaf):
                found.update(np.asarray(leaf).tobytes())
        return found.hexdigest()[:16]

    typed = jnp.issubdtype(setup.key.dtype, jax.dtypes.prng_key)
    return {
        "problem": digest(setup.problem),
        "key": digest(jax.random.key_data(setup.key) if typed else setup.key),
        "method": digest(setup.method),
        "sampler": digest(setup.sampler),
        "record_every": str(every),
    }
