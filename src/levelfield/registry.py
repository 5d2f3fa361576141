"""Registries for what users add: rules, workloads, data sets and inclusions, in code or in installed packages.

A name that comes with levelfield cannot be replaced. A name registered by one study's code file cannot be taken over by
another file, because studies look names up when they train. Registering a name again from the same file, or from a
notebook cell that is run twice, replaces the earlier entry. What is registered comes before what packages declare.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

from levelfield import packages
from levelfield.errors import LevelfieldError, StudyError, UsageError

Item = TypeVar("Item")

_registries: list[Registry[Any]] = []
_running_files: list[str] = []  # the code files that are being run now, the innermost last


class Packaged(NamedTuple, Generic[Item]):
    """How installed packages declare items of a kind."""

    group: str  # of their entry points
    expected: str  # what these refer to, in words
    accept: Callable[[str, Any], Item | None]  # (name, what the package has) → the item; None if it is something else


class Registry(Generic[Item]):
    """Items of one kind by name: first those that users registered, in that order, then those of packages.

    A package's item has the name of its entry point, or is ``module:name``. It is imported when it is asked for.
    """

    def __init__(
        self,
        kind: str,
        is_built_in: Callable[[Any], bool] = lambda name: False,
        packaged: Packaged[Item] | None = None,
    ) -> None:
        self.kind = kind
        self._is_built_in = is_built_in
        self._packaged = packaged
        self._items: dict[Hashable, Item] = {}
        self._imported: dict[str, Item] = {}  # of packages
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
        return name in self._items or bool(self._sources(name))

    def __getitem__(self, name: Any) -> Item:
        if name in self._items:
            return self._items[name]
        if name not in self._imported:
            self._imported[name] = self._import(name)
        return self._imported[name]

    def __iter__(self) -> Iterator[Any]:
        """Yield all names except ``module:name``. Imports nothing."""
        declared = packages.declared(self._packaged.group) if self._packaged else {}
        yield from self._items
        yield from sorted(name for name in declared if name not in self._items and not self._is_built_in(name))

    def values(self) -> list[Item]:
        """Return the items that users registered."""
        return list(self._items.values())

    def declared_by(self, name: Hashable) -> str:
        """Return the packages that declare a name, as text; "" if it does not come from a package. Imports nothing."""
        return " and ".join(map(str, self._sources(name))) if self._is_packaged(name) else ""

    def versions_of(self, name: Hashable) -> dict[str, str]:
        """Return the packages that an item comes from, with their versions; none if it comes from no package."""
        found: dict[str, str] = {}
        for source in self._sources(name) if self._is_packaged(name) else []:
            found |= {source.package: source.version} if source.package else packages.versions(source.target)
        return found

    def _is_packaged(self, name: Hashable) -> bool:
        return name not in self._items and not self._is_built_in(name)

    def _sources(self, name: Hashable) -> Sequence[packages.Source]:
        """Return where packages have an item of this name."""
        if self._packaged is None or not isinstance(name, str):
            return ()
        target = [packages.Source(name, "", "")] if packages.is_target(name) else []
        return packages.declared(self._packaged.group).get(name, target)

    def _import(self, name: str) -> Item:
        label, sources = f"{self.kind} {name!r}", self._sources(name)
        if self._packaged is None or not sources:
            raise KeyError(name)
        if self._is_built_in(name):
            raise StudyError(
                f"{label} is built into levelfield, and {' and '.join(map(str, sources))} declares another one; "
                f"uninstall that package, or choose another name for its entry point"
            )
        if len(sources) > 1:
            raise StudyError(
                f"{label} is declared by several packages, {' and '.join(map(str, sources))}; say which one: "
                f"{' or '.join(repr(source.target) for source in sources)}"
            )
        try:
            found = packages.load(sources[0].target)
            item = self._packaged.accept(name, found)
        except LevelfieldError as error:
            origin = f" of {sources[0]}" if sources[0].package else ""
            raise StudyError(f"{label}{origin}: {error}") from error
        if item is None:
            what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
            raise StudyError(f"{label}: {sources[0].target} is {what}; expected {self._packaged.expected}")
        return item


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
    before = {
        registry: (registry._items.copy(), registry._owners.copy(), registry._imported.copy())
        for registry in _registries
    }
    try:
        yield
    finally:
        for registry in _registries:  # one whose module was first imported inside starts empty
            registry._items, registry._owners, registry._imported = before.get(registry, ({}, {}, {}))
