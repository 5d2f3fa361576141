"""Trains JAX workloads on this machine's devices, in this process."""

from __future__ import annotations

import itertools
import math
import os
import platform
import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

from levelfield.data import Stream
from levelfield.environment import cache_folder
from levelfield.errors import LevelfieldError, OutOfMemory, StudyError, TrialFailed, UsageError
from levelfield.executors.base import Speed, Take, check_slots, hand_out
from levelfield.kernels import pallas
from levelfield.provenance import package_versions
from levelfield.search import Search
from levelfield.study import Study, digest, workload_of
from levelfield.training.checkpoints import CheckpointFolder, Checkpoints
from levelfield.training.checks import check_rule, check_workload, with_branches
from levelfield.training.devices import device_memory, keep_programs, out_of_memory, use_every_core
from levelfield.training.gradients import gradient_scale as measure_gradient_scale
from levelfield.training.parts import parts
from levelfield.training.precision import products
from levelfield.training.program import Program, load_data, program
from levelfield.training.slots import train
from levelfield.training.speed import measured
from levelfield.training.step import Job
from levelfield.trial import Failure, Point, Progress, StepTime
from levelfield.user_code import failure_details, failure_line
from levelfield.workload import Workload


class JaxExecutor:
    """Trains many trials side by side on this machine's devices, and saves those in flight if there is a folder."""

    def __init__(self, slots: int | None = None, checkpoints: CheckpointFolder | None = None) -> None:
        check_slots(slots)
        use_every_core()
        keep_programs()
        self._slots, self._folder = slots, checkpoints
        self._scales: dict[tuple[Workload, int | None], float] = {}
        self._measured: dict[tuple[str, int], int] = {}  # (what is measured, most slots) → slots
        self._said = ""  # about kernels that cannot be used

    def check(self, study: Study) -> None:
        workload = jax_workload(study)
        pallas.wanted()  # raises if the variable has another value
        spaces = [optimizer.space for optimizer in study.optimizers.values()]
        named = {frozenset(workload.hyperparameters.keys() & set(space.names)) for space in spaces}
        try:
            check_workload(workload, study.batch_size, named, study.precision)
        except LevelfieldError:
            raise
        except Exception as error:  # custom code can raise anything
            raise StudyError(f"workload {study.workload}: {failure_line(error)}") from error
        for name, optimizer in study.optimizers.items():
            if not optimizer.rule.built_in:
                try:
                    check_rule(job(study, name), Search(study, name).point(0).hyperparameters)
                except StudyError as error:
                    raise StudyError(f"optimizers.{name}: {error}") from error

    def train(self, study: Study, take: Take) -> Generator[Progress]:
        """Train one optimizer after another. If memory runs out, continue with fewer slots and say so."""
        while batch := take(self.slots(study)):
            in_flight = {point.index: point for point in batch.points}
            try:
                yield from self._train(study, batch.optimizer, in_flight, take)
            except (Exception, SystemExit) as error:  # custom code can raise anything
                reason, details = failure_line(error), failure_details(error)
                failed = [Failure(point, reason, details) for point in in_flight.values()]
                yield Progress(batch.optimizer, failed=failed, error=error)

    def _train(self, study: Study, optimizer: str, in_flight: dict[int, Point], take: Take) -> Generator[Progress]:
        """Train an optimizer's points, those in flight first, until none is left; keep track of those in flight."""
        slots, waiting = self.slots(study), list(in_flight.values())

        def next_points(count: int) -> list[Point]:
            points, waiting[:] = waiting[:count], waiting[count:]
            if len(points) < count and (batch := take(count - len(points), optimizer)):
                in_flight.update((point.index, point) for point in batch.points)
                points += batch.points
            return points

        while True:
            try:
                compiled = program(job(study, optimizer), slots)
                if (fitting := _fitting(compiled)) < slots:
                    note = f"{slots} slots need more memory than available; using {fitting}"
                    yield Progress(optimizer, running=len(in_flight), note=note)
                    slots = fitting
                    continue
                note = pallas.note() if jax_workload(study).batched and study.precision != "float32" else ""
                if note and note != self._said:
                    self._said = note
                    yield Progress(optimizer, running=len(in_flight), note=note)
                checkpoints = self._checkpoints(study, optimizer, compiled)
                provenance = self._provenance(study)
                for progress in train(compiled, optimizer, next_points, checkpoints):
                    for index in progress.ended:
                        del in_flight[index]
                    yield replace(progress, provenance=provenance, step_time=self._on_device(progress))
                return
            except jax.errors.JaxRuntimeError as error:
                if not out_of_memory(error):
                    raise
                if slots == 1:
                    raise OutOfMemory(
                        f"{study.workload}: a single trial with batch_size = {study.batch_size} does not fit into "
                        f"memory; lower batch_size"
                    ) from None
                waiting[:] = [in_flight[index] for index in sorted(in_flight)]
                note = f"out of memory with {slots} slots; continuing with {_halved(slots)}"
                yield Progress(optimizer, running=len(in_flight), note=note)
                slots = _halved(slots)

    def _on_device(self, progress: Progress) -> StepTime | None:
        """Return how long a step took, with the device that it was measured on."""
        device = f"{jax.local_device_count()} × {jax.local_devices()[0].device_kind}"
        return progress.step_time and replace(progress.step_time, device=device)

    def _checkpoints(self, study: Study, optimizer: str, compiled: Program) -> Checkpoints | None:
        if self._folder is None:
            return None
        provenance = self._provenance(study)
        here = {key: value for key, value in provenance.items() if key not in ("versions", "platform")}
        origin = {"code": study.code_version(optimizer)} | provenance["versions"] | here
        origin |= package_versions(study, [optimizer])
        origin |= {"slots": compiled.slots, "shapes": digest(compiled.shapes), "kernels": pallas.available()}
        return Checkpoints(self._folder, study.identity(optimizer), origin)

    def slots(self, study: Study) -> int:
        """Return how many slots to use: as requested or as train fastest, but no more than the pool has trials.

        It does not depend on how many trials are left, so that a resumed run rounds like an uninterrupted one.
        """
        devices = jax.local_device_count()
        slots = min(self._slots or self._fastest(study) * devices, study.pool)
        return slots if slots <= devices else -(-slots // devices) * devices  # the same number on each device

    def _fastest(self, study: Study) -> int:
        """Return how many slots train fastest on each device: a number per workload on a CPU, measured on a GPU."""
        workload = jax_workload(study)
        if jax.default_backend() == "cpu":
            return workload.slots_per_core
        if isinstance(load_data(workload).train, Stream):
            return 1  # reading the data of several trials takes longer than training them
        first = next(iter(study.optimizers))
        about = study.definition(first) | {"steps": 0, "eval_interval": 0, "seed": "", "space": {}}
        here = {key: value for key, value in self._provenance(study).items() if key != "platform"}
        here |= {"code": study.code_version(first), "packages": package_versions(study, [first])}
        training = job(study, first)
        shape = {"static": training.static, "traced": sorted(training.traced), "kernels": pallas.available()}
        key = digest(about | here | shape)
        most = -(-study.pool // jax.local_device_count())
        if (key, most) not in self._measured:
            folder = cache_folder()
            file = folder / "slots" / f"{study.workload}-{key}.json" if folder else None
            values = Search(study, first).point(0).hyperparameters
            self._measured[key, most] = measured(training, values, file, most)
        return self._measured[key, most]

    def _provenance(self, study: Study) -> Mapping[str, Any]:
        device = jax.local_devices()[0]
        return {
            "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
            "platform": platform.platform(),
            "device": device.device_kind,
            "devices": jax.local_device_count(),
            "backend": jax.default_backend(),
            "precision": _precision(study),
        }

    def gradient_scale(self, study: Study) -> float | None:
        key = jax_workload(study), study.batch_size
        if key not in self._scales:
            first = next(iter(study.optimizers))
            point = Search(study, first).point(0)
            self._scales[key] = measure_gradient_scale(job(study, first), point.hyperparameters)
        return self._scales[key]


def jax_workload(study: Study) -> Workload:
    """Return the study's workload, which must be one that JAX trains."""
    workload = workload_of(study)
    if not isinstance(workload, Workload):
        raise UsageError(f"workload {workload.name} is not a JAX workload")
    return workload


def _fitting(compiled: Program) -> int:
    """Return the most slots, by halving, that memory allows: each device's own, or the machine's, which all share."""
    own = device_memory()
    have = own if own < math.inf else _physical_memory()

    def together(slots: int) -> int:
        return -(-slots // jax.local_device_count()) if own < math.inf else slots

    fitting, bytes_per_slot = compiled.slots, compiled.memory * compiled.devices / compiled.slots
    while together(fitting) > 1 and bytes_per_slot * together(fitting) > have:
        fitting = _halved(fitting)
    return fitting


def _physical_memory() -> float:
    """Return this machine's memory in bytes; infinity if the platform does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, other platforms not these names
        return math.inf


def _halved(slots: int) -> int:
    """Return half as many slots, with the same number on each device."""
    devices = jax.local_device_count()
    return max(slots // 2 // devices * devices, min(slots // 2, devices))


def _precision(study: Study) -> str:
    if study.precision == "bfloat16":
        return "bfloat16 (weights: float32)"
    with products(study.precision):
        matmul = getattr(jax.config, "jax_default_matmul_precision", None) or "default"
    return f"float32 (matmul: {matmul})"


_PACKAGES = ("levelfield", "jax", "jaxlib", "optax", "flax", "numpy", "scipy")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def job(study: Study, optimizer: str) -> Job:
    """Return the training of an optimizer's trials, without what differs between them."""
    chosen = study.optimizer(optimizer)
    traced, static = [], []
    for axis in chosen.space:
        domain = chosen.rule.hyperparameters.get(axis.name)
        if domain and (not domain.traced or isinstance(axis.dimension.ends[0], bool | str)):
            static.append((axis.name, axis.dimension.ends[0]))
        else:
            traced.append(axis.name)
    found = Job(
        jax_workload(study),
        chosen.rule,
        chosen.schedule,
        study.steps,
        study.batch_size,
        study.eval_interval,
        tuple(traced),
        tuple(static),
        study.precision,
    )
    if chosen.rule.built_in:
        return found
    about = chosen.rule.hyperparameters
    of_rule = [axis for axis in chosen.space if axis.name in traced and axis.name in about and axis.extremes]
    fixed = [axis for axis in of_rule if not axis.dimension.free and about[axis.name].group != "learning rate"]
    return with_branches(found, tuple((axis.name, axis.extremes[0]) for axis in fixed))


def parts_of(study: Study, optimizer: str) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return which parameters each part of an optimizer's rule updates; nothing if it treats all alike."""
    return parts(job(study, optimizer))


def measure_speed(study: Study, optimizer: str, slots: int | None = None) -> Speed:
    """Measure how fast an optimizer trains here, by training some of its trials for a moment."""
    take = hand_out(optimizer, map(Search(study, optimizer).point, range(study.pool)))
    begun = time.perf_counter()
    timed = (progress for progress in JaxExecutor(slots).train(study, take) if progress.seconds or progress.failed)
    stretches = [next(timed)]
    if stretches[0].failed:
        raise TrialFailed(f"{optimizer}: {stretches[0].failed[0].reason}") from stretches[0].error
    compilation = time.perf_counter() - begun - stretches[0].seconds
    stretches += itertools.islice(timed, 2)
    warm = stretches[1:] or stretches  # the first also warms up
    speed = sum(stretch.trial_steps for stretch in warm) / sum(stretch.seconds for stretch in warm)
    return Speed(speed, compilation)
