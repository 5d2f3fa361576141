"""Executors by name. Each is a file here that ends in ``EXECUTOR = ...``, a class that takes slots and checkpoints."""

from __future__ import annotations

import importlib
import pkgutil

from levelfield.errors import UnknownName
from levelfield.executors.base import Executor
from levelfield.training.checkpoints import CheckpointFolder

__all__ = ["EXECUTORS", "Executor", "get_executor"]

EXECUTORS = tuple(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")


def get_executor(name: str, slots: int | None = None, checkpoints: CheckpointFolder | None = None) -> Executor:
    """Return an executor by name.

    ``slots``: how many trials train side by side; None chooses the fastest number. ``checkpoints``: where trials in
    flight are saved; None saves none.
    """
    if name not in EXECUTORS:
        raise UnknownName.of("executor", name, EXECUTORS)
    executor: Executor = importlib.import_module(f"levelfield.executors.{name}").EXECUTOR(slots, checkpoints)
    return executor
