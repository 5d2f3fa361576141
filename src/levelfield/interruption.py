"""Ctrl-C and SIGTERM while trials train: they take effect between two stretches of training, and never get lost.

An exception that a signal handler raises can surface inside a callback of JAX's garbage collection, where Python
discards it. So the handler only sets a flag, which the loops that train and wait check. It runs only between two
instructions of Python, of which a long stretch of training has none; so a thread hears of signals, too, says that the
run is going to stop, and ends it at the second one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRACE = 0.5  # seconds within which a second signal counts as the same: a terminal and a parent may both send one
_TICK = 0.2  # seconds between checks of the flag


class _State:
    requested = 0.0  # when the first signal arrived
    deferring = False


_state = _State()


def raise_at_once() -> None:
    """Let Ctrl-C and SIGTERM raise KeyboardInterrupt, also in a shell's background job, which ignores Ctrl-C.

    If it gets lost, the next ``deferred`` raises it again.
    """

    def handle(*_: Any) -> None:
        _request()
        raise KeyboardInterrupt

    for number in _SIGNALS:
        signal.signal(number, handle)


@contextmanager
def deferred(announce: Callable[[], None] | None = None, abort: Callable[[], None] | None = None) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM only set a flag: ``check`` and ``sleep`` raise KeyboardInterrupt once it is set.

    ``announce`` is called at the first signal. A second one ends the process at once with exit code 130, after calling
    ``abort``. Both are called from another thread. Has no effect outside of the main thread, where Python handles no
    signals, or inside of itself.
    """
    if _state.deferring or threading.current_thread() is not threading.main_thread():
        yield
        return
    check()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    thread = threading.Thread(target=_listen, args=[reader, announce, abort], name="levelfield-signals", daemon=True)
    handlers = {number: signal.signal(number, lambda *_: _request()) for number in _SIGNALS}
    descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    _state.deferring = True
    thread.start()
    try:
        yield
        check()
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        writer.close()
        thread.join()  # what it has to say comes before what the caller says
        _state.requested, _state.deferring = 0.0, False


def _request() -> None:
    _state.requested = _state.requested or time.monotonic()


def _listen(reader: socket.socket, announce: Callable[[], None] | None, abort: Callable[[], None] | None) -> None:
    """React to the signals whose numbers arrive, as far as the main thread cannot."""
    heard = 0.0
    with reader:
        while number := reader.recv(1):
            if number[0] not in _SIGNALS:
                continue
            if not heard:
                heard = time.monotonic()
                _request()
                with contextlib.suppress(OSError):
                    if announce:
                        announce()
            elif time.monotonic() - heard > _GRACE:
                try:
                    if abort:
                        abort()
                finally:
                    os._exit(130)


def _forget() -> None:
    """Leave the signals of a process that custom code forks to itself."""
    if _state.deferring:
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)


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
