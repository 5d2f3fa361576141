"""Rules, workloads and data sets of installed packages: found by entry point, imported when they are asked for."""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from levelfield.errors import StudyError, one_line, suggestion


class Source(NamedTuple):
    """An entry point: where an installed package has an item."""

    target: str  # module:name
    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


def declared(group: str) -> Mapping[str, Sequence[Source]]:
    """Return the entry points of a group by name, without importing what they refer to."""
    return _declared(group, tuple(sys.path))


@functools.lru_cache(maxsize=16)
def _declared(group: str, path: tuple[str, ...]) -> Mapping[str, Sequence[Source]]:
    """``path``: where packages are looked for; other ones are found if it changes."""
    import importlib.metadata

    found: dict[str, list[Source]] = {}
    for entry in importlib.metadata.entry_points(group=group):
        target = entry.value.partition("[")[0].replace(" ", "")
        package, version = (entry.dist.name, entry.dist.version) if entry.dist else (entry.module, "")
        found.setdefault(entry.name, []).append(Source(target, package, version))
    return found


def is_target(name: str) -> bool:
    """Return whether a name has the form ``module:name``.

    >>> is_target("my_package.rules:my_rule"), is_target("my_rule"), is_target("my package:rule")
    (True, False, False)
    """
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")])


def load(target: str) -> Any:
    """Import ``module:name``. Raises a StudyError that says what is missing or went wrong."""
    if not is_target(target):
        raise StudyError(f"its entry point is {target!r}; expected module:name")
    module, _, attribute = target.partition(":")
    try:
        item: Any = importlib.import_module(module)
        for part in attribute.split("."):
            if not hasattr(item, part):
                close = difflib.get_close_matches(part, dir(item), n=1)
                raise StudyError(f"{module} has no {attribute!r}{suggestion(part, close)}")
            item = getattr(item, part)
    except StudyError:
        raise
    except (Exception, SystemExit) as error:  # a module can raise anything
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise StudyError(
                f"no module {error.name!r} is installed; install its package, or correct the name"
            ) from None
        raise StudyError(f"{module} cannot be imported: {_place(error)}{one_line(error)}") from error
    return item


def _place(error: BaseException) -> str:
    """Return the file and line that raised an error, other than those of Python's import system."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    frames = [frame for frame in frames if frame.filename not in (__file__, importlib.__file__)]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}, " if frames else ""


@functools.cache
def versions(target: str) -> Mapping[str, str]:
    """Return the installed packages that have the module of ``module:name``, with their versions."""
    import importlib.metadata

    module = target.partition(":")[0].partition(".")[0]
    if packages := importlib.metadata.packages_distributions().get(module):
        return {package: importlib.metadata.version(package) for package in packages}
    return {module: str(getattr(sys.modules.get(module), "__version__", "unknown"))}
