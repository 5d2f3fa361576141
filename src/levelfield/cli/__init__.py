"""The commands, each a few lines over the library. Results go to stdout, progress and errors to stderr."""

import io
import sys
from typing import Any

import typer

from levelfield.cli import comparing, listing, searching, summarizing, working
from levelfield.cli.common import app
from levelfield.errors import LevelfieldError, StaleTrials

__all__ = ["app", "comparing", "listing", "main", "searching", "summarizing", "working"]

# An invalid command line. Recent versions of typer bring their own copy of click, so take it from where typer does.
_CommandLineError: Any = sys.modules[typer.BadParameter.__module__].ClickException


def main() -> None:
    """Run a command: print the library's errors as one line and exit with their code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # not every terminal can show every character
    try:
        sys.exit(app(standalone_mode=False))
    except _CommandLineError as error:
        message = error.format_message()
        typer.echo(message if message.startswith("Usage:") else f"levelfield: {message}", err=True)
        sys.exit(error.exit_code)
    except LevelfieldError as error:
        message = str(error)
        if isinstance(error, StaleTrials):
            message = (
                f"{error.facts}; add --stale retrain to train them again (the store keeps the old ones apart), or "
                f"--stale keep to count them anyway"
            )
        typer.echo(f"levelfield: {message}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("levelfield: interrupted", err=True)
        sys.exit(130)
