"""Training speed: levelfield's slots beside PyTorch, which trains one trial at a time.

    python benchmarks/throughput.py [--workloads fashion_mini,wilson] [--seconds 0.5] [--rounds 5]

Both train the same model with adam at the same batch size, on the GPU where there is one. All contenders take
turns, a stretch of --seconds each, and medians over the rounds are shown: a machine that is busy for a while
slows all of them. PyTorch's number is the better of its default number of threads and one, with its fused
adam, the fastest it has. Compilation is left out on both sides; "with evaluation" includes levelfield's at the
workload's default interval.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two frameworks share the GPU's memory

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import torch
from aligned import table
from torch import nn

from levelfield.rules import get_rule
from levelfield.training.program import Job, program, use_every_core
from levelfield.workloads import Workload, get_workload

EMBEDDED = ("fashion_mini", "tolstoi_mini", "quadratic", "wilson")
ADAM = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
SLOTS_A_DEVICE = {"cpu": (1, 2, 4, 8), "gpu": (4, 16, 64, 256)}

# ---------------------------------------------------------------------------- PyTorch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class TolstoiNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(76, 32), nn.LSTM(32, 32, batch_first=True), nn.Linear(32, 76)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.embed(characters))[0])  # type: ignore[no-any-return]


def fashion_net() -> nn.Module:
    convolutions = [nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(512, 10))


def torch_batches(arrays: tuple[np.ndarray, ...], batch_size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Batches in an order new to each epoch; the data lie on the device."""
    tensors = [torch.from_numpy(array).to(DEVICE) for array in arrays]
    while True:
        order = torch.randperm(len(tensors[0]), device=DEVICE)
        for rows in order[: len(order) // batch_size * batch_size].split(batch_size):
            yield tuple(tensor[rows] for tensor in tensors)


def torch_loss(workload: Workload) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """A workload's model, and its loss on the next batch."""
    train = workload.load().train
    if workload.name == "fashion_mini":
        net = fashion_net().to(DEVICE)
        images, labels = train
        batches = torch_batches((images[:, None], labels.astype(np.int64)), workload.batch_size)

        def loss() -> torch.Tensor:
            images, labels = next(batches)
            return nn.functional.cross_entropy(net(images.float() / 255), labels)

    elif workload.name == "tolstoi_mini":
        net = TolstoiNet().to(DEVICE)
        batches = torch_batches((train.astype(np.int64),), workload.batch_size)

        def loss() -> torch.Tensor:
            (windows,) = next(batches)
            return nn.functional.cross_entropy(net(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    elif workload.name == "quadratic":
        net = nn.ParameterList([torch.randn(100, device=DEVICE)])
        curvatures = 1 / torch.arange(1, 101, device=DEVICE)
        scale = 1 / torch.sqrt(curvatures * workload.batch_size)

        def loss() -> torch.Tensor:
            return 0.5 * torch.sum(curvatures * (net[0] - torch.randn(100, device=DEVICE) * scale) ** 2)

    elif workload.name == "wilson":
        net = nn.ParameterList([torch.zeros(train[0].shape[1], device=DEVICE)])
        batches = torch_batches(train, workload.batch_size)

        def loss() -> torch.Tensor:
            features, labels = next(batches)
            return 0.5 * torch.mean((features @ net[0] - labels) ** 2)

    else:
        raise SystemExit(f"{workload.name}: not written in PyTorch here")
    return net, loss


class TorchTrial:
    """One trial in PyTorch."""

    def __init__(self, workload: Workload, threads: int) -> None:
        self.name = f"{threads} thread{'s' if threads > 1 else ''}"
        self._threads = threads
        net, self._loss = torch_loss(workload)
        self._adam = torch.optim.Adam(net.parameters(), ADAM["learning_rate"], eps=ADAM["epsilon"], fused=True)

    def stretch(self) -> int:
        """Some steps; how many."""
        torch.set_num_threads(self._threads)
        for _ in range(10):
            self._adam.zero_grad()
            self._loss().backward()
            self._adam.step()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        return 10


# ---------------------------------------------------------------------------- levelfield


class Slots:
    """Trials in so many slots, which never finish."""

    def __init__(self, workload: Workload, slots: int, evaluate: bool = False) -> None:
        self.slots, self._evaluate, self._interval = slots, evaluate, workload.eval_interval
        steps = 1_000_000 * workload.eval_interval
        job = Job(
            workload, get_rule("adam"), "constant", steps, workload.batch_size, workload.eval_interval, tuple(ADAM)
        )
        self._program = program(job, slots)
        numbers = {name: np.full(slots, value) for name, value in ADAM.items()}
        self._held = self._program.fill(self._program.empty(), np.ones(slots, bool), np.arange(slots), numbers)

    def stretch(self) -> int:
        """All slots to their next evaluation; how many steps over all of them."""
        if self._evaluate:
            self._held, _ = self._program.advance(self._held)
        else:
            self._held = self._program.train(self._held)
        jax.block_until_ready(self._held)
        return self.slots * self._interval


# ---------------------------------------------------------------------------- taking turns


def rate(contender: Any, seconds: float) -> float:
    """Trial-steps a second."""
    steps, begun = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds:
        steps += contender.stretch()
    return steps / elapsed


def rates(contenders: list[Any], rounds: int, seconds: float) -> dict[Any, list[float]]:
    """Each contender's rate in each round."""
    for contender in contenders:
        contender.stretch()  # warms up
    turns = [[rate(contender, seconds) for contender in contenders] for _ in range(rounds)]
    return dict(zip(contenders, map(list, zip(*turns, strict=True)), strict=True))


def row(name: str, rounds: int, seconds: float) -> list[str]:
    workload = get_workload(name)
    threads = sorted({1, torch.get_num_threads()}) if DEVICE.type == "cpu" else [1]
    backend = "cpu" if jax.default_backend() == "cpu" else "gpu"
    counts = sorted({1, *(each * jax.local_device_count() for each in SLOTS_A_DEVICE[backend])})
    theirs = [TorchTrial(workload, count) for count in threads]
    bare = [Slots(workload, count) for count in counts]
    evaluating = [Slots(workload, count, evaluate=True) for count in counts]
    found = rates([*theirs, *bare, *evaluating], rounds, seconds)
    torch.set_num_threads(threads[-1])

    def median(contender: Any) -> float:
        return statistics.median(found[contender])

    one, slots = max(theirs, key=median), max(bare, key=median)
    same = evaluating[bare.index(slots)]
    share = statistics.median(1 - slow / fast for fast, slow in zip(found[slots], found[same], strict=True))
    return [
        name,
        f"{median(one):,.0f} ({one.name if DEVICE.type == 'cpu' else 'cuda'})",
        f"{median(slots):,.0f} ({slots.slots} slots)",
        f"{median(slots) / median(one):.1f}×",
        f"{median(same):,.0f}",
        f"{max(share, 0):.0%} (every {workload.eval_interval})",
        ", ".join(f"{each.slots}: {median(each):,.0f}" for each in bare),
    ]


HEADINGS = [
    "workload",
    "PyTorch steps/s",
    "levelfield trial-steps/s",
    "ratio",
    "with evaluation",
    "evaluation's share",
    "slots: trial-steps/s",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(EMBEDDED), help="names, with commas between them")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of each stretch that is timed")
    parser.add_argument("--rounds", type=int, default=5, help="how often all take their turn")
    arguments = parser.parse_args()
    use_every_core()
    print(
        f"{jax.local_device_count()} × {jax.local_devices()[0].device_kind}, {os.cpu_count()} cores, "
        f"jax {jax.__version__}, torch {torch.__version__} on {DEVICE}"
    )
    names = arguments.workloads.split(",")
    print(table([HEADINGS, *(row(name, arguments.rounds, arguments.seconds) for name in names)]))


if __name__ == "__main__":
    main()
