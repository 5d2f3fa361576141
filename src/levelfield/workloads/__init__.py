"""Workloads by name. Each built-in workload is one file here that ends in ``WORKLOAD = Workload(...)``.

Importing this package, or a workload from it, loads no JAX.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from typing import Any

from levelfield.errors import UnknownName, UsageError
from levelfield.registry import Packaged, Registry
from levelfield.workload import BaseWorkload

_BUILT_IN = tuple(module.name for module in pkgutil.iter_modules(__path__))


def _packaged(name: str, item: Any) -> BaseWorkload | None:
    return replace(item, name=name) if isinstance(item, BaseWorkload) else None


_registered: Registry[BaseWorkload] = Registry(
    "workload", lambda name: name in _BUILT_IN, Packaged("levelfield.workloads", "an lf.Workload", _packaged)
)


def get_workload(name: str) -> BaseWorkload:
    """Return the workload of this name, always the same object: compiled programs are cached by it."""
    if name in _registered:
        return _registered[name]
    if name not in _BUILT_IN:
        raise UnknownName.of("workload", name, workload_names())
    workload: BaseWorkload = importlib.import_module(f"levelfield.workloads.{name}").WORKLOAD
    return workload


def workload_file(name: str) -> str:
    """Return the code file that registered a workload, or "" if none did."""
    return _registered.file_of(name)


def workloads_of(file: str) -> list[str]:
    """Return the workloads that a code file registered."""
    return [name for name in _registered if workload_file(name) == file]


def workload_packages(name: str) -> dict[str, str]:
    """Return the installed packages that have a workload, with their versions; none if it is built in or registered."""
    return _registered.versions_of(name)


def declared_by(name: str) -> str:
    """Return the packages that declare a workload, as text; "" if it does not come from a package. Imports nothing."""
    return _registered.declared_by(name)


def register_workload(workload: BaseWorkload) -> BaseWorkload:
    """Make a workload available to studies by its name. An earlier one of the same name is replaced."""
    if not isinstance(workload, BaseWorkload):
        raise UsageError(f"register_workload({workload!r}): expected an lf.Workload")
    return _registered.add(workload.name, workload)


def workload_names() -> list[str]:
    """Return the built-in workloads in alphabetical order, then the registered ones, then those of packages."""
    return [*_BUILT_IN, *_registered]
