"""What can go wrong, in one tree. The library raises these; the CLI prints one line and exits.

LevelfieldError
├── UsageError            what the user gave cannot be used; nothing was written (exit code 2)
│   ├── StudyError        a study, or a value in it
│   ├── SpaceError        a search space, or a hyperparameter in it
│   ├── UnknownName       a name that does not exist, with the closest ones that do
│   ├── StoreError        a store that is none, cannot be used, or is newer than this version
│   │   └── NoStore       a store that is not there yet
│   └── DataError         data that are missing, broken or not what they should be
├── SearchExhausted       no more points to try, and the pool is still not full (exit code 1)
└── OutOfMemory           not even one trial fits on the device (exit code 1)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LevelfieldError(Exception):
    exit_code = 1


class UsageError(LevelfieldError):
    exit_code = 2


class StudyError(UsageError):
    pass


class SpaceError(UsageError):
    pass


class StoreError(UsageError):
    pass


class NoStore(StoreError):
    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name


class DataError(UsageError):
    pass


class SearchExhausted(LevelfieldError):
    pass


class OutOfMemory(LevelfieldError):
    pass


class UnknownName(UsageError):
    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str]) -> UnknownName:
        """``name`` is none of ``known``: say so and suggest the nearest."""
        return cls(f"no {kind} is called {name!r}{suggestion(name, sorted(known))}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """The tail of an "unknown name" message.

    >>> suggestion("adma", ["adam", "sgd"])
    "; did you mean 'adam'?"
    >>> suggestion("xyz", ["adam", "sgd"])
    '; known: adam, sgd'
    """
    known = list(known)
    if close := difflib.get_close_matches(name, known, n=1):
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""
