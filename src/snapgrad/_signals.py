"""Interruptions that are not lost."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TERMINATED = 128 + signal.SIGTERM
"""What a shell reports of a process that was terminated."""
AGAIN = 0.01
"""Seconds after which a signal is sent again that came at a moment when nothing can be raised."""


_within: list[list[int]] = []
"""The signals that came, for each `interruptible` that one is in."""


def is_interruption(error: BaseException | None) -> bool:
    """Whether an error is an interruption, or what compiled code has made of one.

    Such code may raise an error of its own from it, or drop it and fail for what it then lacks: after a
    signal that is the reason of an error, unless the error came while the interruption was taken care of.
    """
    if error is None:
        return False
    dropped = any(_within) and not _reached(error, "__context__")
    return dropped or _reached(error, "__cause__")


def _reached(error: BaseException | None, link: str) -> bool:
    """Whether an interruption is found by following these links of errors."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = getattr(error, link)
    return error is not None


@contextmanager
def as_interruptions() -> Iterator[None]:
    """What compiled code has made of interruptions becomes them again."""
    try:
        yield
    except Exception as error:
        if is_interruption(error):
            raise KeyboardInterrupt from None
        raise


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """SIGTERM, which schedulers send, as an interruption within, as Ctrl-C is; what came is in the list.

    Python drops what is raised while it collects garbage, and JAX has a function of its own there, in which
    many a signal is noticed that comes during a compilation: Ctrl-C or SIGTERM would be without effect. Such
    a signal is sent again. An object that was interrupted while it was made may fail when it is removed: that
    is of no interest to anyone.

    Whoever has a handler of SIGTERM or of Ctrl-C keeps it; so do threads, which cannot have one.
    """
    came: list[int] = []
    timers: list[threading.Timer] = []
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield came
        return
    usual = {
        kind: handler
        for kind, handler in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler))
        if signal.getsignal(kind) is handler
    }

    def stop(number: int, frame: Any) -> None:
        del frame
        came.append(number)
        raise KeyboardInterrupt

    def again() -> None:
        timer = threading.Timer(AGAIN, os.kill, (os.getpid(), came[-1] if came else signal.SIGINT))
        timer.daemon = True
        timers.append(timer)
        timer.start()

    def dropped(what: Any) -> None:
        if what.exc_type is KeyboardInterrupt:
            again()
        elif not came:
            before(what)

    def printed(kind: Any, value: Any, trace: Any) -> None:
        if kind is KeyboardInterrupt:  # compiled code prints what it then drops
            again()
        else:
            shown(kind, value, trace)

    before, sys.unraisablehook = sys.unraisablehook, dropped
    shown, sys.excepthook = sys.excepthook, printed
    for kind in usual:
        signal.signal(kind, stop)
    _within.append(came)
    try:
        yield came
    finally:
        _within.remove(came)
        for timer in timers:
            timer.cancel()
        if came:
            gc.collect()  # what is half made may wait for it
        for kind, handler in usual.items():
            signal.signal(kind, handler)
        sys.unraisablehook, sys.excepthook = before, shown
