"""The tables that the benchmarks print, row by row, how to measure a row without spoiling the others, and arguments."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import levelfield


def table(rows: list[list[str]]) -> str:
    """Return rows as aligned text, with names on the left and numbers right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *numbers in rows:
        aligned = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *aligned]))
    return "\n".join(lines)


class Rows:
    """The rows of a table, each printed as soon as it is measured. A row that fails is left out.

    Rows that ``file`` has from a run of the same code under the same conditions are not measured again, so a run that
    was cut off continues.
    """

    def __init__(self, headings: list[str], file: Path | None, conditions: str) -> None:
        self._rows, self._file, self._conditions = [headings], file, f"{conditions}, code {code_digest()}"
        self._failed: list[str] = []
        self._known: dict[str, list[str]] = {}
        for line in file.read_text("utf-8").splitlines() if file and file.exists() else ():
            with suppress(ValueError):  # the last line, if it was cut off
                of, row = json.loads(line)
                self._known[of] = row

    def has(self, label: str) -> bool:
        """Return whether the file has a row."""
        return f"{label}: {self._conditions}" in self._known

    def add(self, label: str, measure: Callable[[], list[str]]) -> None:
        of = f"{label}: {self._conditions}"
        if of not in self._known:
            try:
                self._known[of] = measure()
            except (Exception, SystemExit) as error:
                self._failed.append(label)
                print(f"{label}: failed: {type(error).__name__}: {error}", flush=True)
                return
            if self._file:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(f"\n{json.dumps([of, self._known[of]])}\n")  # after a line that was cut off
        self._rows.append(self._known[of])
        print(" | ".join(self._known[of]), flush=True)

    def finish(self) -> None:
        """Print the table; exit with an error if rows have failed."""
        print(table(self._rows))
        if self._failed:
            sys.exit(f"failed: {', '.join(self._failed)}")


def positive(text: str) -> int:
    """Parse an argument that must be at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)


@contextmanager
def needing(package: str, install: str) -> Iterator[None]:
    """Exit with what to do if a package that is imported here is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise SystemExit(f"this benchmark needs {package}: {install}") from None


def code_digest() -> str:
    """Return a digest of levelfield's code."""
    files = sorted(Path(levelfield.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def isolated(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own, which returns the GPU's memory and whose crash harms no other row."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
