"""One ground state: a training run of one method, its record, and its checkpoint."""

import contextlib
import io
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import jax
import numpy as np

from .. import _signals
from .. import training as training_room
from .._checks import one_of
from ..reproduce import ResultsError
from ._spin_chains import DEFAULTS, Name, Training, checked, exact_energy, hamiltonian_of, state_of

Method: TypeAlias = Literal["default", "spring", "sng", "sr"]
METHODS: tuple[Method, ...] = get_args(Method)
SAVE_EVERY = 20.0
"""Seconds between two checkpoints."""
_BLOCK = 10  # steps between two moments at which a run can be stored


@dataclass(frozen=True)
class Iteration:
    """One iteration; `seconds` counts from the end of the first step, which compiles."""

    step: int
    seconds: float
    energy: float
    error: float
    variance: float


@dataclass(frozen=True)
class Outcome:
    """A training run and its final energy, measured on fresh samples.

    `cpu_seconds` are those of all cores, compilation included: on a busy machine the fairer number.
    """

    name: Name
    method: Method
    training: Training
    exact: float | None
    history: tuple[Iteration, ...]
    energy: float
    error: float
    variance: float
    parameters: int
    rejected: int
    compile_seconds: float
    cpu_seconds: float

    @property
    def v_score(self) -> float:
        """N Var(H) / E², a size-independent measure of accuracy for Hamiltonians without trace."""
        return self.training.size * self.variance / self.energy**2

    @property
    def relative_error(self) -> float | None:
        """(E − E₀)/|E₀|, where E₀ is known."""
        return None if self.exact is None else (self.energy - self.exact) / abs(self.exact)


Live: TypeAlias = Callable[[Name, Method, Iteration], None]


def train(
    name: Name,
    method: Method,
    training: Training | None = None,
    live: Live | None = None,
    checkpoint: Path | None = None,
) -> Outcome:
    """Trains one ground state.

    `live(name, method, iteration)` sees every iteration as it happens. With a `checkpoint`, a file, training
    goes on from what is stored there, and is stored there every 20 seconds and on Ctrl-C.
    """
    name, training = checked(name, training or DEFAULTS[name])
    one_of("method", method, METHODS)
    hamiltonian = hamiltonian_of(name, training)
    driver = _driver(method, hamiltonian, state_of(name, training, hamiltonian.hilbert), training)
    cpu = time.process_time()
    progress = _Progress(training.steps)
    if checkpoint is not None and checkpoint.exists():
        driver, progress = _restored(checkpoint, driver, progress)
    offset, clock = progress.seconds, [time.perf_counter()]

    def note(step: int, data: dict[str, Any], driver: Any) -> bool:
        del driver
        found = data["Energy"]
        energy, error, variance = (
            float(np.real(x)) for x in (found.mean, found.error_of_mean, found.variance)
        )
        clock.append(time.perf_counter())
        progress.add(Iteration(int(step), offset + clock[-1] - clock[1], energy, error, variance))
        if live is not None:
            live(name, method, progress.last)
        return True

    def save() -> None:
        if checkpoint is not None and good["count"]:  # before the first step there is nothing to keep
            used = progress.cpu_seconds + time.process_time() - cpu
            training_room.save(checkpoint, {**good, "cpu_seconds": used})

    good, saved = _tree(driver, progress), time.monotonic()
    try:
        with _signals.as_interruptions():
            while progress.count < training.steps:
                driver.run(min(_BLOCK, training.steps - progress.count), show_progress=False, callback=note)
                good = _tree(driver, progress)  # between two steps, where everything belongs together
                if time.monotonic() - saved > SAVE_EVERY:
                    save()
                    saved = time.monotonic()
    except KeyboardInterrupt:
        save()
        raise
    vstate = driver.state
    vstate.n_samples = training.final_samples
    final = vstate.expect(hamiltonian)
    return Outcome(
        name=name,
        method=method,
        training=training,
        exact=exact_energy(name, training),
        history=progress.history(),
        energy=float(np.real(final.mean)),
        error=float(final.error_of_mean),
        variance=float(final.variance),
        parameters=int(vstate.n_parameters),
        rejected=int(getattr(driver, "rejected_steps", 0)),
        compile_seconds=clock[1] - clock[0] if len(clock) > 1 else 0.0,
        cpu_seconds=progress.cpu_seconds + time.process_time() - cpu,
    )


class _Progress:
    """The iterations so far, as rows of one array of fixed size, so that it can be stored and read back."""

    def __init__(self, steps: int, rows: np.ndarray | None = None, count: int = 0, cpu_seconds: float = 0.0):
        self.rows = np.full((steps, 5), np.nan) if rows is None else rows
        self.count, self.cpu_seconds = count, cpu_seconds

    def add(self, iteration: Iteration) -> None:
        self.rows[self.count] = astuple(iteration)
        self.count += 1

    @property
    def last(self) -> Iteration:
        step, *rest = self.rows[self.count - 1]
        return Iteration(int(step), *map(float, rest))

    @property
    def seconds(self) -> float:
        return self.last.seconds if self.count else 0.0

    def history(self) -> tuple[Iteration, ...]:
        return tuple(Iteration(int(step), *map(float, rest)) for step, *rest in self.rows[: self.count])


def _tree(driver: Any, progress: _Progress) -> dict[str, Any]:
    """All that a run needs to go on, as arrays and numbers."""
    from flax.serialization import to_state_dict

    return {
        # A number of the driver may become an array on the way, and must be read back as either.
        "driver": jax.tree.map(np.asarray, to_state_dict(driver)),
        "rows": progress.rows.copy(),
        "count": progress.count,
        "cpu_seconds": progress.cpu_seconds,
    }


def _restored(path: Path, driver: Any, progress: _Progress) -> tuple[Any, _Progress]:
    from flax.serialization import from_state_dict, to_state_dict

    try:
        tree = training_room.load(path, _tree(driver, progress))
    except ValueError as error:
        raise ResultsError(f"{error} Delete it and run again: only that method is redone.") from None
    stored = _Progress(
        len(progress.rows), np.array(tree["rows"]), int(tree["count"]), float(tree["cpu_seconds"])
    )
    state = jax.tree.map(
        lambda old, new: new.item() if isinstance(old, int | float) else new,
        to_state_dict(driver),
        tree["driver"],
    )
    return from_state_dict(driver, state), stored


def _driver(method: Method, hamiltonian: Any, vstate: Any, training: Training) -> Any:
    import netket as nk
    import optax

    from ..methods import SNG, Spring
    from ._driver import VMC

    if method == "default":
        return VMC(hamiltonian, vstate)
    first, last = training.damping
    damping = optax.exponential_decay(first, max(training.steps - 1, 1), last / first)
    if method != "sr":
        spring = lambda step: Spring(damping(step), training.momentum)  # noqa: E731
        sng = lambda step: SNG(damping(step))  # noqa: E731
        chosen = spring if method == "spring" else sng
        return VMC(hamiltonian, training.step_size, vstate, method=chosen, max_norm=training.max_norm)
    optimizer = optax.sgd(training.step_size)
    if training.max_norm is not None:
        optimizer = optax.chain(optimizer, optax.clip_by_global_norm(training.max_norm))
    with contextlib.redirect_stdout(io.StringIO()):  # it announces its choices
        return nk.driver.VMC_SR(hamiltonian, optimizer, diag_shift=damping, variational_state=vstate)
