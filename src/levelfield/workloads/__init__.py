"""Workloads by name. Each is one file; the line here registers it. Importing this loads no JAX."""

from __future__ import annotations

import importlib

from levelfield.errors import UnknownName
from levelfield.registry import Registry
from levelfield.workloads.base import Workload

__all__ = ["Workload", "get_workload", "register_workload", "workload_names"]

_BUILT_IN = (
    "fashion_mini",
    "tolstoi_mini",
    "quadratic",
    "wilson",
    "fashion_mnist_cnn",
    "cifar10_resnet32",
    "cifar10_vgg16",
    "cifar100_allcnnc",
    "imagenet_resnet50",
    "war_and_peace_lstm",
    "lm1b_transformer",
)
_registered: Registry[Workload] = Registry("workload", lambda name: name in _BUILT_IN)


def get_workload(name: str) -> Workload:
    if name in _registered:
        return _registered[name]
    if name not in _BUILT_IN:
        raise UnknownName.of("workload", name, workload_names())
    workload: Workload = importlib.import_module(f"levelfield.workloads.{name}").WORKLOAD
    return workload


def register_workload(workload: Workload) -> Workload:
    """Make a workload usable in studies by its name. One registered before under this name is replaced."""
    return _registered.add(workload.name, workload)


def workload_names() -> list[str]:
    return [*_BUILT_IN, *_registered]
