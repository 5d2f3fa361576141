"""The points that a study still needs, shared by all runners on its store."""

from __future__ import annotations

import functools
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from levelfield.pool import PoolCount
from levelfield.search import Search
from levelfield.store import Runner, Store
from levelfield.study import Study, workload_of
from levelfield.trial import Batch, Failure, Progress, StepTime

_FAILURES = 3  # failed trials of an optimizer after which a run stops training it, unless ten times as many finish


class Work:
    """Hands out points that nobody else is training, and stores their trials.

    It only hands out points that a pool needs even if every unfinished point turns out feasible. So nothing is trained
    in vain, and the pool does not depend on which trials finish first or on who trains them.
    """

    def __init__(
        self,
        study: Study,
        store: Store,
        runner: Runner,
        provenance: Callable[[], Mapping[str, Any]],
        tries: int | None = None,
    ) -> None:
        self._study, self._store, self._runner = study, store, runner
        # What belongs to all trials of the study, wherever they are trained; it may have to be measured.
        self._provenance = functools.cache(provenance)
        self._tries = tries  # train this many points of each optimizer, feasible or not, instead of filling its pool
        self._identities = {name: study.identity(name) for name in study.optimizers}
        self._searches = {name: Search(study, name) for name in study.optimizers}
        self._metrics = workload_of(study).metrics
        self._offered = dict.fromkeys(study.optimizers, 0)  # how many points are open to all runners
        self._finished: Counter[str] = Counter()
        self._step_times: dict[tuple[str, int], list[StepTime]] = {}
        self._has_neighbors = False  # whether other runs have been training on this machine
        self.failures: dict[str, list[Failure]] = {name: [] for name in study.optimizers}
        self.error: BaseException | None = None  # that made trials fail, if it is at hand

    def take(self, count: int, optimizer: str | None = None) -> Batch | None:
        """Hand out points of an optimizer, by default of the one with the fewest running trials."""
        for name in [optimizer] if optimizer else self._by_need():
            if not self.gave_up(name) and (indices := self._claim(name, count)):
                return Batch(name, [self._searches[name].point(index) for index in indices])
        return None

    def _by_need(self) -> list[str]:
        """Return the optimizers that have free points."""
        for name, offered in self._offered.items():
            if not offered:
                self._offer(name)
        points = self._store.open_points(list(self._identities.values()))
        names = [name for name, identity in self._identities.items() if identity in points and points[identity].free]
        return sorted(names, key=lambda name: points[self._identities[name]].claimed)

    def _claim(self, name: str, count: int) -> list[int]:
        identity, offered = self._identities[name], self._offered[name]
        failed = self._failed(name)
        indices = self._runner.claim(identity, offered, count, failed)
        if len(indices) < count and self._store.offered_points(identity) > offered and self._offer(name):
            indices += self._runner.claim(identity, self._offered[name], count - len(indices), failed)
        return indices

    def _offer(self, name: str) -> bool:
        """Offer the points that the pool needs by now to all runners; return whether there are more than before."""
        end = self._tries if self._tries is not None else self._count(name).wanted
        if end <= self._offered[name]:
            return False
        self._store.check_metrics(self._identities[name], self._metrics)
        self._store.enqueue(self._identities[name], end)
        self._offered[name] = end
        return True

    def record(self, progress: Progress) -> None:
        """Store finished and failed trials, and return the points of failed ones: this run does not try them again."""
        name, identity = progress.optimizer, self._identities[progress.optimizer]
        if progress.step_time:
            self._step_times.setdefault((name, progress.step_time.slots), []).append(progress.step_time)
        if progress.finished:
            provenance = {**progress.provenance, **self._provenance()}
            self._store.add(identity, self._study.definition(name), self._metrics, progress.finished, provenance)
            self._runner.forget(identity, [trial.point.index for trial in progress.finished])
            self._finished[name] += len(progress.finished)
            if self._step_times and not self._has_neighbors:  # only they suffer from neighbors
                self._has_neighbors = self._sees_neighbors()
            if not all(trial.feasible for trial in progress.finished):
                self._offer(name)  # the pool needs more points
        if progress.failed:
            self.failures[name] += progress.failed
            self._store.add_failures(identity, progress.failed)
            self._runner.release(identity, [failure.point.index for failure in progress.failed])
        self.error = progress.error or self.error

    def _sees_neighbors(self) -> bool:
        """Return whether another process on this machine trains points of the study."""
        workers = self._store.workers(list(self._identities.values()))
        return any(each.host == socket.gethostname() and each.pid != os.getpid() for each in workers)

    def store_step_times(self) -> None:
        """Store how long the steps of each optimizer took in this run, unless another run shared this machine."""
        if self._has_neighbors:
            return
        for (name, _), measured in self._step_times.items():
            self._store.add_step_time(self._identities[name], StepTime.of(measured))

    def gave_up(self, name: str) -> bool:
        """Return whether too many of an optimizer's trials have failed in this run to go on with it."""
        return len(self.failures[name]) >= max(_FAILURES, self._finished[name] / 10)

    def counts(self) -> dict[str, PoolCount]:
        """Return how full each optimizer's pool is."""
        return {name: self._count(name) for name in self._identities}

    def _count(self, name: str) -> PoolCount:
        return self._store.pool_count(self._identities[name], self._study.pool, self._study.points(name))

    def leave(self) -> None:
        """Return all points to the other runners, because this one is not going to finish them."""
        self._runner.leave()

    def free_abandoned(self) -> None:
        """Free the points of runners that have died."""
        self._runner.free_abandoned()

    def trained_by_others(self) -> int:
        """Return how many points of the study others are training; 0 if there are free ones for this run."""
        points = self._store.open_points(list(set(self._identities.values()))).values()
        if any(each.free for each in points):
            return 0
        return sum(each.claimed for each in points)

    def left(self) -> int:
        """Return how many points the study still needs that this run can train, or others are training."""
        self.free_abandoned()
        return sum(self._left(name) for name in self._identities if not self.gave_up(name))

    def _left(self, name: str) -> int:
        self._offer(name)  # the runner that should have done it may have been killed
        while not (left := self._unfinished(name)) and self._offer(name):
            pass  # others have finished the last points in between, and the pool needs more
        return left

    def _unfinished(self, name: str) -> int:
        return self._store.open_below(self._identities[name], self._offered[name], besides=self._failed(name))

    def _failed(self, name: str) -> list[int]:
        return [failure.point.index for failure in self.failures[name]]
