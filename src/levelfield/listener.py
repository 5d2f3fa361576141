"""Listeners, which are informed of a run's progress."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Protocol

from levelfield.pool import PoolCount
from levelfield.study import Study
from levelfield.trial import Progress

Best = Callable[[], Mapping[str, float]]  # optimizer → value; NaN if there is none


class Listener(Protocol):
    """Is informed of a run's progress."""

    def begin(self, study: Study, counts: Mapping[str, PoolCount], best: Best) -> None:
        """Hear which study is run, and how full its pools are; again at the end, when others may have added to them.

        ``best`` reads the best final value of each pool, which takes a while for large ones.
        """

    def advance(self, progress: Progress) -> None: ...
    def end(self) -> None: ...
    def note(self, message: str) -> None:
        """Hear something that the user should know."""

    def stalled(self, message: str) -> None:
        """Hear that training hangs. This is called from another thread."""


class Quiet:
    """A listener that shows no progress; notes become warnings."""

    def begin(self, study: Study, counts: Mapping[str, PoolCount], best: Best) -> None: ...
    def advance(self, progress: Progress) -> None: ...
    def end(self) -> None: ...
    def note(self, message: str) -> None:
        warnings.warn(message, stacklevel=2)

    stalled = note
