"""This machine: slots on its devices, in this process."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

from levelfield.search import Search
from levelfield.study import Study
from levelfield.training.program import Job, check_batch_size, program, use_every_core
from levelfield.training.slots import Segment, train
from levelfield.trial import Point
from levelfield.workloads import Workload, get_workload


class LocalExecutor:
    def __init__(self, slots: int | None = None) -> None:
        use_every_core()
        self._slots = slots

    def check(self, study: Study) -> None:
        check_batch_size(get_workload(study.workload), study.batch_size)

    def train(self, study: Study, optimizer: str, take: Callable[[], Point | None]) -> Iterator[Segment]:
        return train(program(job(study, optimizer), self._count(study)), take)

    def _count(self, study: Study) -> int:
        """How many slots: as asked for, or as many as train fastest, but not more than the pool has trials.

        What is left to run has no say: with the same slots, a resumed run rounds as an undisturbed one does.
        """
        devices = jax.local_device_count()
        slots = self._slots or _fastest(get_workload(study.workload)) * devices
        return min(slots, -(-study.pool // devices) * devices)

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

    segments = list(itertools.islice(executor.train(study, optimizer, take), 3))
    timed = segments[1:] or segments  # the first also warms up
    return sum(each.trial_steps for each in timed) / sum(each.seconds for each in timed)
