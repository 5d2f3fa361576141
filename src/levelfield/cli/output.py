"""Standard output and error: sentences that fit the terminal, and streams that a command outlives.

Training goes on when a pipe is closed or a disk is full.
"""

import contextlib
import errno
import io
import os
import select
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, TextIO

import typer

PIPE_WIDTH = 120  # of output to a pipe, which has no width
_LEAST_WIDTH = 40  # of what follows an indent, on however narrow a terminal


def tell(text: str, label: str = "", *, err: bool = False) -> None:
    """Print a sentence, wrapped at the terminal's width. Continuation lines are indented as ``wrapped`` says."""
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size((PIPE_WIDTH, 24)).columns if on_terminal else PIPE_WIDTH
    typer.echo(wrapped(text, width, label), err=err)


def wrapped(text: str, width: int, label: str = "") -> str:
    """Wrap a text. Continuation lines begin below its first word after a label, or have twice its indent.

    >>> print(wrapped("  two words " + 8 * "and more ", 40))
      two words and more and more and more and
        more and more and more and more and more
    """
    blanks = " " * (len(label) or 2 * (len(text) - len(text.lstrip())))
    return textwrap.fill(
        text,
        max(width, len(blanks) + _LEAST_WIDTH),
        initial_indent=label,
        subsequent_indent=blanks,
        break_long_words=False,
        break_on_hyphens=False,
    )


class _Lasting(io.FileIO):
    """A file whose first error is kept rather than raised, and ends the output."""

    error: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            while not self.error:
                written = super().write(content)
                if written is not None:
                    return written
                select.select([], [self], [])  # another program has made the terminal or pipe non-blocking
        except OSError as error:
            self.error = error
        return len(content)


@contextlib.contextmanager
def lasting_streams() -> Iterator[None]:
    """Write to stdout and stderr without errors. ``unwritten_results`` says what went wrong."""
    before = sys.stdout, sys.stderr
    if None in before:  # closed; another file that is opened must not take its place
        while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(spare)
    sys.stdout, sys.stderr = _lasting(sys.stdout), _lasting(sys.stderr)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = before


def unwritten_results() -> str | None:
    """Return why results could not be written to stdout. A reader who has closed the pipe does not count."""
    if sys.stdout is not None:
        sys.stdout.flush()
    error = getattr(_raw(sys.stdout), "error", None)
    return None if error is None or error.errno == errno.EPIPE else error.strerror


def _raw(stream: TextIO) -> Any:
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def _lasting(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    if not isinstance(_raw(stream), io.FileIO):
        stream.reconfigure(errors="replace")
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="replace",  # not every terminal can show every character
        line_buffering=stream.line_buffering or stream.write_through,
    )
