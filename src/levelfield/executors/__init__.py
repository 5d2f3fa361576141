"""Executors by name."""

from __future__ import annotations

from levelfield.errors import UnknownName
from levelfield.executors.base import Executor

__all__ = ["EXECUTORS", "Executor", "get_executor"]

EXECUTORS = ("local",)


def get_executor(name: str, slots: int | None = None) -> Executor:
    """Return an executor by name. ``slots``: how many trials train side by side; None chooses the fastest number."""
    if name not in EXECUTORS:
        raise UnknownName.of("executor", name, EXECUTORS)
    from levelfield.executors.local import LocalExecutor

    return LocalExecutor(slots)
