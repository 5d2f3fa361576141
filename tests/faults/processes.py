"""Commands of levelfield in processes of their own, to be killed, stopped and starved.

``start`` begins a command like a terminal does. ``fork`` begins it in a copy of a process that has imported everything,
which takes a tenth of the time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from helpers import REPOSITORY

CACHE = REPOSITORY / ".cache/jax"
_PRELOADED = [
    "pytest",
    "psycopg",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.dialects.postgresql",
    "levelfield.cli.progress",
    "levelfield.run",
    "levelfield.executors._jax",
    "levelfield.models.wilson",
    "levelfield.__main__",
    "levelfield.cli",
]


class Running:
    """A command that runs in a folder; ``err`` is what it has printed to stderr."""

    def __init__(self, pid: int, folder: Path, name: str, wait: Callable[[float], int | None]) -> None:
        self.pid, self._folder, self._name, self._wait = pid, folder, name, wait

    @property
    def out(self) -> str:
        return (self._folder / f"{self._name}.out").read_text()

    @property
    def err(self) -> str:
        return (self._folder / f"{self._name}.err").read_text()

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    @property
    def is_running(self) -> bool:
        return self._wait(0) is None

    def code(self, timeout: float = 120) -> int:
        """Wait for its end and return its exit code."""
        code = self._wait(timeout)
        assert code is not None, f"{self._name} runs for more than {timeout} s: {self.err}"
        return code

    def wait_until(self, condition: Callable[[], object], timeout: float = 120) -> None:
        """Wait until something holds while the command runs."""
        end = time.monotonic() + timeout
        while not condition():
            assert self.is_running, f"{self._name} has ended: {self.err}"
            assert time.monotonic() < end, f"{self._name} waits for too long: {self.err}"
            time.sleep(0.01)

    def says(self, text: str) -> None:
        """Wait until it has printed a text to stderr."""
        self.wait_until(lambda: text in self.err)


class Commands:
    """Starts commands in a folder, with a compilation cache that all of them share; ends them when a test ends."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self._started = folder, list[Running]()
        self._settings = {
            "jax_compilation_cache_dir": str(cache),
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }

    def start(self, *arguments: str, command: list[str] | None = None, **environment: str) -> Running:
        name, out, err = self._outputs()
        with out, err:
            process = subprocess.Popen(
                [*(command or [sys.executable, "-m", "levelfield"]), *arguments],
                cwd=self.folder,
                env=os.environ | {name.upper(): str(value) for name, value in self._settings.items()} | environment,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

        def wait(timeout: float) -> int | None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout)
            return None

        return self._running(process.pid, name, wait)

    def fork(self, *arguments: str, before: Callable[[], None] | None = None, **environment: str) -> Running:
        """Start a command fast; ``before``: a function of a module, called in its process before anything else."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        name, out, err = self._outputs()
        with out, err:
            outputs = (str(self.folder / f"{name}.out"), str(self.folder / f"{name}.err"))
            process = context.Process(
                target=_run, args=(arguments, self.folder, outputs, self._settings, environment, before)
            )
            process.start()

        def wait(timeout: float) -> int | None:
            process.join(timeout)
            return process.exitcode

        assert process.pid
        return self._running(process.pid, name, wait)

    def run(self, *arguments: str, **options: str) -> Running:
        """Run a command to its end, which must be a good one."""
        running = self.fork(*arguments, **options)
        assert running.code() == 0, running.err
        return running

    def _outputs(self):
        name = f"command{len(self._started)}"
        return name, (self.folder / f"{name}.out").open("w"), (self.folder / f"{name}.err").open("w")

    def _running(self, pid: int, name: str, wait: Callable[[float], int | None]) -> Running:
        running = Running(pid, self.folder, name, wait)
        self._started.append(running)
        return running

    def end(self) -> None:
        for running in self._started:
            if running.is_running:
                running.send(signal.SIGKILL)
                running.code(10)


def _run(
    arguments: tuple[str, ...],
    folder: Path,
    outputs: tuple[str, str],
    settings: Mapping[str, Any],
    environment: Mapping[str, str],
    before: Callable[[], None] | None,
) -> None:
    for descriptor, path in zip((1, 2), outputs, strict=True):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ |= environment
    os.chdir(folder)
    sys.argv = ["levelfield", *arguments]
    import jax

    for name, value in settings.items():
        jax.config.update(name, value)
    if before:
        before()
    from levelfield.__main__ import main

    main()
