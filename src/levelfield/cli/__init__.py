"""The commands, each a few lines over the library. Results go to stdout, progress and errors to stderr."""

import io
import sys
from typing import Any

import typer

from levelfield.cli import comparing, listing, searching
from levelfield.cli.common import app
from levelfield.errors import LevelfieldError

__all__ = ["app", "comparing", "listing", "main", "searching"]

# click's ClickException: what is wrong with a command line. Typer keeps its own copy of click in newer versions.
_CommandLineError: Any = typer.BadParameter.__mro__[2]


def main() -> None:
    """The entry point: the library raises, this prints one line and exits with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not know every sign we print
    try:
        sys.exit(app(standalone_mode=False))
    except _CommandLineError as error:
        said = error.format_message()
        typer.echo(said if said.startswith("Usage:") else f"levelfield: {said}", err=True)
        sys.exit(error.exit_code)
    except LevelfieldError as error:
        typer.echo(f"levelfield: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("levelfield: interrupted", err=True)
        sys.exit(130)
