"""Compare training speed: many levelfield trials side by side, and one PyTorch trial at a time.

    python benchmarks/throughput.py [--workloads fashion_mini,wilson] [--seconds 0.5] [--rounds 5]

Both train the same model with adam at the same batch size. The contenders take turns of --seconds each, so that other
work on the machine slows down all of them, and the table shows medians over the rounds. On a CPU, PyTorch's number is
the better of one thread and the default number of threads. "with evaluation" includes levelfield's evaluations at the
workload's default interval. Compilation is not counted for either.

With a GPU, each workload is trained in bfloat16 and in TF32. PyTorch runs its whole step, data and update included, in
one CUDA graph: compiled or not, whichever is faster. That way, it also runs in several processes at once, which share
the GPU under NVIDIA MPS; the best of the numbers given by --processes counts. levelfield trains as many slots as are
fastest on an H200, or --slots. Everything is compiled first, at the same time, into the caches of JAX and PyTorch; then
each row is measured in a process of its own. With --rows FILE, a run that was cut off continues with the rows that are
missing. Download the data sets first, or measure with --random-data.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two frameworks share the GPU memory
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")  # by default, each of several processes starts one per core

import argparse
import contextlib
import functools
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from aligned import Rows, isolated, needing, positive
from data_sets import prepare

with needing("torch", "pip install '.[torch]'"):
    import torch
from gpu import FASTEST
from torch_trials import STRETCH, GraphedTrial, TorchTrial, fastest, use_fast_products

from levelfield.rules import get_rule
from levelfield.training.devices import keep_programs, use_every_core
from levelfield.training.program import Program, program
from levelfield.training.step import Job
from levelfield.workload import Precision, Workload
from levelfield.workloads import get_workload

EMBEDDED = ("fashion_mini", "tolstoi_mini", "tolstoi_gpt", "quadratic", "wilson")
LARGE = ("fashion_mnist_cnn", "cifar10_resnet32", "war_and_peace_lstm", "war_and_peace_gpt")
MPS = "nvidia-cuda-mps-control"  # the program that lets processes share a GPU
ADAM = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
SLOTS_PER_CORE = (1, 2, 4, 8)

# ---------------------------------------------------------------------------- levelfield


class Slots:
    """Trials that fill a number of slots and never finish."""

    def __init__(self, workload: Workload, slots: int, evaluate: bool = False, precision: Precision = "tf32") -> None:
        short = workload.name in LARGE and not evaluate
        interval = max(20, STRETCH // slots) if short else workload.eval_interval
        self.slots, self._evaluate, self._interval = slots, evaluate, interval
        job = Job(
            workload, get_rule("adam"), "constant", 1_000_000 * interval, workload.batch_size, interval, tuple(ADAM)
        )
        self._program = (Program if short else program)(job._replace(precision=precision), slots)
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

    def compiled_text(self) -> str:
        """Return the training program as XLA compiled it."""
        return self._program.text


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
    """Measure a workload on the CPU and return its row of the table."""
    workload = get_workload(name)
    threads = sorted({1, torch.get_num_threads()})
    per_core = (1, 2) if name in LARGE else SLOTS_PER_CORE
    counts = sorted({1, *(count * jax.local_device_count() for count in per_core)})
    theirs = [TorchTrial(workload, count) for count in threads]
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


def compile_all(cases: list[tuple[str, Precision]], slots: int | None) -> None:
    """Compile the programs of all rows side by side, so that the rows find them in the caches.

    PyTorch's come after levelfield's, for which XLA compares kernels on the GPU and keeps the fastest.
    """
    theirs = [(compile_theirs, *case) for case in cases]
    for what, several in (("levelfield", [(compile_ours, cases, slots)]), ("PyTorch", theirs)):
        begun = time.perf_counter()
        with ProcessPoolExecutor(len(several), mp_context=get_context("spawn")) as pool:
            for future in [pool.submit(*each) for each in several]:
                if error := future.exception():  # the row will say more
                    print(f"{what}: not compiled: {type(error).__name__}: {str(error)[:200]}", flush=True)
        print(f"{what}: compiled in {time.perf_counter() - begun:.0f} s", flush=True)


def compile_ours(cases: list[tuple[str, Precision]], slots: int | None) -> None:
    keep_programs()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for future in [pool.submit(slots_on_gpu, name, precision, slots) for name, precision in cases]:
            future.result()


def compile_theirs(name: str, precision: Precision) -> None:
    use_fast_products()
    GraphedTrial(get_workload(name), precision, compiled=True)


def slots_on_gpu(name: str, precision: Precision, slots: int | None) -> Slots:
    return Slots(get_workload(name), slots or FASTEST.get(name, 256), precision=precision)


class Measured(NamedTuple):
    way: str  # of PyTorch
    pytorch: float
    slots: int
    levelfield: float


def measure_on_gpu(name: str, precision: Precision, slots: int | None, rounds: int, seconds: float) -> Measured:
    """Measure a workload on the GPU, in trial-steps per second."""
    keep_programs()
    pytorch, ours = fastest(get_workload(name), precision), slots_on_gpu(name, precision, slots)
    measured = rates([pytorch, ours], rounds, seconds)
    medians = [statistics.median(measured[contender]) for contender in (pytorch, ours)]
    return Measured(pytorch.name, medians[0], ours.slots, medians[1])


def row_on_gpu(
    name: str, precision: Precision, slots: int | None, rounds: int, seconds: float, processes: list[int]
) -> list[str]:
    """Measure a workload on the GPU and return its row of the table."""
    found = isolated(measure_on_gpu, name, precision, slots, rounds, seconds)
    shared: dict[int, float] = {}
    if processes:  # after the other process has left the GPU and its compiled code in PyTorch's cache
        try:
            shared = together(name, precision, found.way, processes, rounds * seconds)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            print(f"{name}, {precision}: nothing under MPS: {type(error).__name__}: {error}", flush=True)
    most = max(shared, key=shared.__getitem__) if shared else 0
    return [
        name,
        precision,
        f"{formatted(found.pytorch)} ({found.way})",
        f"{formatted(shared[most])} ({most})" if most else "–",
        f"{formatted(found.levelfield)} ({found.slots} slots)",
        f"{found.levelfield / found.pytorch:.1f}×",
        f"{found.levelfield / shared[most]:.1f}×" if most else "–",
    ]


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Share the GPU among processes with this environment."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([MPS, "-d"], env=environment, check=True, timeout=60)
        try:
            yield environment
        finally:
            subprocess.run([MPS], env=environment, input="quit", text=True, check=False, timeout=60)


def together(name: str, precision: Precision, way: str, counts: list[int], seconds: float) -> dict[int, float]:
    """Return the steps per second that each number of PyTorch processes reaches, all of them together."""
    program = [sys.executable, str(Path(__file__).with_name("torch_trials.py")), name, precision, way, str(seconds)]
    with mps() as environment, contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(max(counts))
        ]  # they end when their standard input does
        for process in running:
            process.stdout.readline()  # "ready"
        found = {}
        for count in counts:
            for process in running[:count]:
                process.stdin.write("\n")
                process.stdin.flush()
            found[count] = sum(float(process.stdout.readline()) for process in running[:count])
    return found


CPU_HEADINGS = [
    "workload",
    "PyTorch steps/s",
    "levelfield trial-steps/s",
    "ratio",
    "with evaluation",
    "share of evaluation",
    "slots: trial-steps/s",
]
GPU_HEADINGS = [
    "workload",
    "precision",
    "PyTorch steps/s",
    "in several processes",
    "levelfield trial-steps/s",
    "ratio",
    "to several processes",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--workloads", default=",".join(LARGE if on_gpu else EMBEDDED), help="comma-separated names")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of each timed turn")
    parser.add_argument("--rounds", type=int, default=5, help="number of turns per contender")
    parser.add_argument("--training-only", action="store_true", help="on a CPU: skip evaluation, which takes long")
    parser.add_argument("--precisions", default="bfloat16,tf32", help="on a GPU: comma-separated")
    parser.add_argument("--slots", type=positive, help="on a GPU: default: the fastest number on an H200")
    parser.add_argument("--processes", default="4,8", help="on a GPU: PyTorch's, under MPS; 0 for none")
    parser.add_argument("--random-data", action="store_true", help="in the place of missing data sets")
    parser.add_argument("--rows", type=Path, help="a file that keeps the rows, to continue a run that was cut off")
    arguments = parser.parse_args()
    names, rounds, seconds = arguments.workloads.split(","), arguments.rounds, arguments.seconds
    prepare(names, random=arguments.random_data)
    processes = [int(count) for count in arguments.processes.split(",") if int(count)] if on_gpu else []
    if processes and not shutil.which(MPS):
        print(f"{MPS} is not on this machine: PyTorch runs in one process only", flush=True)
        processes = []
    if on_gpu:
        cases = [(name, precision) for precision in arguments.precisions.split(",") for name in names]
        # PyTorch and JAX would take some of the GPU here.
        machine = subprocess.getoutput("nvidia-smi --query-gpu=name --format=csv,noheader")
    else:
        use_every_core()
        use_fast_products()
        machine = f"{jax.local_device_count()} × {jax.local_devices()[0].device_kind}, {os.cpu_count()} cores"
    print(machine := f"{machine}, jax {jax.__version__}, torch {torch.__version__}", flush=True)
    data = "random data" if arguments.random_data else "real data"
    given = f"{rounds} × {seconds} s, {processes or arguments.training_only}, {arguments.slots} slots, {data}"
    rows = Rows(GPU_HEADINGS if on_gpu else CPU_HEADINGS, arguments.rows, f"{machine}, {given}")
    if on_gpu:
        if missing := [case for case in cases if not rows.has(", ".join(case))]:
            compile_all(missing, arguments.slots)
        for name, precision in cases:
            measure = functools.partial(row_on_gpu, name, precision, arguments.slots, rounds, seconds, processes)
            rows.add(f"{name}, {precision}", measure)
    else:
        for name in names:
            rows.add(name, functools.partial(row, name, rounds, seconds, arguments.training_only))
    rows.finish()


if __name__ == "__main__":
    main()
