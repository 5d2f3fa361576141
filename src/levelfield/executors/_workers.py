"""Trains trials of custom code in worker processes: as many as asked for, one for each GPU, or one for each core."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from levelfield import interruption
from levelfield.command import Command, describe_exit, end_tree
from levelfield.environment import available_cores, stall_seconds
from levelfield.errors import StudyError, TrialFailed, UsageError
from levelfield.executors.base import Speed, Take, hand_out
from levelfield.search import Search
from levelfield.study import Study, workload_of
from levelfield.training_code import Trainable, curve_of
from levelfield.trial import Failure, Point, Progress, Status, Trial
from levelfield.user_code import present_digest

_TICK = 0.2  # seconds between checks of processes and clocks
_REPORT = 1.0  # seconds after which progress is reported, even if no trial has ended
_FIRST = 600.0  # seconds in which a worker must have run the study's code
# A worker finds modules where its runner does: not in the current folder, nor through a PYTHONPATH of its own, which
# the commands that it starts would inherit.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from levelfield.executors._worker import main; main()"
)
_MEASURED = 10.0  # seconds for which the speed of training is measured at least
_REFUSALS = 3  # of workers in a row, after which a run ends
_TAIL = 16_000  # bytes of a worker's output that are kept
_IN_WORKER = "LEVELFIELD_WORKER"  # set in the environment of workers
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class WorkerExecutor:
    """Trains each trial in one of several worker processes, which stay alive: a worker's imports are paid for once."""

    def __init__(self, slots: int | None = None) -> None:
        if os.environ.get(_IN_WORKER):
            raise UsageError(
                "a worker process that loads the code must not start a run; put the call, such as lf.compare(…), under "
                "if __name__ == '__main__':"
            )
        self._gpus = visible_gpus()
        self._count = slots or len(self._gpus) or available_cores()
        self._workers: list[_Worker] = []
        self._opened: dict[str, Any] = {}  # the study that the workers have loaded
        self._version = ""  # digest of its code
        self._refusals = 0
        weakref.finalize(self, _end, self._workers)

    def check(self, study: Study) -> None:
        workload = _trainable(study)
        if isinstance(workload.train, Command):
            workload.train.check_program()
        elif not Path(workload.file).is_file():
            raise StudyError(
                f"workload {workload.name}: worker processes cannot load {workload.file}; define it in a Python file"
            )
        self._open(study)
        if not self._workers:
            self._start(study)
        while not any(worker.ready for worker in self._workers):
            interruption.check()
            for worker, message in self._messages():
                self._hear_first(worker, message)
            if not self._workers:
                self._start(study)

    def gradient_scale(self, study: Study) -> float | None:
        return None  # only the custom code knows the gradients

    def train(self, study: Study, take: Take) -> Generator[Progress]:
        self._open(study)
        training = _Training(study, take, max(1, len(self._gpus)))
        try:
            while self._hand_out(study, training):
                for worker, message in self._messages():
                    if not worker.ready:
                        self._hear_first(worker, message)
                    elif progress := training.hear(worker, message):
                        if message["kind"] == "failed":
                            self._end(worker)  # an error may have broken it: after some, no more can be done on a GPU
                        yield progress
                for worker in list(self._workers):
                    if reason := training.overdue(worker):
                        worker.show_stack()
                        self._end(worker)
                        yield training.fail(worker, reason)
                yield from training.pause()
        except BaseException:  # also when the caller closes the generator
            _end(self._workers)
            raise

    def _open(self, study: Study) -> None:
        """Make sure that workers load this study. A process cannot unload code, so another study needs new ones."""
        content = study.spec()
        if not isinstance(_trainable(study).train, Command):
            content |= {"code": study.code_files[0]}
        if content != self._opened:
            _end(self._workers)
            self._opened, self._version = content, present_digest(*study.code_files)

    def _hand_out(self, study: Study, training: _Training) -> bool:
        """Give each free worker a point, and start workers while there are points; return whether anything is left."""
        free = [worker for worker in self._workers if worker.ready and not worker.point]
        starting = sum(not worker.ready for worker in self._workers)
        while free or len(self._workers) < self._count:
            if not free and starting > training.waiting and self._has_work(training):
                break  # these will take the next points
            if not (chosen := training.next()):
                break
            if free:
                if study.command:  # which runs the files as they are now
                    self._check_version(study)
                training.give(free.pop(), *chosen)
            else:
                training.put_back(*chosen)
                self._start(study)
                starting += 1
        return self._has_work(training)

    def _has_work(self, training: _Training) -> bool:
        return bool(training.waiting or any(worker.point for worker in self._workers))

    def _check_version(self, study: Study) -> None:
        """Raise if the code has been edited meanwhile: the trials to come would be stored as those of the old code."""
        if present_digest(*study.code_files) != self._version:
            raise TrialFailed(
                f"{study.code_name} has changed since this run began; run it again, and choose what to do with the "
                f"trials of the old version"
            )

    def _start(self, study: Study) -> None:
        self._check_version(study)
        number = next(n for n in range(self._count + 1) if all(worker.number != n for worker in self._workers))
        gpu = self._gpus[number % len(self._gpus)] if self._gpus else None
        self._workers.append(_Worker(number, self._opened, gpu, self._count))

    def _hear_first(self, worker: _Worker, message: Mapping[str, Any]) -> None:
        """Hear whether a worker could load the study; raise if several in a row could not."""
        if message["kind"] == "ready":
            worker.ready, self._refusals = True, 0
            return
        self._end(worker)
        self._refusals += 1
        reason = message.get("reason") or f"a worker process ended with {message['exit']} while it loaded the code"
        if message["kind"] == "refused" or self._refusals >= _REFUSALS:
            raise StudyError(f"{reason}{_last_line(worker.tail.text)}" if message["kind"] == "died" else reason)

    def _messages(self) -> Iterator[tuple[_Worker, dict[str, Any]]]:
        """Wait a moment for workers; yield what each says, or how it ended."""
        workers = {worker.connection: worker for worker in self._workers}
        wait(list(workers), _TICK)
        for worker in list(workers.values()):
            while worker in self._workers and (message := worker.receive()):
                yield worker, message
                if message["kind"] == "died":
                    self._end(worker)
                    break
        for worker in self._workers.copy():
            if not worker.ready and time.monotonic() - worker.heard > _FIRST:
                reason = f"a worker process has not loaded the study's code within {_FIRST / 60:g} minutes"
                yield worker, {"kind": "refused", "reason": f"{reason}; prepare data before the run"}

    def _end(self, worker: _Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
        worker.end()


class _Training:
    """Which trials are where, during one call of ``train``."""

    def __init__(self, study: Study, take: Take, devices: int) -> None:
        self._study, self._take, self._devices = study, take, devices
        self._metrics = workload_of(study).metrics
        self._again: deque[tuple[str, Point]] = deque()  # points to be handed out before those of the caller
        self._failures: Counter[tuple[str, int]] = Counter()
        self._running: Counter[str] = Counter()
        self._unreported: Counter[str] = Counter()  # steps that were trained since the last report of an optimizer
        self._reported = time.monotonic()
        self._stall = stall_seconds()

    @property
    def waiting(self) -> int:
        return len(self._again)

    def next(self) -> tuple[str, Point] | None:
        """Return the next point to train, and its optimizer."""
        if self._again:
            return self._again.popleft()
        batch = self._take(1)
        return (batch.optimizer, batch.points[0]) if batch else None

    def put_back(self, optimizer: str, point: Point) -> None:
        self._again.append((optimizer, point))

    def give(self, worker: _Worker, optimizer: str, point: Point) -> None:
        self._running[optimizer] += 1
        worker.begin(optimizer, point)

    def hear(self, worker: _Worker, message: Mapping[str, Any]) -> Progress | None:
        """Return what a worker's message brings; None if it can wait."""
        if not worker.point:
            return None  # if it has died: another one starts when there is work for it
        if message["kind"] == "report":
            self._unreported[worker.optimizer] += message["step"] - worker.step
            worker.reports.append((message["step"], message["values"]))
            return None
        if message["kind"] == "died":
            return self.fail(worker, f"its worker process ended with {message['exit']}", quote=True)
        if message["kind"] == "failed":
            return self.fail(worker, message["reason"], message["details"], quote=message["output"])
        note = ""
        if message["left"]:
            number = "a process" if message["left"] == 1 else f"{message['left']} processes"
            note = f"{worker.label} left {number} behind, which levelfield has ended"
        status, seconds = Status(message["status"]), time.monotonic() - worker.begun
        curve = curve_of(worker.reports, self._metrics)
        share = seconds * self._devices / max(self._devices, sum(self._running.values()))
        trial = Trial(worker.point, status, curve, worker.started, share)
        optimizer = self._ended(worker)
        return replace(self._progress(optimizer), finished=[trial], provenance=message["provenance"], note=note)

    def overdue(self, worker: _Worker) -> str:
        """Return why a trial must be ended; "" if it may go on."""
        limit = self._study.trial_timeout
        if not worker.point:
            return ""
        if limit and time.monotonic() - worker.begun > limit:
            return f"it took longer than trial_timeout = {limit:g} seconds"
        if time.monotonic() - worker.heard > self._stall:
            return f"it has not reported for {self._stall / 60:g} minutes (LEVELFIELD_STALL_MINUTES)"
        return ""

    def fail(self, worker: _Worker, reason: str, details: str = "", *, quote: bool = False) -> Progress:
        """Try a failed trial again, or report it if it has failed too often. ``quote``: say what it printed last."""
        point, label, output = worker.point, worker.label, worker.tail.text
        assert point is not None
        optimizer = self._ended(worker)
        reason += _last_line(output) if quote else ""
        self._failures[optimizer, point.index] += 1
        if self._failures[optimizer, point.index] <= self._study.retries:
            self._again.append((optimizer, point))
            return replace(self._progress(optimizer), note=f"{label} failed and is tried again: {reason}")
        details = "\n".join(filter(None, (details, output)))
        return replace(self._progress(optimizer), failed=[Failure(point, reason, details)])

    def _ended(self, worker: _Worker) -> str:
        self._running[worker.optimizer] -= 1
        worker.point = None
        return worker.optimizer

    def pause(self) -> Iterator[Progress]:
        """Report how far the trials have come, if it is time: the caller may want to stop."""
        if time.monotonic() - self._reported > _REPORT:
            names = [name for name, count in self._running.items() if count] or [next(iter(self._study.optimizers))]
            for name in names:
                yield self._progress(name)

    def _progress(self, optimizer: str) -> Progress:
        now = time.monotonic()
        seconds, self._reported = now - self._reported, now
        steps = self._unreported.pop(optimizer, 0)
        return Progress(optimizer, running=self._running[optimizer], trial_steps=steps, seconds=seconds)


@dataclass(eq=False)
class _Worker:
    """A worker process, as the runner sees it."""

    number: int
    study: dict[str, Any]
    gpu: str | None
    count: int  # of workers that share the cores
    ready: bool = False  # has loaded the study
    optimizer: str = ""
    point: Point | None = None  # of the trial that it trains
    started: float = 0.0  # when that began, in seconds since the epoch
    begun: float = 0.0  # the same by the monotonic clock
    heard: float = field(default_factory=time.monotonic)  # when it last sent a message
    reports: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    process: subprocess.Popen[bytes] = field(init=False)
    connection: Connection = field(init=False)

    def __post_init__(self) -> None:
        self.connection, other = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, str(other.fileno()), json.dumps(sys.path)],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[other.fileno()],
            start_new_session=True,  # Ctrl-C is for the runner, and the processes that custom code starts belong to it
        )
        other.close()
        self.tail = _Tail(self.process.stdout)
        self._send(study=self.study, device="cpu" if self.gpu is None else "cuda")

    def _environment(self) -> dict[str, str]:
        threads = str(max(1, available_cores() // self.count))
        settings = dict.fromkeys(_THREADS, threads) | dict(os.environ) | {_IN_WORKER: "1"}
        if self.gpu is not None:
            settings["CUDA_VISIBLE_DEVICES"] = self.gpu
        return settings

    @property
    def step(self) -> int:
        return self.reports[-1][0] if self.reports else 0

    @property
    def label(self) -> str:
        return f"trial {self.point.index if self.point else '?'}"

    def begin(self, optimizer: str, point: Point) -> None:
        self.optimizer, self.point, self.reports = optimizer, point, []
        self.started, self.begun, self.heard = time.time(), time.monotonic(), time.monotonic()
        self.tail.clear()
        self._send(optimizer=optimizer, index=point.index, hyperparameters=point.hyperparameters, seed=point.seed)

    def _send(self, **message: Any) -> None:
        with suppress(OSError):  # if the process has died, ``receive`` reports it
            self.connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, or how the process ended; None if there is nothing to hear now."""
        try:
            if self.connection.poll():
                self.heard = time.monotonic()
                message: dict[str, Any] = json.loads(self.connection.recv_bytes())
                return message
        except (EOFError, OSError):
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.end()
        code = self.process.poll()
        return None if code is None else {"kind": "died", "exit": describe_exit(code)}

    def show_stack(self) -> None:
        """Let the process print where it is."""
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(_TICK)

    def end(self) -> None:
        """End the process and those that it has started."""
        end_tree(self.process, group=True)
        self.connection.close()


class _Tail:
    """The end of what a process prints. Reading goes on in a thread, so that the process never has to wait."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._kept = stream, b""
        self._thread = threading.Thread(target=self._read, name="levelfield-output", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._stream.fileno(), 1 << 16):
            self._kept = (self._kept + chunk)[-_TAIL:]
        self._stream.close()

    def clear(self) -> None:
        self._kept = b""

    @property
    def text(self) -> str:
        self._thread.join(_TICK)  # what was printed last may still be on its way
        return self._kept.decode("utf-8", "replace").strip()


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"; its last output is: {lines[-1][:300]}" if lines else ""


def _end(workers: list[_Worker]) -> None:
    """End all workers."""
    while workers:
        workers.pop().end()


def _trainable(study: Study) -> Trainable:
    workload = workload_of(study)
    if not isinstance(workload, Trainable):
        raise UsageError(f"workload {workload.name} is trained by JAX, not by custom code")
    return workload


def measure_speed(study: Study, optimizer: str, slots: int | None = None) -> Speed:
    """Measure how fast custom code trains, by training for a moment, or until the first trials have ended."""
    executor = WorkerExecutor(slots)
    executor.check(study)
    begun, steps = time.monotonic(), 0
    with closing(
        executor.train(study, hand_out(optimizer, map(Search(study, optimizer).point, range(study.pool))))
    ) as stretches:
        for progress in stretches:
            if progress.failed:
                raise TrialFailed(f"{optimizer}: {progress.failed[0].reason}")
            steps += progress.trial_steps
            if steps and time.monotonic() - begun > _MEASURED:
                break
    return Speed(steps / (time.monotonic() - begun))


def visible_gpus() -> list[str]:
    """Return the NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    try:
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return found.stdout.split() if found.returncode == 0 else []
