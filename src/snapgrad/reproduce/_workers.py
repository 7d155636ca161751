"""Panels in worker processes: small linear algebra runs faster on a core of its own than spread over all."""

import multiprocessing
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from threadpoolctl import threadpool_limits

from ._store import ResultsError, save_panel
from ._study import Size, Study

Load: TypeAlias = Callable[[str], Study]
"""Makes a study from its name: a function of a module, so that it can be sent to another process."""


class Job(NamedTuple):
    """A panel by name, so that it can be sent to another process."""

    load: Load
    study: str
    size: Size
    seed: int
    panel: str
    folder: str


class Event(NamedTuple):
    """What a worker says: `kind` is `"tick"`, `"done"`, or `"refused"` or `"crash"` with a text."""

    kind: str
    job: Job
    fraction: float = 0.0
    text: str = ""


def settle_environment() -> None:
    """Thread counts for this process and those started from here on.

    OpenBLAS spreads small factorisations over busy cores to no good; it has read the environment before any
    line of ours runs, so it is told directly as well. jaxlib waits for batched LAPACK calls inside the thread
    pool that runs them, so two at once on two threads wait for ever; four keep one free.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]), "blas")
    if (os.cpu_count() or 1) < 4:
        os.environ.setdefault("NPROC", "4")


def compute_panel(job: Job, tick: Callable[[float], None]) -> None:
    """Computes one panel here and stores it."""
    import jax
    import numpy as np

    from .. import __version__

    panel = next(p for p in job.load(job.study).panels(job.size, job.seed) if p.name == job.panel)
    start, cpu = time.perf_counter(), time.process_time()
    arrays = panel.compute(tick)
    about = {
        "seconds": round(time.perf_counter() - start, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "versions": {"snapgrad": __version__, "jax": jax.__version__, "numpy": np.__version__},
    }
    save_panel(Path(job.folder), panel.name, arrays, panel.settings, about)


def run_jobs(jobs: Sequence[Job], workers: int) -> Iterator[Event]:
    """Runs all jobs and yields what happens; stops the workers when the caller stops listening."""
    settle_environment()
    context = multiprocessing.get_context("spawn")
    waiting = list(reversed(jobs))
    pipes: dict[Any, Job | None] = {}
    processes = []
    try:
        for number in range(min(workers, len(jobs))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, os.getpid(), number), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes[ours] = None
        for pipe in pipes:
            pipes[pipe] = waiting.pop()
            pipe.send(pipes[pipe])
        while any(pipes.values()):
            ready: list[Any] = wait([pipe for pipe, job in pipes.items() if job])
            for pipe in ready:
                job = pipes[pipe]
                assert job is not None
                try:
                    event: Event = pipe.recv()
                except EOFError:
                    event = Event("crash", job, text=f"the process computing {job.panel} was killed")
                yield event
                if event.kind != "tick":
                    pipes[pipe] = waiting.pop() if waiting and event.kind == "done" else None
                    if pipes[pipe]:
                        pipe.send(pipes[pipe])
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _serve(pipe: Connection, parent: int, number: int) -> None:
    """A worker: computes what it is sent until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    import jax

    jax.config.update("jax_enable_x64", True)
    shared = jax.config.values["jax_compilation_cache_dir"]
    if shared:  # JAX does not write its cache atomically: a folder for each, and no word on what a kill left
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
        jax.config.update("jax_compilation_cache_dir", os.path.join(shared, f"worker-{number}"))
    while True:
        try:
            job: Job = pipe.recv()
        except EOFError:
            return
        try:
            compute_panel(job, lambda fraction, job=job: pipe.send(Event("tick", job, fraction)))
            pipe.send(Event("done", job))
        except ResultsError as error:
            pipe.send(Event("refused", job, text=str(error)))
        except Exception:
            pipe.send(Event("crash", job, text=traceback.format_exc()))


def _exit_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
