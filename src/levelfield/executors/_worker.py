"""A worker process: trains trials of one study with custom code, one at a time, and reports to its runner.

Messages are JSON in both directions. The first one that it gets has the study, each other one a point to train.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import multiprocessing
import os
import platform
import queue
import random
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil

from levelfield.command import CommandFailed
from levelfield.errors import UsageError
from levelfield.study import Study, workload_of
from levelfield.training_code import Trainable, TrialRun
from levelfield.trial import Status
from levelfield.user_code import failure_line

_LONGEST_DETAILS = 20_000  # characters
_PR_SET_CHILD_SUBREAPER = 36  # of Linux's prctl
# Processes that libraries keep for the next use; the worker's end ends them.
_HELPERS = ("resource_tracker", "forkserver", "torch_shm_manager", "loky")
_LIBRARIES = ("levelfield", "numpy", "torch", "jax", "tensorflow", "sklearn")  # whose versions are recorded if used


class _Runner:
    """The other end of the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._process = os.getpid()
        self._received: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="levelfield-runner", daemon=True).start()

    def _listen(self) -> None:
        """Read messages while trials train. If the runner is gone, end this process and those that it started."""
        try:
            while True:
                self._received.put(json.loads(self._connection.recv_bytes()))
        except (EOFError, OSError):
            for child in psutil.Process().children(recursive=True):  # some may be in groups of their own
                with suppress(psutil.Error):
                    child.kill()
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def receive(self) -> dict[str, Any]:
        return self._received.get()

    def send(self, **message: Any) -> None:
        if os.getpid() != self._process:
            raise UsageError("trial.report was called in a forked process; call it in the process that runs the trial")
        self._connection.send_bytes(json.dumps(message).encode())


def main() -> None:
    """Train until the runner hangs up."""
    faulthandler.register(signal.SIGUSR1)  # shows where a trial hangs that is about to be ended
    _adopt_orphans()
    descriptor = int(sys.argv.pop())
    os.set_inheritable(descriptor, False)
    runner = _Runner(Connection(descriptor))
    first = runner.receive()
    try:
        study = Study(**first["study"])
        workload = workload_of(study)
        assert isinstance(workload, Trainable)
    except BaseException as error:
        runner.send(kind="refused", reason=failure_line(error))
        return
    runner.send(kind="ready")
    while True:
        _train(study, workload, first["device"], runner.receive(), runner)


def _train(study: Study, workload: Trainable, device: str, point: Mapping[str, Any], runner: _Runner) -> None:
    """Train a trial and tell the runner how it ended."""
    process, ended = os.getpid(), False

    def send(step: int, values: dict[str, float]) -> None:
        if ended:  # a thread that the training code has left behind must not report to the next trial
            raise UsageError(f"report(step={step}): the trial has ended")
        runner.send(kind="report", step=step, values=values)

    optimizer = study.optimizer(point["optimizer"])
    trial = TrialRun(
        name=optimizer.name,
        rule=optimizer.rule.name,
        hyperparameters=point["hyperparameters"],
        seed=point["seed"],
        steps=study.steps,
        eval_interval=study.eval_interval,
        batch_size=study.batch_size,
        device=device,
        index=point["index"],
        schedule=optimizer.schedule,
        scheduled=frozenset(optimizer.scheduled.keys() & point["hyperparameters"].keys()),
        workload=replace(workload, select=study.select),
        precision=study.precision,
        send=send,
    )
    _seed(trial.seed)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    try:
        workload.train(trial)
        trial.check_end()
        ending: dict[str, Any] = {"kind": "ended", "status": Status.FEASIBLE}
    except BaseException as error:  # also SystemExit: custom code can raise anything
        details = "".join(traceback.format_exception(error))[-_LONGEST_DETAILS:]
        ending = {"kind": "failed", "reason": failure_line(error), "details": details}
        ending["output"] = isinstance(error, CommandFailed)  # its last output shows why
    if trial.diverged:  # even if the code has caught what ends it, or failed because of it
        ending = {"kind": "ended", "status": Status.INFEASIBLE}
    ended = True
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # custom code may have replaced or closed it
            stream.flush()
    if os.getpid() != process:  # the training code has forked, and this is the copy
        os._exit(1)
    if ending["kind"] == "failed":
        runner.send(**ending)  # and the runner ends this process and those that it has started
        return
    del trial
    gc.collect()  # data loaders and pools that the code has dropped end their processes
    runner.send(**ending, left=_end_children(before), provenance=_provenance(device))


def _adopt_orphans() -> None:
    """Become the parent of processes whose own parent has ended, so that they can be found and ended, too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _seed(seed: int) -> None:
    """Seed the global generators, so that a trial does not depend on those before it even if its code forgets to."""
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def _end_children(before: set[int]) -> int:
    """End the processes that a trial has left behind; return how many there were."""
    left, kept = 0, before | _held_processes()
    for child in psutil.Process().children(recursive=True):
        try:
            if child.pid in kept:
                continue
            if child.status() == psutil.STATUS_ZOMBIE:
                child.wait(0)  # it has ended by itself, and its entry in the system's table goes
                continue
            if any(helper in " ".join(child.cmdline()) for helper in _HELPERS):
                continue
            left += 1
            child.kill()
            child.wait(1)
        except psutil.Error:  # it has ended by itself
            continue
    return left


def _held_processes() -> set[int]:
    """Return the processes that the code holds for its next trials, such as a data loader's with persistent workers."""
    alone = {object()}  # with as many references as a process that only multiprocessing's own set still has
    items: list[Any] = [*multiprocessing.active_children(), *alone]
    *counts, dropped = [sys.getrefcount(item) for item in items]
    held: set[int] = set()
    for process, count in zip(items, counts, strict=False):
        if count > dropped:
            with suppress(psutil.Error):
                held |= {process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))}
    return held


def _provenance(device: str) -> dict[str, Any]:
    name = platform.machine()
    torch = sys.modules.get("torch")
    if device == "cuda":
        name = torch.cuda.get_device_name(0) if torch and torch.cuda.is_available() else "GPU"
    return {
        "versions": {"python": platform.python_version()} | _versions(),
        "platform": platform.platform(),
        "device": name,
        "devices": 1,
        "backend": device,
    }


def _versions() -> dict[str, str]:
    """Return the versions of the libraries that the training code has imported."""
    found = {}
    for name in _LIBRARIES:
        if name in sys.modules:
            try:
                found[name] = version("scikit-learn" if name == "sklearn" else name)
            except PackageNotFoundError:
                found[name] = getattr(sys.modules[name], "__version__", "unknown")
    return found
