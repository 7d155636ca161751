"""Panels on any executor: processes of this machine, where each has a core of its own, or a cluster.

A worker is sent the name of a panel and returns its arrays; who asked for them stores them, so that workers
need no disk in common with it.
"""

import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from .._threads import own_threads
from ._store import FailedError
from ._study import Size, Study

Load: TypeAlias = Callable[[str], Study]
"""Makes a study from its name: a function of a module, so that it can be sent to another process."""
LOOK = 0.1
"""Seconds between two looks at how far panels are."""
_fractions: Any = None  # in a process of the local pool: what it tells the others of its panels


class Job(NamedTuple):
    """A panel by name, so that it can be sent to another process."""

    load: Load
    study: str
    size: Size
    seed: int
    panel: str


class Made(NamedTuple):
    """A panel as a worker returns it: its arrays, and how they were made."""

    arrays: dict[str, np.ndarray]
    settings: Any
    about: dict[str, Any]


class Event(NamedTuple):
    """How far a panel is; `made` is there once it is complete."""

    job: Job
    fraction: float
    made: Made | None = None


def settle_environment() -> None:
    """Thread counts for this process and those started from here on.

    OpenBLAS spreads small factorisations over busy cores to no good; it has read the environment before any
    line of ours runs, so it is told directly as well. jaxlib waits for batched LAPACK calls inside the thread
    pool that runs them, so two at once on two threads wait for ever; four keep one free.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]), "blas")
    if own_threads() < 4:
        os.environ.setdefault("NPROC", "4")


def compute_panel(job: Job, number: int = 0) -> Made:
    """Computes one panel here, in float64; `number` is its place among all."""
    settle_environment()
    import jax

    from .. import __version__

    def tick(fraction: float) -> None:
        if _fractions is not None:
            _fractions[number] = fraction

    tick(0.0)
    jax.config.update("jax_enable_x64", True)
    panel = next(p for p in job.load(job.study).panels(job.size, job.seed) if p.name == job.panel)
    start, cpu = time.perf_counter(), time.process_time()
    arrays = {name: np.asarray(value) for name, value in panel.compute(tick).items()}
    about = {
        "seconds": round(time.perf_counter() - start, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "versions": {"snapgrad": __version__, "jax": jax.__version__, "numpy": np.__version__},
    }
    return Made(arrays, panel.settings, about)


def run_jobs(jobs: Sequence[Job], executor: Executor, fractions: Any = ()) -> Iterator[Event]:
    """Runs all jobs and yields what happens; cancels those that wait when the caller stops listening.

    `fractions`, where an executor has them, say how far each job is; below zero it has not begun.
    """
    waiting: dict[Future, int] = {executor.submit(compute_panel, job, i): i for i, job in enumerate(jobs)}
    told = dict.fromkeys(waiting.values(), 0.0)
    try:
        while waiting:
            done, _ = wait(waiting, LOOK if fractions else None, FIRST_COMPLETED)
            for future in sorted(done, key=_failed):
                number = waiting[future]
                made = _result(future, [jobs[i].panel for i in waiting.values() if _begun(fractions, i)])
                del waiting[future]
                yield Event(jobs[number], 1.0, made)
            for number in waiting.values():
                if fractions and fractions[number] > told[number]:
                    told[number] = fractions[number]
                    yield Event(jobs[number], told[number])
    finally:
        for future in waiting:
            future.cancel()


def _failed(future: Future) -> bool:
    return future.cancelled() or future.exception() is not None


def _begun(fractions: Any, number: int) -> bool:
    return not fractions or fractions[number] >= 0


def _result(future: Future, at_work: Sequence[str]) -> Made:
    try:
        return future.result()
    except (BrokenExecutor, CancelledError) as error:
        several = f"one of {', '.join(at_work)}" if len(at_work) > 1 else "".join(at_work) or "a panel"
        if isinstance(error, CancelledError):
            raise FailedError("the scheduler gave up the panels. Look at its log, and run again.") from None
        raise FailedError(
            f"the process computing {several} was killed, perhaps for want of memory: fewer --jobs need "
            f"less. Finished panels are kept, the same command goes on."
        ) from None


@contextmanager
def local_pool(workers: int, jobs: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    """Processes of this machine for so many jobs, and how far each job is; they end with the block."""
    settle_environment()
    context = multiprocessing.get_context("spawn")
    fractions = context.RawArray("d", [-1.0] * jobs)
    lifeline, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(min(workers, jobs), context, _begin, (lifeline, fractions))
    try:
        yield pool, fractions
    finally:
        held.close()  # whatever they are at
        pool.shutdown(cancel_futures=True)
        lifeline.close()


def _begin(lifeline: Any, fractions: Any) -> None:
    """In a new process of the pool."""
    global _fractions
    _fractions = fractions
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    import jax

    shared = jax.config.values["jax_compilation_cache_dir"]
    if shared:  # JAX does not write its cache atomically: a folder for each, and no word on what a kill left
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
        number = multiprocessing.current_process().name.rpartition("-")[2]
        jax.config.update("jax_compilation_cache_dir", os.path.join(shared, f"worker-{number}"))


def _end_with(lifeline: Any) -> None:
    """Ends this process when its parent lets go of the line, or is gone."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
