"""Executors by name. Each is a file here that ends in ``EXECUTOR = ...``, a class that takes slots and checkpoints."""

from __future__ import annotations

import importlib
import pkgutil

from levelfield.errors import UnknownName, UsageError
from levelfield.executors.base import Executor
from levelfield.training.checkpoints import CheckpointFolder

__all__ = ["EXECUTORS", "Executor", "get_executor"]

EXECUTORS = tuple(
    module.name for module in pkgutil.iter_modules(__path__) if module.name != "base" and module.name[0] != "_"
)


def get_executor(
    name: str,
    slots: int | None = None,
    checkpoints: CheckpointFolder | None = None,
    *,
    ray_address: str | None = None,
) -> Executor:
    """Return an executor by name.

    ``slots``: how many trials train side by side; None chooses the fastest number. ``checkpoints``: where trials in
    flight are saved; None saves none. ``ray_address``: the Ray executor's cluster; None starts one on this machine.
    """
    if name not in EXECUTORS:
        raise UnknownName.of("executor", name, EXECUTORS)
    if ray_address and name != "ray":
        raise UsageError(f"--ray-address {ray_address} needs --executor ray, not {name}")
    options = {"address": ray_address} if ray_address else {}
    executor: Executor = importlib.import_module(f"levelfield.executors.{name}").EXECUTOR(slots, checkpoints, **options)
    return executor
