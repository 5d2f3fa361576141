"""The exceptions, in one tree. The library raises them; the CLI prints one line and exits.

LevelfieldError
├── UsageError            invalid input; nothing was written (exit code 2)
│   ├── StudyError        a study, or a value in it
│   ├── SpaceError        a search space, or a hyperparameter in it
│   ├── UnknownName       a name that does not exist, with the closest names that do
│   ├── StoreError        a store that cannot be used, or is newer than this version
│   │   ├── NoStore       a store that does not exist yet
│   │   └── StoreUnavailable  a store that failed while it was used (exit code 1)
│   │       └── MissingRow    a row that others refer to was removed meanwhile
│   ├── StaleTrials       stored trials of another version of the study's custom code
│   └── DataError         data that are missing, damaged or not what they should be
├── SearchExhausted       no points are left to try and the pool is not full (exit code 1)
├── TrialFailed           trials could not be run to their end (exit code 1)
└── OutOfMemory           not even one trial fits on the device (exit code 1)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST_TEXT = 300  # characters of an exception's text in one line


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
    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class StoreUnavailable(StoreError):
    exit_code = 1  # trials may have been written before


class MissingRow(StoreUnavailable):
    """A row that others refer to has been removed in the meantime."""


class StaleTrials(UsageError):
    """``facts``: what is stale; the message also says what to do about it in Python."""

    def __init__(self, facts: str) -> None:
        super().__init__(
            f'{facts}; pass stale="retrain" to train them again (the store keeps the old ones apart), or stale="keep" '
            f"to count them anyway"
        )
        self.facts = facts


class DataError(UsageError):
    pass


class SearchExhausted(LevelfieldError):
    pass


class TrialFailed(LevelfieldError):
    pass


class OutOfMemory(LevelfieldError):
    pass


class UnknownName(UsageError):
    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str], expected: str = "") -> UnknownName:
        """Return an error that says that a name is unknown and suggests the closest one.

        If none is close, it lists all names, or says what is ``expected`` where that would be too long.

        >>> print(UnknownName.of("metric of wilson", "train_los", ["train_loss"]))
        unknown metric 'train_los' of wilson; did you mean 'train_loss'?
        """
        noun, of, owner = kind.partition(" of ")
        return cls(f"unknown {noun} {name!r}{of}{owner}{suggestion(name, sorted(known), expected)}")


def one_line(error: BaseException) -> str:
    """Return the type and the text of any exception in one line, shortened if it is long.

    >>> one_line(ValueError("two\\nlines"))
    'ValueError: two lines'
    >>> one_line(AssertionError())
    'AssertionError'
    """
    text = " ".join(str(error).split())
    text = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def closest(name: str, known: Iterable[str]) -> str:
    """Return the name that a misspelled one resembles, or "". Swapped letters are the most likely mistake.

    >>> closest("adma", ["adam", "adamax"]), closest("adam_w", ["adam", "adamw"]), closest("x", ["adam"])
    ('adam', 'adamw', '')
    """
    found = difflib.get_close_matches(name, known, n=10)
    swapped = [other for other in found if sorted(other) == sorted(name)]
    return next(iter(swapped + found), "")


def suggestion(name: str, known: Iterable[str], expected: str = "") -> str:
    """Return the end of an "unknown name" message.

    >>> suggestion("adma", ["adam", "sgd"])
    "; did you mean 'adam'?"
    >>> suggestion("xyz", ["adam", "sgd"])
    '; expected one of: adam, sgd'
    """
    known = list(known)
    if close := closest(name, known):
        return f"; did you mean {close!r}?"
    expected = expected or (f"one of: {', '.join(known)}" if known else "")
    return f"; expected {expected}" if expected else ""
