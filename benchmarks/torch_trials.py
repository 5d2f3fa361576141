"""The workloads in PyTorch, trained one trial at a time, as a baseline for speed.

Run as a program, it trains one trial on a GPU, for some seconds after each line of its input, and prints its steps per
second; throughput.py starts several of these to share a GPU:

    python benchmarks/torch_trials.py WORKLOAD PRECISION plain|compiled SECONDS
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch_gpt import GPTS

from levelfield.workload import Workload

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STRETCH = 100 if DEVICE.type == "cuda" else 20  # steps between two clock readings
Loss = Callable[..., torch.Tensor]  # takes the arrays of a batch


class Model(NamedTuple):
    """A workload in PyTorch: the network, its loss, and the arrays whose rows make a batch."""

    net: nn.Module
    loss: Loss
    arrays: tuple[np.ndarray, ...]
    batch_size: int


class CharacterNet(nn.Module):
    """An embedding, LSTM layers with dropout before and after them, and a linear layer.

    All layers are one module, which cuDNN runs fastest. Between layers, it applies dropout once, where levelfield does
    so twice.
    """

    def __init__(self, characters: int, units: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(characters, units), nn.Linear(units, characters)
        self.lstm = nn.LSTM(units, units, layers, dropout=dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Map characters of (time, batch) to logits."""
        x = self.dropout(self.embed(characters))
        return self.out(self.dropout(self.lstm(x)[0]))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A pre-activation residual block."""

    def __init__(self, before: int, features: int, stride: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(before), nn.BatchNorm2d(features)])
        self.convs = nn.ModuleList(
            [nn.Conv2d(before, features, 3, stride, 1, bias=False), nn.Conv2d(features, features, 3, 1, 1, bias=False)]
        )
        self.project = None if before == features else nn.Conv2d(before, features, 1, stride, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norms[0](inputs))
        shortcut = inputs if self.project is None else self.project(x)
        x = functional.relu(self.norms[1](self.convs[0](x)))
        return shortcut + self.convs[1](x)  # type: ignore[no-any-return]


def resnet32() -> nn.Module:
    blocks, before = [], 16
    for stage, features in enumerate((16, 32, 64)):
        for i in range(5):
            blocks.append(Block(before, features, 2 if stage and i == 0 else 1))
            before = features
    pool = [nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), *blocks, *pool)


def simple_cnn() -> nn.Module:
    convolutions: list[nn.Module] = []
    for before, features in ((1, 32), (32, 64)):
        convolutions += [nn.Conv2d(before, features, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(3136, 1024), nn.ReLU(), nn.Linear(1024, 10))


def fashion_net() -> nn.Module:
    convolutions = [nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(512, 10))


def pad_crop_flip(images: torch.Tensor) -> torch.Tensor:
    """Take a random crop of each padded image and flip half of them."""
    padded = functional.pad(images, (4, 4, 4, 4))
    n, offsets = len(images), torch.arange(32, device=images.device)
    rows, columns = (torch.randint(9, (n, 1), device=images.device) + offsets for _ in range(2))
    columns = torch.where(torch.rand(n, 1, device=images.device) < 0.5, columns, columns.flip(1))
    example = torch.arange(n, device=images.device)[:, None, None, None]
    channel = torch.arange(3, device=images.device)[None, :, None, None]
    return padded[example, channel, rows[:, None, :, None], columns[:, None, None, :]]


def standardized(images: torch.Tensor) -> torch.Tensor:
    std, mean = torch.std_mean(images, (1, 2, 3), keepdim=True, unbiased=False)
    return (images - mean) / std.clamp(min=3072**-0.5)


def classifier(net: nn.Module, prepare: Callable[[torch.Tensor], torch.Tensor]) -> Loss:
    return lambda images, labels: functional.cross_entropy(net(prepare(images)).float(), labels)


def language_model(net: nn.Module, transposed: bool = False) -> Loss:
    """Return the loss on windows of (batch, time); the network may want the time first."""

    def loss(windows: torch.Tensor) -> torch.Tensor:
        inputs, targets = windows[:, :-1], windows[:, 1:]
        if transposed:
            inputs, targets = inputs.T, targets.T
        return functional.cross_entropy(net(inputs).float().flatten(0, 1), targets.flatten())

    return loss


def model(workload: Workload) -> Model:
    """Return the PyTorch version of a workload."""
    name, batch_size = workload.name, workload.batch_size
    train = workload.load().train
    if name in ("fashion_mini", "fashion_mnist_cnn"):
        net = (fashion_net() if name == "fashion_mini" else simple_cnn()).to(DEVICE)
        loss = classifier(net, lambda images: images.float() / 255)
        return Model(net, loss, (train[0][:, None], train[1].astype(np.int64)), batch_size)
    if name == "cifar10_resnet32":
        net = resnet32().to(DEVICE)
        loss = classifier(net, lambda images: standardized(pad_crop_flip(images.float())))
        return Model(net, loss, (train[0].transpose(0, 3, 1, 2), train[1].astype(np.int64)), batch_size)
    if name == "tolstoi_mini":
        net = CharacterNet(76, 32).to(DEVICE)
        return Model(net, language_model(net, transposed=True), (train.astype(np.int64),), batch_size)
    if name in GPTS:
        net = GPTS[name]().to(DEVICE)
        return Model(net, language_model(net), (train.astype(np.int64),), batch_size)
    if name == "war_and_peace_lstm":
        net = CharacterNet(83, 128, layers=2, dropout=0.2).to(DEVICE)
        windows = train[0].reshape(-1, train[0].shape[-1]).astype(np.int64)
        return Model(net, language_model(net, transposed=True), (windows,), batch_size)
    if name == "quadratic":
        net = nn.ParameterList([torch.randn(100, device=DEVICE)])
        curvatures = 1 / torch.arange(1, 101, device=DEVICE)
        scale = 1 / torch.sqrt(curvatures * batch_size)

        def loss(_: torch.Tensor) -> torch.Tensor:
            noise = torch.randn(100, device=DEVICE)
            return 0.5 * torch.sum(curvatures * (net[0] - noise * scale) ** 2)

        return Model(net, loss, (np.zeros(batch_size),), batch_size)
    if name == "wilson":
        net = nn.ParameterList([torch.zeros(train[0].shape[1], device=DEVICE)])
        return Model(net, lambda x, y: 0.5 * torch.mean((x @ net[0] - y) ** 2), tuple(train), batch_size)
    raise SystemExit(f"{name}: this benchmark has no PyTorch version of it")


def adam_for(net: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), 1e-3, fused=True, **options)


class TorchTrial:
    """One trial in PyTorch in eager mode, with its data on the device."""

    def __init__(self, workload: Workload, threads: int = 1) -> None:
        self.name = f"{threads} thread{'s' if threads > 1 else ''}" if DEVICE.type == "cpu" else "eager"
        self._threads, self._model = threads, model(workload)
        self._batches, self._adam = self._shuffled(), adam_for(self._model.net)

    def _shuffled(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield batches in a new order each epoch."""
        tensors = [torch.from_numpy(np.array(array)).to(DEVICE) for array in self._model.arrays]
        size = self._model.batch_size
        while True:
            order = torch.randperm(len(tensors[0]), device=DEVICE)
            for rows in order[: len(order) // size * size].split(size):
                yield tuple(tensor[rows] for tensor in tensors)

    def stretch(self) -> int:
        """Train for a number of steps and return it."""
        torch.set_num_threads(self._threads)
        for _ in range(STRETCH):
            self._adam.zero_grad()
            self._model.loss(*next(self._batches)).backward()
            self._adam.step()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        return STRETCH


class GraphedTrial:
    """One trial as fast as PyTorch gets on a GPU: the whole step, data and update included, in one CUDA graph.

    Images are laid out with the channels last. ``bfloat16`` is PyTorch's automatic mixed precision; its weights and
    the optimizer's state are float32, as are levelfield's.
    """

    def __init__(self, workload: Workload, precision: str, compiled: bool) -> None:
        self.name = "compiled" if compiled else "plain"
        net, loss, arrays, size = model(workload)
        if any(parameter.ndim == 4 for parameter in net.parameters()):
            net.to(memory_format=torch.channels_last)
        adam = adam_for(net, capturable=True)
        tensors = [torch.from_numpy(np.array(array)).to(DEVICE) for array in arrays]

        def scored(*batch: torch.Tensor) -> torch.Tensor:
            batch = tuple(b.contiguous(memory_format=torch.channels_last) if b.ndim == 4 else b for b in batch)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
                return loss(*batch)

        objective: Any = torch.compile(scored) if compiled else scored

        def step() -> None:
            rows = torch.randint(len(tensors[0]), (size,), device=DEVICE)
            adam.zero_grad(set_to_none=True)
            objective(*(tensor[rows] for tensor in tensors)).backward()
            adam.step()

        self._graph = captured(step, adam)
        self._used = net, adam, tensors, objective  # by the graph, which does not keep them alive

    def stretch(self) -> int:
        for _ in range(STRETCH):
            self._graph.replay()
        torch.cuda.synchronize()
        return STRETCH


def captured(step: Callable[[], None], optimizer: torch.optim.Optimizer) -> torch.cuda.CUDAGraph:
    """Return a step as a CUDA graph, after some steps that warm up."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(12):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    return graph


def fastest(workload: Workload, precision: str) -> GraphedTrial:
    """Return the faster of the plain and the compiled step."""
    use_fast_products()
    trials = [GraphedTrial(workload, precision, compiled=False)]
    try:
        trials.append(GraphedTrial(workload, precision, compiled=True))
    except Exception as error:  # torch.compile does not support everything
        print(f"{workload.name}: not compiled: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)
    return max(trials, key=lambda trial: rate(trial, 1.0))


def use_fast_products() -> None:
    """Let PyTorch compute products in TF32, and choose the fastest convolutions."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True


def rate(trial: Any, seconds: float) -> float:
    """Return a trial's steps per second, the median over stretches."""
    trial.stretch()
    rates, end = list[float](), time.perf_counter() + seconds
    while not rates or time.perf_counter() < end:
        begun = time.perf_counter()
        rates.append(trial.stretch() / (time.perf_counter() - begun))
    return statistics.median(rates)


def main() -> None:
    from levelfield.workloads import get_workload

    workload, precision, way, seconds = sys.argv[1:]
    use_fast_products()
    trial = GraphedTrial(get_workload(workload), precision, compiled=way == "compiled")
    trial.stretch()
    print("ready", flush=True)
    for _ in sys.stdin:  # throughput.py lets all processes begin together
        print(rate(trial, float(seconds)), flush=True)


if __name__ == "__main__":
    main()
