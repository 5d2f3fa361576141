"""This machine: slots on its devices, in this process."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

from levelfield.study import Study
from levelfield.training.program import Job, program, use_every_core
from levelfield.training.slots import Segment, train
from levelfield.trial import Point
from levelfield.workloads import get_workload


class LocalExecutor:
    def __init__(self, slots: int | None = None) -> None:
        use_every_core()
        self._slots = slots

    def train(
        self, study: Study, optimizer: str, take: Callable[[], Point | None], wanted: int
    ) -> Iterator[Segment]:
        workload = get_workload(study.workload)
        devices = jax.local_device_count()
        slots = self._slots or workload.slots[jax.default_backend()] * devices
        # No more slots than trials, but every device its share.
        slots = min(slots, -(-wanted // devices) * devices)
        return train(program(job(study, optimizer), slots), take)

    def provenance(self) -> Mapping[str, Any]:
        device = jax.local_devices()[0]
        return {
            "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
            "platform": platform.platform(),
            "device": device.device_kind,
            "devices": jax.local_device_count(),
            "backend": jax.default_backend(),
            "precision": f"float32 (matmul: {jax.config.jax_default_matmul_precision or 'default'})",
        }


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
