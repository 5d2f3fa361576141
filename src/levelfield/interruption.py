"""Ctrl-C and SIGTERM while trials train: they take effect between two stretches of training, and never get lost.

An exception that a signal handler raises can surface inside a callback of JAX's garbage collection, where Python
discards it. So the handler only sets a flag, which the loops that train and wait check.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_GRACE = 0.5  # seconds within which a second signal counts as the same: a terminal and a parent may both send one
_TICK = 0.2  # seconds between two looks at the flag


class _State:
    requested = 0.0  # when the first signal arrived
    deferring = False


_state = _State()


@contextmanager
def deferred(announce: Callable[[], None] | None = None, abort: Callable[[], None] | None = None) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM only set a flag: ``check`` and ``sleep`` raise KeyboardInterrupt once it is set.

    ``announce`` is called at the first signal. A second one ends the process at once with exit code 130, after calling
    ``abort``. Has no effect outside of the main thread, where Python handles no signals, or inside of itself.
    """
    if _state.deferring or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        if not _state.requested:
            _state.requested = time.monotonic()
            if announce:
                announce()
        elif time.monotonic() - _state.requested > _GRACE:
            try:
                if abort:
                    abort()
            finally:
                os._exit(130)

    # A shell's background jobs ignore SIGINT; a job that a user interrupts by name should end nevertheless.
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    _state.requested, _state.deferring = 0.0, True
    try:
        yield
        check()
    finally:
        _state.requested, _state.deferring = 0.0, False
        for number, handler in before.items():
            signal.signal(number, handler)


def check() -> None:
    """Raise KeyboardInterrupt if Ctrl-C or SIGTERM has arrived."""
    if _state.requested and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


def sleep(seconds: float) -> None:
    """Sleep, but not longer than until Ctrl-C or SIGTERM arrives."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        check()
        time.sleep(min(left, _TICK))
    check()
