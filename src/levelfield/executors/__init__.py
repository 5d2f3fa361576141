"""Executors: where trials are trained. All have one method; the runner asks nothing else of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from levelfield.errors import UnknownName
from levelfield.study import Study
from levelfield.trial import Point, Trial

EXECUTORS = ("local",)


class Progress(Protocol):
    """What a stretch of training brought."""

    @property
    def finished(self) -> list[Trial]: ...
    @property
    def running(self) -> int: ...
    @property
    def trial_steps(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def note(self) -> str:
        """What the user should know; mostly nothing."""
        ...


class Executor(Protocol):
    def check(self, study: Study) -> None:
        """Refuse what cannot be trained here, before anything is written."""
        ...

    def train(self, study: Study, optimizer: str, take: Callable[[], Point | None]) -> Iterator[Progress]:
        """Train the points that ``take`` hands out."""
        ...

    def provenance(self) -> Mapping[str, Any]:
        """Versions, device and precision, to be stored with every trial."""
        ...


def get_executor(name: str, slots: int | None) -> Executor:
    if name not in EXECUTORS:
        raise UnknownName.of("executor", name, EXECUTORS)
    from levelfield.executors.local import LocalExecutor

    return LocalExecutor(slots)
