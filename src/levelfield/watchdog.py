"""A watchdog for training that hangs, for instance in custom code that reads data."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from levelfield.environment import stall_seconds
from levelfield.user_code import place


class Watchdog:
    """Calls ``bark`` with a message if it is not reset for a long time. Use it as a context manager."""

    def __init__(self, bark: Callable[[str], None]) -> None:
        self._bark = bark
        self._limit = stall_seconds()
        self._watched = threading.get_ident()
        self._latest = time.monotonic()
        self._stopped = threading.Event()

    def __enter__(self) -> Watchdog:
        threading.Thread(target=self._watch, name="levelfield-watchdog", daemon=True).start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stopped.set()

    def reset(self) -> None:
        self._latest = time.monotonic()

    def _watch(self) -> None:
        while not self._stopped.wait(max(self._latest + self._limit - time.monotonic(), 0)):
            if time.monotonic() - self._latest >= self._limit:
                frame = sys._current_frames().get(self._watched)
                where = f" It is at {place(frame)}." if frame else ""
                self._bark(
                    f"training has not reached an evaluation for {self._limit / 60:.3g} minutes, so it seems to hang."
                    f"{where} If evaluations take longer, set LEVELFIELD_STALL_MINUTES."
                )
                return
