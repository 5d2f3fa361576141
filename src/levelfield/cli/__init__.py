"""The commands, each a few lines over the library. Results go to stdout, progress and errors to stderr."""

import gc
import re
import sys
from typing import Any

import typer

from levelfield.cli import comparing, importing, listing, searching, summarizing, working
from levelfield.cli.common import app
from levelfield.cli.output import lasting_streams, unwritten_results
from levelfield.errors import LevelfieldError, StaleTrials

__all__ = ["app", "comparing", "importing", "listing", "main", "searching", "summarizing", "working"]

# An invalid command line. Recent versions of typer bring their own copy of click, so take it from where typer does.
_CommandLineError: Any = sys.modules[typer.BadParameter.__module__].ClickException
_INTERRUPTED = 130
# What recent versions of typer say in pydantic's words → what we say.
_PLAIN = {
    "Value error, ": "",
    "Input should be a valid integer.*": "expected an integer",
    "Input should be a valid number.*": "expected a number",
    "Input should be greater than or equal to": "expected at least",
    "Input should be less than or equal to": "expected at most",
}


def main() -> None:
    """Run a command and exit with its code."""
    gc.set_threshold(100_000, 50, 50)  # a large store is 100,000 trials; by default, a tenth of the time goes into this
    with lasting_streams():
        code = _run()
        if problem := unwritten_results():
            typer.echo(f"levelfield: cannot write to stdout ({problem})", err=True)
            code = code or 1
    sys.exit(code)


def _run() -> int:
    """Run a command: print the library's errors as one line and return their code."""
    try:
        code = app(standalone_mode=False) or 0
        if code == _INTERRUPTED:  # typer turns KeyboardInterrupt into this code without a word
            raise KeyboardInterrupt
        return code
    except _CommandLineError as error:
        message = error.format_message()
        for theirs, ours in _PLAIN.items():
            message = re.sub(theirs, ours, message)
        typer.echo(message if message.startswith("Usage:") else f"levelfield: {message}", err=True)
        return int(error.exit_code)
    except LevelfieldError as error:
        message = str(error)
        if isinstance(error, StaleTrials):
            message = (
                f"{error.facts}; add --stale retrain to train them again (the store keeps the old ones apart), or "
                f"--stale keep to count them anyway"
            )
        typer.echo(f"levelfield: {message}", err=True)
        return error.exit_code
    except SystemExit as error:
        if error.code == _INTERRUPTED:
            return _INTERRUPTED
        typer.echo(f"levelfield: the study's code ended the command (SystemExit: {error.code})", err=True)
        return 1
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("levelfield: interrupted", err=True)
        return _INTERRUPTED
