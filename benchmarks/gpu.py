"""What benchmarks on GPUs share: how many slots they train, and what a GPU did."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

# The number of slots with which a workload trains fastest on an H200.
FASTEST = {"fashion_mnist_cnn": 64, "cifar10_resnet32": 64, "war_and_peace_lstm": 528, "war_and_peace_gpt": 16}


class Event(NamedTuple):
    """A kernel that a GPU computed, or a copy."""

    name: str
    operation: str  # the instruction of the compiled program
    start_ns: float
    duration_ns: float


def device_events(function: Callable[[], Any]) -> list[Event]:
    """Call a function under JAX's profiler; return what GPUs did."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            function()
        return [
            Event(event.name, str(dict(event.stats).get("hlo_op", "")), event.start_ns, event.duration_ns)
            for path in Path(folder).rglob("*.xplane.pb")
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes
            if "/device:GPU" in plane.name
            for line in plane.lines
            if line.name.startswith("Stream")
            for event in line.events
        ]
