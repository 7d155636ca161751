"""Ends that come from outside: a signal that a run must stop, and memory that does not suffice."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import jax

from .. import _signals

Loop = TypeVar("Loop", bound=Callable[..., Any])


def ends_in_order(loop: Loop) -> Loop:
    """With a `checkpoint`, SIGTERM interrupts the loop, and the process then exits as one so terminated."""

    @wraps(loop)
    def ends(*args: Any, **options: Any) -> Any:
        with memory_in_words():
            if options.get("checkpoint") is None:
                return loop(*args, **options)
            with _signals.interruptible() as came:
                try:
                    with _signals.as_interruptions():
                        return loop(*args, **options)
                except KeyboardInterrupt:
                    if signal.SIGTERM in came:
                        raise SystemExit(_signals.TERMINATED) from None
                    raise

    return cast(Loop, ends)


@contextmanager
def memory_in_words() -> Iterator[None]:
    """An allocator's refusal as a `MemoryError` that says what takes less."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(
            f"a step needs more memory than there is ({str(error).splitlines()[0]}). Fewer rows per step "
            f"(`batch_size`, points, walkers), a `block_size` or `memory_limit` of sg.jacobian, or a method "
            f'with solver="cg", which needs no kernel, take less.'
        ) from None
