"""Trains through Ray, on a cluster or on this machine: one worker for each GPU or, without GPUs, for each node.

The driver hands out points and reports trials. The workers are Ray actors that run the local executor; JAX is imported
there and never in the driver.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from levelfield.environment import available_cores
from levelfield.errors import LevelfieldError, UsageError
from levelfield.executors._ray_worker import REPORT, Worker
from levelfield.executors.base import Take, check_slots
from levelfield.formatting import pluralize
from levelfield.study import Study
from levelfield.training.checkpoints import CheckpointFolder
from levelfield.trial import Batch, Failure, Point, Progress
from levelfield.user_code import code_files, failure_line

try:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError:  # an optional dependency
    ray = None  # type: ignore[assignment]

_LOOK = 2.0  # seconds between checks of the cluster's nodes
_JOIN = 30.0  # seconds in which the first node must have joined the cluster
_START = 300.0  # seconds in which the first worker must have started
_CONNECT = 5.0  # seconds in which a cluster must answer
_DEATHS = 3  # of workers, after which their trial or their node is given up
_OBJECTS = 10**8  # bytes for the objects of a cluster on this machine; only small ones are sent


_connected: weakref.WeakSet[RayExecutor] = weakref.WeakSet()  # those that need the connection that was made here


class RayExecutor:
    """Trains many trials side by side on each worker of a Ray cluster.

    ``slots``: how many on each worker. ``address``: the cluster's, as ``ray.init`` takes it; by default the one that
    this process is connected to, or else a new one on this machine.
    """

    def __init__(
        self,
        slots: int | None = None,
        checkpoints: CheckpointFolder | None = None,
        address: str | None = None,
    ) -> None:
        check_slots(slots)
        if ray is None:
            raise UsageError("the Ray executor needs Ray; install it with: pip install 'levelfield[ray]'")
        if list(_connected) or not ray.is_initialized():
            _connect(address)
            _connected.add(self)
            weakref.finalize(self, _disconnect)
        if checkpoints:  # useful if all nodes see the folder
            checkpoints = replace(checkpoints, path=checkpoints.path.absolute())
        self._crew = _Crew(slots, checkpoints)

    def check(self, study: Study) -> None:
        self._opened(study)

    def gradient_scale(self, study: Study) -> float | None:
        for _ in range(_DEATHS):
            member = self._opened(study)
            try:
                return ray.get(member.actor.gradient_scale.remote())
            except ray.exceptions.RayTaskError as error:
                raise _cause(error) from None
            except ray.exceptions.RayError:
                self._crew.dismiss(member)
        raise UsageError(f"{_DEATHS} workers died while they measured the gradients of {study.workload}")

    def _opened(self, study: Study) -> _Member:
        """Return a worker that has checked the study and can train it."""
        crew, deadline = self._crew, time.monotonic() + _START
        crew.open(study)
        while not (opened := [member for member in crew.members if not member.opening]):
            crew.hire()
            for _ in crew.answers():  # nobody trains: there are only workers that start
                pass
            if time.monotonic() > deadline:
                raise UsageError(
                    f"no worker has started within {_START / 60:g} minutes: the cluster's {crew.resource}s seem to be "
                    f"in use; 'ray status' lists them"
                )
        return opened[0]

    def train(self, study: Study, take: Take) -> Generator[Progress]:
        """Train on all workers. Each stays with an optimizer while there is work; lost points are handed out again."""
        training, first = _Training(self._crew, take), next(iter(study.optimizers))
        self._crew.open(study)
        try:
            while not training.send():
                for note in self._crew.hire():
                    yield replace(training.unchanged(first), note=note)
                answered = False
                for member, answer in self._crew.answers():
                    answered = True
                    yield training.receive(member, answer)
                    training.send()
                if not answered:  # the caller may want to stop
                    yield training.unchanged(first)
        except BaseException:  # also when the caller closes the generator
            self._crew.disband()
            raise


class _Training:
    """Which points are where, during one call of ``train``."""

    def __init__(self, crew: _Crew, take: Take) -> None:
        self._crew, self._take = crew, take
        self._returned: dict[tuple[str, int], Point] = {}  # the points of lost workers, by optimizer and index
        self._losses: defaultdict[tuple[str, int], list[str]] = defaultdict(list)  # the nodes where a point was lost
        self._reported = -math.inf  # when training was last reported

    def send(self) -> bool:
        """Let every worker that waits train on; return whether nothing is left to train."""
        waiting = [member for member in self._crew.members if member.call is None]
        for member in sorted(waiting, key=lambda member: not member.held):
            batch = self._next(member)
            if batch is None and not member.held:
                return not any(member.held for member in self._crew.members)
            if batch:
                member.optimizer = batch.optimizer
                member.held |= {point.index: point for point in batch.points}
            member.call = member.actor.advance.remote(batch)
        return False

    def _next(self, member: _Member) -> Batch | None:
        """Return new points for a worker. Those that may take workers down train alone."""
        if member.held:
            free = 0 if member.alone else member.slots - len(member.held)
            return self._batch(free, member.optimizer) if free > 0 else None
        suspect = next((key for key in self._returned if self._is_suspect(key)), None)
        member.alone = suspect is not None
        if suspect:
            return Batch(suspect[0], [self._returned.pop(suspect)])
        again = self._batch(member.slots, member.optimizer) if member.optimizer else None
        return again or self._batch(member.slots)

    def _batch(self, count: int, optimizer: str | None = None) -> Batch | None:
        """Return points of lost workers or, if there are none, of the caller."""
        returned = [key for key in self._returned if optimizer in (None, key[0]) and not self._is_suspect(key)]
        if not returned:
            return self._take(count, optimizer)
        name = returned[0][0]
        chosen = [key for key in returned if key[0] == name][:count]
        return Batch(name, [self._returned.pop(key) for key in chosen])

    def _is_suspect(self, key: tuple[str, int]) -> bool:
        return self._deaths(key) == _DEATHS - 1

    def _deaths(self, key: tuple[str, int]) -> int:
        """Return how many workers died with a point. Those whose node was lost do not count."""
        return sum(node in self._crew.nodes for node in self._losses[key])

    def receive(self, member: _Member, answer: Any) -> Progress:
        """Return what a worker reports; if it is lost, its points are handed out again."""
        if isinstance(answer, ray.exceptions.RayError):
            return self._lost(member, answer)
        progress, member.slots = answer
        for index in progress.ended:
            del member.held[index]
        # Workers train at the same time, so their times must not be added up.
        now = time.monotonic()
        seconds, self._reported = min(progress.seconds, now - self._reported), now
        return replace(progress, running=self._running(progress.optimizer), seconds=seconds)

    def _lost(self, member: _Member, error: ray.exceptions.RayError) -> Progress:
        """Take back the points of a lost worker, except those that have taken down too many."""
        self._crew.dismiss(member)
        self._crew.look()
        cause, failed = _cause(error), []
        for index, point in member.held.items():
            key = member.optimizer, index
            self._losses[key].append(member.node)
            if self._deaths(key) < _DEATHS:
                self._returned[key] = point
            else:
                failed.append(Failure(point, f"{_DEATHS} workers were lost with it, the last one because {cause}"))
        again = len(member.held) - len(failed)
        note = f"lost a worker on node {member.address} because {cause}"
        note += f"; {pluralize(again, 'trial')} will start again" if again else ""
        return Progress(member.optimizer, failed=failed, running=self._running(member.optimizer), note=note)

    def unchanged(self, optimizer: str) -> Progress:
        """Return a report that nothing has happened."""
        name = next((member.optimizer for member in self._crew.members if member.held), optimizer)
        return Progress(name, running=self._running(name))

    def _running(self, optimizer: str) -> int:
        held = sum(len(member.held) for member in self._crew.members if member.optimizer == optimizer)
        return held + sum(name == optimizer for name, _ in self._returned)


@dataclass(eq=False)
class _Member:
    """A worker, as the driver sees it."""

    actor: Any
    node: str
    address: str
    call: Any = None  # what the worker is doing; None if it waits
    opening: bool = True  # has not yet checked the study
    slots: int = 0
    optimizer: str = ""  # the one that it has compiled last
    held: dict[int, Point] = field(default_factory=dict)  # its trials in flight
    alone: bool = False  # its trial must have no neighbors


class _Crew:
    """The workers: one for each GPU of the cluster or, without GPUs, one for each node with all its CPUs."""

    def __init__(self, slots: int | None, checkpoints: CheckpointFolder | None) -> None:
        self.members: list[_Member] = []
        self.nodes: dict[str, Mapping[str, Any]] = {}  # those that can train, by id
        self.resource = "CPU"  # or GPU, if the cluster has any when the first worker starts
        self._slots, self._checkpoints = slots, checkpoints
        self._content: dict[str, Any] = {}  # the study that is open
        self._code: dict[str, bytes] = {}
        self._looked = -math.inf
        self._deaths: Counter[str] = Counter()  # of workers that started, by node
        self._refused: dict[str, LevelfieldError] = {}  # nodes that cannot train the study
        self._notes: list[str] = []  # for the user
        self._begun = time.monotonic()
        self._used = False  # workers were started

    def open(self, study: Study) -> None:
        """Let all workers, and those to come, load and check a study, unless it is open."""
        file = study.code or next(iter(study.code_files), None) if study.command is None else None
        content, code = study.spec() | ({"code": file} if file else {}), code_files(file) if file else {}
        if (content, code) == (self._content, self._code):
            return
        if code != self._code:  # a process cannot unload code
            self.disband()
        self._content, self._code = content, code
        self._refused.clear()
        self._deaths.clear()
        for member in self.members:
            self._open(member)

    def _open(self, member: _Member) -> None:
        member.opening, member.optimizer = True, ""
        member.call = member.actor.open.remote(self._content, self._code)

    def hire(self) -> list[str]:
        """Start workers where there is room for them; return what the user should know.

        Raises if no node of the cluster can train the study.
        """
        if time.monotonic() - self._looked < _LOOK:
            return []
        self._looked = time.monotonic()
        self.look()
        present = Counter(member.node for member in self.members)
        for name, node in self.nodes.items():
            if name not in self._refused:
                for _ in range(self._room(node) - present[name]):
                    self._start(node)
        if not self.members and self.nodes:
            raise next(iter(self._refused.values()))
        if not self.members and not self._used and time.monotonic() - self._begun > _JOIN:
            raise UsageError(
                "the Ray cluster has neither GPUs nor CPUs to train on; add nodes to it: ray start --address=…"
            )
        self._used = self._used or bool(self.members)
        notes, self._notes = self._notes, []
        return notes

    def look(self) -> None:
        """Find out which nodes the cluster has."""
        if not self._used and ray.cluster_resources().get("GPU", 0) >= 1:
            self.resource = "GPU"
        before = self.nodes
        self.nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and self._room(node)}
        if before and not self.nodes:
            self._notes.append("the cluster has lost all its nodes; waiting for new ones")

    def _room(self, node: Mapping[str, Any]) -> int:
        """Return how many workers a node has room for, if no other job is there."""
        count = int(node["Resources"].get(self.resource, 0))
        return count if self.resource == "GPU" else min(count, 1)

    def _start(self, node: Mapping[str, Any]) -> None:
        cpus = None if self.resource == "GPU" else int(node["Resources"]["CPU"])
        actor = ray.remote(Worker).options(
            num_cpus=cpus or 0,
            num_gpus=0 if cpus else 1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        member = _Member(actor.remote(self._slots, self._checkpoints, cpus), node["NodeID"], node["NodeManagerAddress"])
        self.members.append(member)
        self._open(member)

    def answers(self) -> Iterator[tuple[_Member, Any]]:
        """Wait a moment for workers that train; yield each that answers with its report, or with how it was lost."""
        calls = {member.call: member for member in self.members if member.call is not None}
        if not calls:
            time.sleep(REPORT)
            return
        ready, _ = ray.wait(list(calls), timeout=REPORT)
        if ready:
            ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
        for call in ready:
            member = calls[call]
            member.call = None
            try:
                answer = ray.get(call)
            except ray.exceptions.RayError as error:
                answer = error.with_traceback(None)  # it would keep this frame, and with it the workers, alive
            if not member.opening:
                yield member, answer
            elif isinstance(answer, Exception):
                self._refuse(member, answer)
            else:
                member.opening, member.slots = False, answer

    def _refuse(self, member: _Member, error: Exception) -> None:
        """Give up a worker that could not open the study, and its node if another one could not do so either."""
        self.dismiss(member)
        self._deaths[member.node] += 1
        if isinstance(error, ray.exceptions.RayTaskError) or self._deaths[member.node] == _DEATHS:
            self._refused[member.node] = cause = _cause(error)
            self._notes.append(f"node {member.address} is not used: {cause}")

    def dismiss(self, member: _Member) -> None:
        """End a worker, if it has not ended yet."""
        self.members.remove(member)
        self._looked = -math.inf
        ray.kill(member.actor)

    def disband(self) -> None:
        """End all workers."""
        for member in list(self.members):
            self.dismiss(member)


def _cause(error: Exception) -> LevelfieldError:
    """Return why a worker failed, in one line."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, LevelfieldError):
        return cause
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return UsageError("the node was running out of memory")
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return UsageError("it no longer answers")
    text = str(error)
    if "worker process has died" in text:
        return UsageError("its process ended (a crash, an exit in custom code, or too little memory)")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return UsageError(lines[-1] if lines else type(error).__name__)


def _connect(address: str | None) -> None:
    """Connect to a cluster, or start one on this machine, unless there is a connection."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        _check_reachable(address)
    else:
        os.environ.setdefault("RAY_worker_niceness", "0")  # otherwise other processes would go first
        options |= {"include_dashboard": False, "object_store_memory": _OBJECTS, "num_cpus": available_cores()}
    with _handlers_kept():
        try:
            ray.init(address or "local", **options)
        except Exception as error:  # Ray raises many kinds
            where = f"cannot connect to the Ray cluster at {address}" if address else "cannot start Ray on this machine"
            remedy = "start one with 'ray start --head', or leave --ray-address out to start one on this machine"
            raise UsageError(
                f"{where} ({failure_line(error).partition('. ')[0]})" + (f"; {remedy}" if address else "")
            ) from None


def _disconnect() -> None:
    """Leave the cluster, or end the one on this machine, if no other executor needs it."""
    if not list(_connected):
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise if nothing listens at host:port: Ray itself would wait for a minute and more."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT).close()
    except OSError as error:
        raise UsageError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); check the address, or leave "
            f"--ray-address out to start a cluster on this machine"
        ) from None


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces by its own."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


EXECUTOR = RayExecutor
