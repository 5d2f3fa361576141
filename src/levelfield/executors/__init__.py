"""Executors by name. Each is one file here that ends in ``EXECUTOR = ...``, a class that takes the number of slots."""

from __future__ import annotations

import importlib
import pkgutil

from levelfield.errors import UnknownName, UsageError
from levelfield.executors.base import Executor

__all__ = ["EXECUTORS", "Executor", "get_executor"]

EXECUTORS = tuple(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")


def get_executor(name: str, slots: int | None = None, *, ray_address: str | None = None) -> Executor:
    """Return an executor by name.

    ``slots``: how many trials train side by side; None chooses the fastest number. ``ray_address``: the cluster of the
    Ray executor; None starts one on this machine.
    """
    if name not in EXECUTORS:
        raise UnknownName.of("executor", name, EXECUTORS)
    if ray_address and name != "ray":
        raise UsageError(f"--ray-address {ray_address} needs --executor ray, not {name}")
    options = {"address": ray_address} if ray_address else {}
    executor: Executor = importlib.import_module(f"levelfield.executors.{name}").EXECUTOR(slots, **options)
    return executor
