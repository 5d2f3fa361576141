"""Trials that are trained by a command, such as ``python train.py --lr {learning_rate}``, in any language.

The command prints its metrics as lines of JSON: ``{"step": 100, "train_loss": 0.3, "valid_error": 0.1}``. Other lines
are ordinary output.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import string
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from levelfield.errors import StudyError, UnknownName, UsageError, one_line
from levelfield.training_code import TrialRun

ALL = "{hyperparameters}"  # an argument that stands for --NAME VALUE of every hyperparameter
_FIELDS = (
    *("name", "rule", "seed", "steps", "eval_interval", "batch_size", "precision"),
    *("device", "index", "schedule"),
)
_LONGEST_LINE = 1_000_000  # bytes of a line of metrics
_LAST = 0.5  # seconds for which an ended command may be silent before its output ends, if others hold it open
_METRICS = re.compile(r'\s*\{\s*"')  # how a line of metrics starts
_MOST_CODE = 10_000_000  # bytes of a file; a larger one is data


class CommandFailed(UsageError):
    """A command that exited with a code other than 0, or printed no metrics. Its last output shows why."""


@dataclass(frozen=True)
class Command:
    """Trains a trial by running a command in a folder."""

    arguments: tuple[str, ...]
    folder: str

    def __call__(self, trial: TrialRun) -> None:
        values = {name: getattr(trial, name) for name in _FIELDS}
        arguments = list(_filled(self.arguments, values | trial.hyperparameters, trial.hyperparameters))
        environment = {"PYTHONUNBUFFERED": "1"} | os.environ  # Python would keep metrics back until it has many
        environment["LEVELFIELD_TRIAL"] = json.dumps(values | {"hyperparameters": trial.hyperparameters})
        with _started(arguments, self.folder, environment) as process:
            for line in _lines(process):
                _read_line(line, trial)
        if process.returncode:
            raise CommandFailed(f"{Path(arguments[0]).name} ended with {describe_exit(process.returncode)}")
        if not trial.curve:
            example = json.dumps({"step": trial.steps} | dict.fromkeys(trial.workload.metrics, 0.5))
            raise CommandFailed(f"the command printed no metrics; expected lines such as {example}")

    def check(self, optimizers: Mapping[str, Iterable[str]], batch_size: int | None) -> None:
        """Raise if an argument needs what one of the optimizers (name → its hyperparameters), or the study, lacks."""
        for argument in self.arguments:
            for name in _placeholders(argument):
                for optimizer, hyperparameters in optimizers.items():
                    known = {*_FIELDS, *hyperparameters, ALL.strip("{}")}
                    if name == ALL.strip("{}") and argument != ALL:
                        raise StudyError(f"command: {argument!r}: {ALL} must be an argument of its own")
                    if name not in known:
                        error = UnknownName.of(f"placeholder of {optimizer}", f"{{{name}}}", known)
                        raise StudyError(f"command: {error}; {ALL} passes each optimizer's own as --NAME VALUE")
                    if name == "batch_size" and batch_size is None and name not in hyperparameters:
                        raise StudyError("command: {batch_size} needs a value: write batch_size = … in the study")

    def check_program(self) -> None:
        """Raise if the program or its folder does not exist on this machine."""
        program = self.arguments[0]
        if not Path(self.folder).is_dir():
            raise StudyError(f"folder = {self.folder!r}: no such folder on this machine; the command runs there")
        found = os.access(Path(self.folder, program), os.X_OK) if os.sep in program else shutil.which(program)
        if not found:
            raise StudyError(f"command: no program {program!r} on this machine; expected one on the PATH, or its path")

    def files(self) -> list[str]:
        """Return the arguments that are files: the parts of the program's code that are known."""
        paths = (Path(self.folder, argument) for argument in self.arguments if len(argument) < 1000)
        return [str(path.resolve()) for path in paths if path.is_file() and path.stat().st_size <= _MOST_CODE]


def _placeholders(argument: str) -> Iterator[str]:
    try:
        for _, name, _, _ in string.Formatter().parse(argument):
            if name is not None:
                yield name
    except ValueError as error:
        raise StudyError(f"command: {argument!r}: {error}; write {{{{ and }}}} for braces") from None


def _filled(arguments: Sequence[str], values: Mapping[str, Any], hyperparameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield the arguments with values in place of their placeholders."""
    for argument in arguments:
        if argument == ALL:
            for name, value in hyperparameters.items():
                yield from (f"--{name}", str(value))
        else:
            try:
                yield argument.format_map(values)
            except (ValueError, TypeError, KeyError) as error:  # of the format after a colon
                raise UsageError(f"command: {argument!r}: {one_line(error)}") from None


@contextlib.contextmanager
def _started(
    arguments: Sequence[str], folder: str, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command; end it if reading its output fails."""
    try:
        process = subprocess.Popen(
            arguments, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
    except OSError as error:
        raise UsageError(f"{arguments[0]}: cannot start the command ({error.strerror})") from None
    try:
        yield process
        process.wait()
    finally:
        if process.poll() is None:
            end_tree(process, grace=1.0)
        if process.stdout:
            process.stdout.close()


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield the lines that a command prints. Processes that it has left behind may hold its output open."""
    assert process.stdout is not None
    rest, output = b"", process.stdout.fileno()
    while True:
        ended = process.poll() is not None
        if not wait([output], _LAST):
            if ended:
                break
        elif chunk := os.read(output, 1 << 16):
            *lines, rest = re.split(rb"[\r\n]", rest + chunk)
            if len(rest) > _LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            yield from (line.decode("utf-8", "replace") for line in lines if line)
        else:
            break
    yield rest.decode("utf-8", "replace")


def _read_line(line: str, trial: TrialRun) -> None:
    """Report the metrics of a line; print any other line."""
    if not _METRICS.match(line):
        print(line)
        return
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _unreadable(line, str(error)) from None
    if "step" not in content:
        raise _unreadable(line, "it has no step")
    trial.report(content.pop("step"), **content)


def _unreadable(line: str, reason: str) -> UsageError:
    example = '{"step": 100, "train_loss": 0.3}'
    return UsageError(f"{line.strip()[:100]!r}: expected a line of JSON such as {example} ({reason})")


def end_tree(process: subprocess.Popen[Any], *, group: bool = False, grace: float = 0.0) -> None:
    """End a process, or the group that it leads, and the processes below it, which may be in other groups.

    ``grace``: seconds to wait for those below, which may need another moment to end.
    """
    import psutil  # only runs that train need it

    below: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    for each in below:
        with contextlib.suppress(psutil.Error):
            each.kill()
    process.wait()
    psutil.wait_procs(below, grace)


def describe_exit(code: int) -> str:
    """Return an exit code in words.

    >>> describe_exit(1)
    'exit code 1'
    >>> describe_exit(-9)
    'signal 9 (SIGKILL), often for lack of memory'
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    cause = ", often for lack of memory" if -code == signal.SIGKILL else ""
    return f"signal {-code} ({name}){cause}"
