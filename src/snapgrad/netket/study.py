"""Ground states of spin chains: the driver without settings, SPRING, SNG and NetKet's own SR side by side.

NetKet supplies Hamiltonians, ansätze and samplers (`pip install 'snapgrad[netket]'`); the methods share them
and the seeds, and all but the first, which sets nothing, the step size and the damping.
"""

import contextlib
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from scipy.sparse.linalg import eigsh

from .. import training as training_room
from .._checks import one_of, positive_int, real_scalar
from ..report import BLUE, GREEN, ORANGE, PURPLE, Draw, render, standalone
from ..reproduce import ResultsError, read_json, write_atomic, write_json, write_section

Name: TypeAlias = Literal["tfim", "heisenberg", "j1j2"]
Method: TypeAlias = Literal["default", "spring", "sng", "sr"]
NAMES: tuple[Name, ...] = get_args(Name)
METHODS: tuple[Method, ...] = get_args(Method)
SHOWN: tuple[Method, ...] = ("default", "spring", "sr")
"""What is trained where nothing else is asked for; SNG takes the steps of SR."""
TITLES = {"default": "without settings", "spring": "SPRING", "sng": "SNG", "sr": "NetKet's SR"}
MOST_STATES = 200_000  # beyond this many configurations exact diagonalisation takes minutes
SAVE_EVERY = 20.0
"""Seconds between two checkpoints."""
_BLOCK = 10  # steps between two moments at which a run can be stored
_RUNS, _TRAINING = "runs.json", "training.json"


@dataclass(frozen=True)
class Training:
    """What is trained and how.

    - `size`: sites of the periodic chain; `field`: h of the Ising chain; `j2`: second coupling of J1–J2.
    - `alpha`: hidden units per site of the restricted Boltzmann machine (of its translation-symmetric form,
      for the Heisenberg and J1–J2 chains).
    - `samples`, `chains`, `steps`, `step_size`, `momentum`: k, Markov chains, iterations, η, and μ of SPRING.
    - `damping`: λ at the first and at the last step, geometric between them.
    - `max_norm`: bound on the norm of a step.
    - `final_samples`: of the energy after training.
    """

    size: int
    field: float = 1.0
    j2: float = 0.2
    alpha: int = 4
    samples: int = 512
    chains: int = 256
    steps: int = 300
    step_size: float = 0.02
    momentum: float = 0.8
    damping: tuple[float, float] = (1e-2, 1e-4)
    max_norm: float | None = 0.1
    final_samples: int = 8192
    seed: int = 0


DEFAULTS: dict[Name, Training] = {
    "tfim": Training(10, samples=256, chains=16, steps=200, damping=(1e-3, 1e-3), max_norm=None),
    "heisenberg": Training(22, alpha=8),
    "j1j2": Training(14),
}


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


def tfim_energy(size: int, field: float) -> float:
    """The ground state energy of −Σ σᶻσᶻ − h Σ σˣ on a ring, by free fermions."""
    momenta = (2 * np.arange(size) + 1) * np.pi / size
    return float(-np.sum(np.sqrt(1 + field**2 - 2 * field * np.cos(momenta))))


def heisenberg_energy(size: int) -> float:
    """The ground state energy of Σ σ·σ on a ring of even size, by the Bethe ansatz.

    N θ₁(x_j) = 2π I_j + Σ_l θ₂(x_j − x_l) with θ_n(x) = 2 arctan(2x/n) and I_j = −(M − 1)/2 … (M − 1)/2, for
    M = N/2 rapidities; E = N − 8 Σ_j 1/(1 + 4x_j²).
    """
    half = size // 2
    numbers = np.arange(half) - (half - 1) / 2
    x = np.tan(np.pi * numbers / size) / 2
    for _ in range(10_000):
        phases = 2 * np.arctan(x[:, None] - x[None, :])
        new = np.tan((2 * np.pi * numbers + phases.sum(axis=1)) / (2 * size)) / 2
        if np.max(np.abs(new - x)) < 1e-14 * (1 + np.max(np.abs(x))):
            break
        x = (x + new) / 2
    return float(size - 8 * np.sum(1 / (1 + 4 * x**2)))


@cache
def exact_energy(name: Name, training: Training) -> float | None:
    """E₀ from a closed form, or by exact diagonalisation where that is feasible, else None."""
    if name == "tfim":
        return tfim_energy(training.size, training.field)
    if name == "heisenberg":
        return heisenberg_energy(training.size)
    hamiltonian = _hamiltonian(name, training)
    if hamiltonian.hilbert.n_states > MOST_STATES:
        return None
    start = np.ones(hamiltonian.hilbert.n_states)
    return float(eigsh(hamiltonian.to_sparse(), k=1, which="SA", v0=start, return_eigenvectors=False)[0])


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
    name, training = _checked(name, training or DEFAULTS[name])
    one_of("method", method, METHODS)
    hamiltonian = _hamiltonian(name, training)
    driver = _driver(method, hamiltonian, _state(name, training, hamiltonian.hilbert), training)
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
        if checkpoint is not None:
            used = progress.cpu_seconds + time.process_time() - cpu
            training_room.save(checkpoint, {**good, "cpu_seconds": used})

    good, saved = _tree(driver, progress), time.monotonic()
    try:
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
        "driver": to_state_dict(driver),
        "rows": progress.rows.copy(),
        "count": progress.count,
        "cpu_seconds": progress.cpu_seconds,
    }


def _restored(path: Path, driver: Any, progress: _Progress) -> tuple[Any, _Progress]:
    from flax.serialization import from_state_dict

    try:
        tree = training_room.load(path, _tree(driver, progress))
    except ValueError as error:
        raise ResultsError(f"{error} Delete it and run again: only that method is redone.") from None
    stored = _Progress(
        len(progress.rows), np.array(tree["rows"]), int(tree["count"]), float(tree["cpu_seconds"])
    )
    return from_state_dict(driver, tree["driver"]), stored


def _checked(name: Any, training: Training) -> tuple[Name, Training]:
    one_of("name", name, NAMES)
    least = {"tfim": 3, "heisenberg": 4, "j1j2": 6}[name]
    if positive_int("size", training.size) < least or (name != "tfim" and training.size % 2):
        raise ValueError(
            f"`size` must be {'at least' if name == 'tfim' else 'an even number of at least'} {least} "
            f"for {name}, got {training.size}."
        )
    for field in ("alpha", "samples", "chains", "steps", "final_samples"):
        positive_int(field, getattr(training, field))
    for field in ("field", "step_size", "momentum"):
        real_scalar(field, getattr(training, field), low=0, below=1 if field == "momentum" else np.inf)
    if training.chains > training.samples:
        training = replace(training, chains=training.samples)
    return name, training


def _hamiltonian(name: Name, training: Training) -> Any:
    import netket as nk

    if name == "tfim":
        ising: Any = nk.operator.IsingJax
        hilbert = nk.hilbert.Spin(0.5, training.size)
        return ising(hilbert, nk.graph.Chain(training.size), h=training.field, J=-1.0)
    hilbert = nk.hilbert.Spin(0.5, training.size, total_sz=0)
    # Marshall's rotation of every other spin: without frustration the ground state is then positive.
    if name == "heisenberg":
        return nk.operator.Heisenberg(
            hilbert, nk.graph.Chain(training.size), sign_rule=True
        ).to_jax_operator()
    graph = nk.graph.Chain(training.size, max_neighbor_order=2)
    couplings = {"J": [1.0, training.j2], "sign_rule": [True, False]}
    return nk.operator.Heisenberg(hilbert, graph, **couplings).to_jax_operator()


def _state(name: Name, training: Training, hilbert: Any) -> Any:
    import netket as nk

    chain = nk.graph.Chain(training.size)
    if name == "tfim":
        sampler = nk.sampler.MetropolisLocal(hilbert, n_chains=training.chains)
        model = nk.models.RBM(alpha=training.alpha, param_dtype=float)
    else:
        sampler = nk.sampler.MetropolisExchange(hilbert, graph=chain, d_max=2, n_chains=training.chains)
        kind = float if name == "heisenberg" else complex
        model = nk.models.RBMSymm(chain.translation_group(), alpha=training.alpha, param_dtype=kind)
    options: dict[str, Any] = {"seed": training.seed, "sampler_seed": training.seed + 1}
    return nk.vqs.MCState(sampler, model, n_samples=training.samples, n_discard_per_chain=2, **options)


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


def run(
    name: Name,
    training: Training | None = None,
    *,
    methods: Sequence[Method] = SHOWN,
    out: Path | str = "results",
    resume: bool = False,
    console: Any,
) -> list[Outcome]:
    """What `snapgrad quantum` does: trains with each method, live, then writes a table and a picture.

    **Arguments:**

    - `name`: `"tfim"`, `"heisenberg"` or `"j1j2"`.
    - `training`: default `DEFAULTS[name]`; change single fields with `dataclasses.replace`.
    - `methods`: of `"default"` (the driver without settings), `"spring"`, `"sng"` and `"sr"` (NetKet's
      `VMC_SR`); these three take the settings of `training`.
    - `out`: the results folder; data, picture and a section for the page go to `out/quantum/<name>`.
    - `resume`: keep the methods that are stored there, go on with one that was interrupted, and train those
      that are missing. Without it a folder that holds results is refused, never overwritten.
    - `console`: the `rich.console.Console` to write on.
    """
    from rich.progress import BarColumn, Progress, TextColumn

    name, training = _checked(name, training or DEFAULTS[one_of("name", name, NAMES)])
    for method in methods:
        one_of("methods", method, METHODS)
    exact = exact_energy(name, training)
    known = "not computed (too large)" if exact is None else f"{exact:.9f}"
    console.print(f"{name}, {training.size} sites, exact ground state energy {known}")
    folder = Path(out) / "quantum" / name
    outcomes = _found(folder, training, resume)
    done = {outcome.method for outcome in outcomes}
    write_json(folder / _TRAINING, asdict(training))
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}")
    with Progress(*columns, console=console) as bar:
        for method in methods:
            if method in done:
                continue
            checkpoint = folder / f"{method}.snap"
            task = bar.add_task(TITLES[method], total=training.steps, now="compiling")

            def live(_: Name, __: Method, point: Iteration, task: Any = task) -> None:
                bar.update(task, completed=point.step + 1, now=describe(point, training.size, exact))

            outcomes.append(train(name, method, training, live, checkpoint))
            _store(folder, outcomes)
            checkpoint.unlink(missing_ok=True)
            bar.update(task, now="done")
    for outcome in outcomes:
        console.print(f"{TITLES[outcome.method]}: {summary(outcome)}")
    console.print(f"{folder / 'energy.svg'} and {folder / 'runs.json'} written")
    return outcomes


def _found(folder: Path, training: Training, resume: bool) -> list[Outcome]:
    """The methods that are stored in a folder; `ResultsError` if they may not be touched."""
    if not (folder / _TRAINING).exists():
        if resume:
            raise ResultsError(f"{folder} holds nothing to resume from. Run without --resume first.")
        return []
    if not resume:
        raise ResultsError(
            f"{folder} holds a run already. Add --resume to go on with it, choose another folder with --out, "
            f"or delete that one."
        )
    wanted = json.loads(json.dumps(asdict(training)))
    stored = read_json(folder / _TRAINING)
    for field, value in wanted.items():
        if stored.get(field) != value:
            raise ResultsError(
                f"{folder} holds a run of other settings ({field}: {stored.get(field)!r}, now {value!r}). "
                f"Choose another folder with --out."
            )
    if not (folder / _RUNS).exists():
        return []
    try:
        return [_outcome(entry, training) for entry in read_json(folder / _RUNS)]
    except (TypeError, KeyError, AttributeError):
        raise ResultsError(f"{folder / _RUNS} is damaged. Delete {folder} and run again.") from None


def _outcome(entry: dict[str, Any], training: Training) -> Outcome:
    """What `_store` wrote, read back; null stands for a number that is not finite."""
    history: Any = [{k: np.nan if v is None else v for k, v in row.items()} for row in entry["history"]]
    numbers = {k: np.nan if v is None and k != "exact" else v for k, v in entry.items()}
    return Outcome(**{**numbers, "training": training, "history": tuple(Iteration(**row) for row in history)})


def _store(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Data, picture and section of the methods trained so far."""
    name, training = outcomes[0].name, outcomes[0].training
    write_json(folder / _RUNS, [_finite(asdict(outcome)) for outcome in outcomes])
    panels = _panels(outcomes)
    write_atomic(folder / "energy.svg", standalone(render(panels, f"quantum-{name}")).encode())
    write_section(
        folder,
        title=f"Ground state: {name}, {training.size} sites",
        source="NetKet",
        caption="Error of the energy against iterations and against time, and the V-score: means over ten "
        "iterations. All methods share model and seed; those with settings share step size and damping.",
        table=[_row(outcome) for outcome in outcomes],
        svgs=[render([panel], f"quantum-{name}-{index}") for index, panel in enumerate(panels)],
        links={"curves (SVG)": "energy.svg", "every iteration (JSON)": "runs.json"},
    )


def _finite(value: Any) -> Any:
    """With null for numbers that JSON does not have, such as the error bar of a single chain."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _row(outcome: Outcome) -> dict[str, str]:
    error = outcome.relative_error
    return {
        "method": TITLES[outcome.method],
        "energy": f"{outcome.energy:.5f} ± {outcome.error:.5f}",
        "relative error": "unknown" if error is None else f"{error:.1e}",
        "V-score": f"{outcome.v_score:.1e}",
        "steps": f"{len(outcome.history)}",
        "seconds": f"{outcome.history[-1].seconds:.0f}",
    }


def describe(point: Iteration, size: int, exact: float | None) -> str:
    """One iteration in a line."""
    text = f"E = {point.energy:.5f} ± {point.error:.5f}, σ² = {point.variance:.1e}"
    text += f", V-score {size * point.variance / point.energy**2:.1e}"
    return text if exact is None else f"{text}, error {(point.energy - exact) / abs(exact):+.1e}"


def summary(outcome: Outcome) -> str:
    """The result of a run in a line."""
    last = replace(outcome.history[-1], energy=outcome.energy, error=outcome.error, variance=outcome.variance)
    text = describe(last, outcome.training.size, outcome.exact)
    text += (
        f"; {len(outcome.history)} steps in {last.seconds:.0f} s, {outcome.compile_seconds:.0f} s to compile"
    )
    return text + (f"; {outcome.rejected} steps refused" if outcome.rejected else "")


def _panels(outcomes: Sequence[Outcome]) -> list[Draw]:
    """Energy against iteration and time, and the V-score; means over ten steps, to show the trend."""
    looks = {"default": (PURPLE, "-"), "spring": (BLUE, "-"), "sng": (ORANGE, "--"), "sr": (GREEN, ":")}
    styles = {method: {"color": colour, "linestyle": line} for method, (colour, line) in looks.items()}
    exact, size = outcomes[0].exact, outcomes[0].training.size

    def panel(ax: Any, against: str, label: str, score: bool = False) -> None:
        for outcome in outcomes:
            names = (against, "energy", "variance")
            x, energy, variance = np.array([[getattr(p, name) for p in outcome.history] for name in names])
            width = min(10, x.size)
            energy, variance = (
                np.convolve(y, np.full(width, 1 / width), "valid") for y in (energy, variance)
            )
            y = energy if exact is None else np.abs(energy - exact) / abs(exact)
            y = size * variance / energy**2 if score else y
            ax.plot(x[width - 1 :], y, label=TITLES[outcome.method], **styles[outcome.method])
        name = "V-score" if score else "energy" if exact is None else "relative error of the energy"
        ax.set(xlabel=label, ylabel=name, yscale="log" if score or exact is not None else "linear")
        ax.legend()

    panels = [("step", "iteration"), ("seconds", "seconds"), ("step", "iteration", True)]
    return [lambda ax, args=args: panel(ax, *args) for args in panels]
