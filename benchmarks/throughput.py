"""Compare training speed: many levelfield trials side by side, and one PyTorch trial at a time.

    python benchmarks/throughput.py [--workloads fashion_mini,wilson] [--seconds 0.5] [--rounds 5]

Both train the same model with adam at the same batch size, on a GPU if there is one. The contenders take turns of
--seconds each, so that other work on the machine slows down all of them, and the table shows medians over the rounds.
PyTorch's number is its best: on a CPU, the better of one thread and the default number of threads; on a GPU, the better
of eager mode and CUDA graphs (paper workloads only), with fused adam and TF32. Compilation is not counted for either.
"with evaluation" includes levelfield's evaluations at the workload's default interval. Download the data sets first.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two frameworks share the GPU memory

import argparse
import statistics
import time
from typing import Any

import jax
import numpy as np
import torch
from aligned import table
from torch_trials import DEVICE, STRETCH, TorchTrial

from levelfield.rules import get_rule
from levelfield.training.program import program, use_every_core
from levelfield.training.step import Job
from levelfield.workload import Workload
from levelfield.workloads import get_workload

EMBEDDED = ("fashion_mini", "tolstoi_mini", "quadratic", "wilson")
ADAM = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
SLOTS_PER_DEVICE = {"cpu": (1, 2, 4, 8), "gpu": (4, 16, 64, 256)}
LARGE = {"fashion_mnist_cnn": (1, 4), "cifar10_resnet32": (1, 2), "war_and_peace_lstm": (1, 256)}

# ---------------------------------------------------------------------------- levelfield


class Slots:
    """Trials that fill a number of slots and never finish."""

    precision: Any = "tf32"

    def __init__(self, workload: Workload, slots: int, evaluate: bool = False) -> None:
        short = workload.name in LARGE and not evaluate
        self.slots, self._evaluate, self._interval = slots, evaluate, STRETCH if short else workload.eval_interval
        steps = 1_000_000 * self._interval
        job = Job(workload, get_rule("adam"), "constant", steps, workload.batch_size, self._interval, tuple(ADAM))
        self._program = program(job._replace(precision=self.precision), slots)
        numbers = {name: np.full(slots, value) for name, value in ADAM.items()}
        self._held = self._program.fill(self._program.empty(), np.ones(slots, bool), np.arange(slots), numbers)

    def stretch(self) -> int:
        """Train all slots to their next evaluation and return the number of trial-steps."""
        if self._evaluate:
            self._held, _ = self._program.advance(self._held)
        else:
            self._held = self._program.train(self._held)
        jax.block_until_ready(self._held)
        return self.slots * self._interval


# ---------------------------------------------------------------------------- measurement


def rate(contender: Any, seconds: float) -> float:
    """Return trial-steps per second."""
    steps, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        steps += contender.stretch()
    return steps / elapsed


def rates(contenders: list[Any], rounds: int, seconds: float) -> dict[Any, list[float]]:
    """Return each contender's rate in each round."""
    for contender in contenders:
        contender.stretch()  # warm up
    turns = [[rate(contender, seconds) for contender in contenders] for _ in range(rounds)]
    return dict(zip(contenders, map(list, zip(*turns, strict=True)), strict=True))


def formatted(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.2g}"


def row(name: str, rounds: int, seconds: float, training_only: bool) -> list[str]:
    """Measure a workload and return its row of the table."""
    workload = get_workload(name)
    threads = sorted({1, torch.get_num_threads()}) if DEVICE.type == "cpu" else [1]
    on_gpu = DEVICE.type == "cuda"
    backend = "cpu" if jax.default_backend() == "cpu" else "gpu"
    per_device = LARGE.get(name, SLOTS_PER_DEVICE[backend]) if on_gpu or name not in LARGE else (1, 2)
    counts = sorted({1, *(count * jax.local_device_count() for count in per_device)})
    theirs = [TorchTrial(workload, ADAM, count) for count in threads]
    if on_gpu and name in LARGE:
        theirs.append(TorchTrial(workload, ADAM, compiled=True))
    bare = [Slots(workload, count) for count in counts]
    evaluating = [] if training_only else [Slots(workload, count, evaluate=True) for count in counts]
    measured = rates([*theirs, *bare, *evaluating], rounds, seconds)
    torch.set_num_threads(threads[-1])

    def median(contender: Any) -> float:
        return statistics.median(measured[contender])

    pytorch, slots = max(theirs, key=median), max(bare, key=median)
    with_evaluation = ["–", "–"]
    if evaluating:
        same = evaluating[bare.index(slots)]
        share = statistics.median(1 - slow / fast for fast, slow in zip(measured[slots], measured[same], strict=True))
        with_evaluation = [f"{formatted(median(same))}", f"{max(share, 0):.0%} (every {workload.eval_interval})"]
    return [
        name,
        f"{formatted(median(pytorch))} ({pytorch.name})",
        f"{formatted(median(slots))} ({slots.slots} slots)",
        f"{median(slots) / median(pytorch):.1f}×",
        *with_evaluation,
        "; ".join(f"{contender.slots}: {formatted(median(contender))}" for contender in bare),
    ]


HEADINGS = [
    "workload",
    "PyTorch steps/s",
    "levelfield trial-steps/s",
    "ratio",
    "with evaluation",
    "share of evaluation",
    "slots: trial-steps/s",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(EMBEDDED), help="comma-separated names")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of each timed turn")
    parser.add_argument("--rounds", type=int, default=5, help="number of turns per contender")
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16"), default="tf32", help="levelfield's")
    parser.add_argument("--training-only", action="store_true", help="skip evaluation, which takes long to measure")
    arguments = parser.parse_args()
    Slots.precision = arguments.precision
    use_every_core()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    print(
        f"{jax.local_device_count()} × {jax.local_devices()[0].device_kind}, {os.cpu_count()} cores, "
        f"jax {jax.__version__}, torch {torch.__version__} on {DEVICE}"
    )
    rows = [HEADINGS]
    for name in arguments.workloads.split(","):
        rows.append(row(name, arguments.rounds, arguments.seconds, arguments.training_only))
        print(", ".join(rows[-1]), flush=True)  # show each result right away, in case the rest takes too long
    print(table(rows))


if __name__ == "__main__":
    main()
