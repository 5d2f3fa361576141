"""Registries for what users add: rules, workloads, data sets and inclusions.

A name that comes with levelfield cannot be replaced. A name registered by one study's code file cannot be taken over by
another file, because studies look names up when they train. Registering a name again from the same file, or from a
notebook cell that is run twice, replaces the earlier entry.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from levelfield.errors import StudyError, UsageError

Item = TypeVar("Item")

_registries: list[Registry[Any]] = []
_running_files: list[str] = []  # the code files that are being run now, the innermost last


class Registry(Generic[Item]):
    """User-registered items of one kind by name, in the order in which they were added."""

    def __init__(self, kind: str, is_built_in: Callable[[Any], bool] = lambda name: False) -> None:
        self.kind = kind
        self._is_built_in = is_built_in
        self._items: dict[Hashable, Item] = {}
        self._owners: dict[Hashable, str] = {}  # name → the code file that registered it, "" if none did
        _registries.append(self)

    def add(self, name: Hashable, item: Item) -> Item:
        if self._is_built_in(name):
            raise UsageError(f"{self.kind} {name!r} is built into levelfield; choose another name")
        file, owner = _running_files[-1] if _running_files else "", self._owners.get(name, "")
        if file and owner and file != owner:
            raise StudyError(f"{self.kind} {name!r} is already registered by {owner}; choose another name")
        self._items.pop(name, None)
        self._items[name] = item
        self._owners[name] = file
        return item

    def file_of(self, name: Hashable) -> str:
        """Return the code file that registered an item, or "" if none did."""
        return self._owners.get(name, "")

    def __contains__(self, name: Hashable) -> bool:
        return name in self._items

    def __getitem__(self, name: Hashable) -> Item:
        return self._items[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def values(self) -> list[Item]:
        return list(self._items.values())


@contextmanager
def registering(file: str) -> Iterator[None]:
    """What is registered inside belongs to this code file."""
    _running_files.append(file)
    try:
        yield
    finally:
        _running_files.pop()


def is_running(file: str) -> bool:
    """Whether this code file is being run now."""
    return file in _running_files


@contextmanager
def preserved() -> Iterator[None]:
    """Restore every registry on exit. Tests use it to leave nothing behind."""
    before = {registry: (registry._items.copy(), registry._owners.copy()) for registry in _registries}
    try:
        yield
    finally:
        for registry in _registries:  # one whose module was first imported inside starts empty
            registry._items, registry._owners = before.get(registry, ({}, {}))
