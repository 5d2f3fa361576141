"""Checkpoints of trials in flight, so that a run that is killed continues where the last one left them.

A checkpoint is a folder with the state of a program's slots (``state``, written by orbax) and ``trials.json``: which
trials they are, their curves so far, and what the checkpoint belongs to. It is written under a temporary name and then
renamed, and it never changes. Several processes may share a folder of checkpoints. This module loads no JAX until a
checkpoint is written or read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import socket
import time
import uuid
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from levelfield.study import digest
from levelfield.trial import Curve, Point, Status, Trial

_FORMAT = 1
_STATE, _TRIALS = "state", "trials.json"
_SHARE = 0.05  # of the time may go into saving; if it is more, checkpoints become rarer
_RARER = 4  # times as rare, at most
_WORTH_SAVING = 10.0  # seconds of training, when a run is stopped
_TEMPORARY = "tmp-"
_HOST, _PROCESS = socket.gethostname(), uuid.uuid4().hex[:8]
_ABANDONED = 24 * 3600  # seconds after which a temporary folder of another host is taken for a leftover


@dataclass
class InFlight:
    """A trial in a slot, and its curve so far."""

    point: Point
    started: float  # seconds since the epoch
    seconds: float = 0.0
    steps: list[int] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)
    entered: float = field(default_factory=time.monotonic)  # when this process put it into its slot

    @property
    def step(self) -> int:
        return self.steps[-1] if self.steps else 0

    def trial(self, metrics: tuple[str, ...], status: Status) -> Trial:
        values = np.array(self.rows, np.float32).T
        curve = Curve(np.array(self.steps), dict(zip(metrics, values, strict=True)))
        return Trial(self.point, status, curve, self.started, self.seconds)

    def record(self) -> dict[str, Any]:
        rows = [[float(value) for value in row] for row in self.rows]
        return {
            "point": asdict(self.point),
            "started": self.started,
            "seconds": self.seconds,
            "steps": self.steps,
            "rows": rows,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> InFlight:
        rows = [np.array(row, np.float32) for row in record["rows"]]
        return cls(Point(**record["point"]), record["started"], record["seconds"], record["steps"], rows)


class Saved(NamedTuple):
    """A trial of a checkpoint."""

    trial: InFlight
    state: np.ndarray  # of its slot: bytes


@dataclass(frozen=True)
class CheckpointFolder:
    """Where checkpoints go, and how many seconds of training may be lost."""

    path: Path
    interval: float = 300.0

    def prune(self, identity: str, finished: Container[int]) -> None:
        """Remove an optimizer's checkpoints whose trials have all finished, and what killed processes left unfinished.

        ``identity`` is that of ``Study.identity``, ``finished`` has the indices of finished points.
        """
        for name in _names(self.path, identity):
            with suppress(Exception):  # whoever trains the optimizer says what is wrong with it
                content = _read(self.path / name)
                if all(trial.point.index in finished for trial in content.trials.values()):
                    _remove(self.path / name)
        _remove_abandoned(self.path)


class Checkpoints:
    """The checkpoints of one optimizer's trials.

    ``origin`` is everything that a checkpoint must have in common with this process to be continued, by name.
    ``notes`` is what the user should know, and is emptied by the caller. Nothing that goes wrong here is raised.
    """

    def __init__(self, folder: CheckpointFolder, identity: str, origin: Mapping[str, Any]) -> None:
        self._folder, self._interval, self._identity = folder.path.absolute(), folder.interval, identity
        self._origin = {"format": _FORMAT, "optimizer": identity, **origin}
        self._known: dict[str, _Content] = {}
        self._own = ""  # the name of the latest checkpoint of this process
        self._ended: set[int] = set()  # trials that have ended in this process
        self._saved, self._took = float("-inf"), 0.0
        self.notes: list[str] = []
        self._noted: set[str] = set()

    def find(self, points: Sequence[Point]) -> dict[int, Saved]:
        """Return the points that a checkpoint has, by index, each from the checkpoint where it got furthest."""
        found: dict[int, Saved] = {}
        loaded: dict[str, np.ndarray | None] = {}
        contents = self._scan()
        for point in points:
            candidates = [
                (name, slot, trial)
                for name, content in contents.items()
                for slot, trial in content.trials.items()
                if trial.point == point
            ]
            for name, slot, trial in sorted(candidates, key=lambda candidate: -candidate[2].step):
                if name not in loaded:
                    loaded[name] = self._load(name, contents[name])
                if (state := loaded[name]) is not None:
                    found[point.index] = Saved(InFlight.of(trial.record()), state[slot])
                    break
        return found

    def due(self, in_flight: Collection[InFlight], *, ending: bool = False) -> bool:
        """Return whether a trial has trained for so long since it was last saved that it is time to save it.

        ``ending`` means that there will be no other opportunity, so that less training is worth saving.
        """
        if not in_flight:
            return False
        since = max(self._saved, min(trial.entered for trial in in_flight))
        pause = max(self._interval, min(self._took / _SHARE, self._interval * _RARER))
        return time.monotonic() - since >= (min(pause, _WORTH_SAVING) if ending else pause)

    def save(self, in_flight: Mapping[int, InFlight], state: np.ndarray) -> None:
        """Save the trials, by slot, and the state of the slots, in place of this process's previous checkpoint."""
        begun = time.monotonic()
        temporary = self._folder / _temporary_name()
        try:
            self._write(temporary, in_flight, state)
            name = f"{self._identity}-{uuid.uuid4().hex[:12]}"
            temporary.rename(self._folder / name)
        except Exception as error:  # orbax does not only raise OSError when a disk is full
            reason = getattr(error, "strerror", None) or str(error).partition(" [")[0].rpartition(": ")[2]
            self._note("save", f"cannot save a checkpoint in {self._folder} ({reason}); training goes on without")
        else:
            self._own = name
            self._sweep()
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            self._saved = time.monotonic()
            self._took = self._saved - begun

    def settle(self, ended: Collection[int]) -> None:
        """Take note of trials that have ended, and remove the checkpoints that are not needed any longer."""
        if ended:
            self._ended.update(ended)
            self._sweep()

    def _sweep(self) -> None:
        contents = self._scan()
        own = contents[self._own].indices if self._own in contents else set()
        for name, content in contents.items():
            if content.indices <= self._ended | (set() if name == self._own else own):
                _remove(self._folder / name)
        _remove_abandoned(self._folder)

    def _scan(self) -> dict[str, _Content]:
        """Return what the optimizer's checkpoints contain, by name; nothing where that cannot be read."""
        self._known = {name: self._known.get(name) or self._read(name) for name in _names(self._folder, self._identity)}
        return self._known

    def _read(self, name: str) -> _Content:
        try:
            return _read(self._folder / name)
        except Exception as error:
            self._ignore(name, _reason(error))
            return _Content({}, {}, "")

    def _load(self, name: str, content: _Content) -> np.ndarray | None:
        """Return the state of a checkpoint's slots; None if it is foreign or damaged."""
        for key, ours in self._origin.items():
            theirs = content.origin.get(key)
            if theirs != ours:
                self._ignore(name, f"it was made with {key} {theirs}, not {ours}")
                return None
        folder = self._folder / name / _STATE
        try:
            if _digest_of_files(folder) != content.state:
                raise ValueError("its state is damaged")
            with _orbax() as orbax:
                state: np.ndarray = orbax.restore(folder)["slots"]
            return state
        except Exception as error:
            self._ignore(name, _reason(error))
            return None

    def _write(self, folder: Path, in_flight: Mapping[int, InFlight], state: np.ndarray) -> None:
        os.makedirs(folder)
        if shutil.disk_usage(folder).free < state.nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with _orbax() as orbax:
            orbax.save(folder / _STATE, {"slots": state})
        content = {
            "origin": self._origin,
            "trials": {str(slot): trial.record() for slot, trial in in_flight.items()},
            "state": _digest_of_files(folder / _STATE),
        }
        (folder / _TRIALS).write_text(json.dumps({"content": content, "digest": digest(content)}))

    def _ignore(self, name: str, reason: str) -> None:
        if (self._folder / name).exists():  # otherwise its process has replaced it
            self._note(name, f"checkpoint {name} is ignored: {reason}")

    def _note(self, subject: str, message: str) -> None:
        """Say something once."""
        if subject not in self._noted:
            self._noted.add(subject)
            self.notes.append(message)


class _Content(NamedTuple):
    origin: Mapping[str, Any]
    trials: Mapping[int, InFlight]  # by slot
    state: str  # digest of the files

    @property
    def indices(self) -> set[int]:
        return {trial.point.index for trial in self.trials.values()}


def _read(path: Path) -> _Content:
    """Read what a checkpoint contains, apart from the state; raise an exception of any kind if that is impossible."""
    stored = json.loads((path / _TRIALS).read_text())
    content = stored["content"]
    if digest(content) != stored["digest"]:
        raise ValueError(f"its {_TRIALS} is damaged")
    trials = {int(slot): InFlight.of(record) for slot, record in content["trials"].items()}
    return _Content(content["origin"], trials, content["state"])


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{Path(error.filename or '').name}: {error.strerror}"
    text = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:200]


def _names(folder: Path, identity: str) -> list[str]:
    """Return the names of an optimizer's checkpoints; none if the folder cannot be read."""
    with suppress(OSError):
        return sorted(name for name in os.listdir(folder) if name.startswith(f"{identity}-"))
    return []


def _digest_of_files(folder: Path) -> str:
    """Return a digest of the names and contents of all files."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.relative_to(folder)} {content}\n".encode())
    return total.hexdigest()


@contextmanager
def _orbax() -> Iterator[Any]:
    """Open a checkpointer that does not log: problems are reported in one line."""
    import orbax.checkpoint

    log = logging.getLogger("absl")
    before, log.disabled = log.disabled, True
    try:
        with orbax.checkpoint.Checkpointer(orbax.checkpoint.StandardCheckpointHandler()) as checkpointer:
            yield checkpointer
    finally:
        log.disabled = before


def _temporary_name() -> str:
    return f"{_TEMPORARY}{_HOST}-{os.getpid()}-{_PROCESS}-{uuid.uuid4().hex[:8]}"


def _remove(path: Path) -> None:
    """Remove a checkpoint, in a single step as others see it, and the folder if it was the last one."""
    temporary = path.with_name(_temporary_name())
    with suppress(OSError):
        path.rename(temporary)
        shutil.rmtree(temporary)
        path.parent.rmdir()


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes that were killed have left half-written."""
    for name in _names(folder, _TEMPORARY.removesuffix("-")):
        with suppress(OSError, ValueError):
            if _is_abandoned(folder / name):
                shutil.rmtree(folder / name)
                folder.rmdir()


def _is_abandoned(temporary: Path) -> bool:
    host, pid, process, _ = temporary.name.removeprefix(_TEMPORARY).rsplit("-", 3)
    if host != _HOST:
        return time.time() - temporary.stat().st_mtime > _ABANDONED
    if int(pid) == os.getpid():
        return process != _PROCESS
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return False
