"""This machine: slots on its devices, in this process."""

from __future__ import annotations

import itertools
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

from levelfield.errors import OutOfMemory, StudyError, UsageError
from levelfield.search import Search
from levelfield.study import Study
from levelfield.training.checks import check_rule, check_workload
from levelfield.training.program import Job, Program, program, use_every_core
from levelfield.training.slots import Segment, train
from levelfield.trial import Point
from levelfield.workload import Workload
from levelfield.workloads import get_workload


class LocalExecutor:
    def __init__(self, slots: int | None = None) -> None:
        if slots is not None and slots < 1:
            raise UsageError(f"--slots {slots}: give auto or a whole number of at least 1")
        use_every_core()
        self._slots = slots

    def check(self, study: Study) -> None:
        workload = get_workload(study.workload)
        spaces = [each.space for each in study.optimizers.values()]
        named = {frozenset(workload.hyperparameters.keys() & set(space.names)) for space in spaces}
        check_workload(workload, study.batch_size, named)
        for name, each in study.optimizers.items():
            if not each.rule.built_in:
                try:
                    check_rule(job(study, name))
                except StudyError as error:
                    raise StudyError(f"optimizers.{name}: {error}") from error

    def train(self, study: Study, optimizer: str, take: Callable[[], Point | None]) -> Iterator[Segment]:
        """Train the points. Where memory does not suffice, go on with fewer slots, and say so."""
        slots, out, again = self._count(study), dict[int, Point](), list[Point]()

        def next_point() -> Point | None:
            point = again.pop(0) if again else take()
            if point:
                out[point.index] = point
            return point

        while True:
            try:
                compiled = program(job(study, optimizer), slots)
                if (fitting := _fitting(compiled)) < slots:
                    yield Segment([], 0, 0, 0.0, f"{slots} slots need more memory than there is: taking {fitting}")
                    slots = fitting
                    continue
                for segment in train(compiled, next_point):
                    for trial in segment.finished:
                        del out[trial.point.index]
                    yield segment
                return
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                if slots == 1:
                    raise OutOfMemory(f"{study.workload}: one trial at batch {study.batch_size} does not fit") from None
                again[:] = [out[index] for index in sorted(out)]
                yield Segment([], 0, 0, 0.0, f"out of memory with {slots} slots: going on with {_halved(slots)}")
                slots = _halved(slots)

    def _count(self, study: Study) -> int:
        """How many slots: as asked for, or as many as train fastest, but not more than the pool has trials.

        What is left to run has no say: with the same slots, a resumed run rounds as an undisturbed one does.
        """
        devices = jax.local_device_count()
        slots = min(self._slots or _fastest(get_workload(study.workload)) * devices, study.pool)
        return slots if slots <= devices else -(-slots // devices) * devices  # as many on each device

    def provenance(self) -> Mapping[str, Any]:
        device = jax.local_devices()[0]
        matmul = getattr(jax.config, "jax_default_matmul_precision", None) or "default"
        return {
            "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
            "platform": platform.platform(),
            "device": device.device_kind,
            "devices": jax.local_device_count(),
            "backend": jax.default_backend(),
            "precision": f"float32 (matmul: {matmul})",
        }


def _fitting(compiled: Program) -> int:
    """The most slots, by halving, that there is memory for: each device's own, or the machine's, which all share."""
    stats = jax.local_devices()[0].memory_stats() or {}
    own = stats.get("bytes_limit")
    have = own or _physical_memory()

    def together(slots: int) -> int:
        return -(-slots // jax.local_device_count()) if own else slots

    fitting, each = compiled.slots, compiled.memory * compiled.devices / compiled.slots
    while together(fitting) > 1 and each * together(fitting) > have:
        fitting = _halved(fitting)
    return fitting


def _physical_memory() -> float:
    """Return this machine's memory in bytes; infinity if the platform does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, other platforms not these names
        return math.inf


def _halved(slots: int) -> int:
    """Half as many, equally many on each device."""
    devices = jax.local_device_count()
    return max(slots // 2 // devices * devices, min(slots // 2, devices))


def _fastest(workload: Workload) -> int:
    return workload.slots_per_core if jax.default_backend() == "cpu" else workload.slots_per_gpu


_PACKAGES = ("levelfield", "jax", "jaxlib", "optax", "flax", "numpy", "scipy")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def job(study: Study, optimizer: str) -> Job:
    """The training of an optimizer's trials, apart from what differs between them."""
    chosen = study.optimizer(optimizer)
    traced, static = [], []
    for one in chosen.space:
        about = chosen.rule.hyperparameters.get(one.name)
        if about and (not about.traced or isinstance(one.dimension.ends[0], bool | str)):
            static.append((one.name, one.dimension.ends[0]))
        else:
            traced.append(one.name)
    return Job(
        get_workload(study.workload),
        chosen.rule,
        chosen.schedule,
        study.steps,
        study.batch_size,
        study.eval_interval,
        tuple(traced),
        tuple(static),
    )


def measure_speed(study: Study, optimizer: str, slots: int | None = None) -> float:
    """Trial-steps a second of an optimizer here, evaluation included: trains some of its trials for a moment."""
    search = Search(study, optimizer)
    points = iter(range(study.pool))
    executor = LocalExecutor(slots)

    def take() -> Point | None:
        index = next(points, None)
        return None if index is None else search.point(index)

    timed = (segment for segment in executor.train(study, optimizer, take) if segment.seconds)
    segments = list(itertools.islice(timed, 3))
    warm = segments[1:] or segments  # the first also warms up
    return sum(each.trial_steps for each in warm) / sum(each.seconds for each in warm)
