"""How many threads there are, and a word to those whom the thread pool of jaxlib may bring to a halt."""

import os
import warnings
from functools import cache

import jax


def own_threads() -> int:
    """Those that this process may use, which on a cluster are fewer than the machine has."""
    own = getattr(os, "sched_getaffinity", None)
    return len(own(0)) if own else os.cpu_count() or 1


@cache
def warn_of_few_threads() -> None:
    """Says once that batched factorisations may wait for each other for ever, where that can happen.

    jaxlib for CPU splits a batch of factorisations over its thread pool and waits for it on a thread of the
    same pool. On a pool of two threads, two such calls at a time take both.
    """
    threads = own_threads()
    if threads <= 2 and "NPROC" not in os.environ and jax.default_backend() == "cpu":
        warnings.warn(
            f"JAX has {threads} threads here, on which jaxlib can wait for ever for factorisations that run "
            f"at the same time: set NPROC=4 in the environment before Python starts.",
            stacklevel=4,
        )
