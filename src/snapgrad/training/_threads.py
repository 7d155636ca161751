"""A word to those whom the thread pool of jaxlib may bring to a halt."""

import os
import warnings
from functools import cache

import jax


@cache
def warn_of_few_threads() -> None:
    """Says once that batched factorisations may wait for each other for ever, where that can happen.

    jaxlib for CPU splits a batch of factorisations over its thread pool and waits for it on a thread of the
    same pool. On a pool of two threads, two such calls at a time take both.
    """
    own = getattr(os, "sched_getaffinity", None)
    threads = len(own(0)) if own else os.cpu_count() or 1
    if threads <= 2 and "NPROC" not in os.environ and jax.default_backend() == "cpu":
        warnings.warn(
            f"JAX has {threads} threads here, on which jaxlib can wait for ever for factorisations that run "
            f"at the same time: set NPROC=4 in the environment before Python starts.",
            stacklevel=4,
        )
