"""The workloads in PyTorch, trained one trial at a time, as a baseline for speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch_gpt import GPTS

from levelfield.workload import Workload

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STRETCH = 100 if DEVICE.type == "cuda" else 20  # steps between two clock readings
Loss = Callable[..., torch.Tensor]  # takes the arrays of a batch


class CharacterNet(nn.Module):
    """An embedding, LSTM layers with dropout before and after each, and a linear layer."""

    def __init__(self, characters: int, units: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(characters, units), nn.Linear(units, characters)
        self.layers = nn.ModuleList([nn.LSTM(units, units, batch_first=True) for _ in range(layers)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        x = self.embed(characters)
        for lstm in self.layers:
            x = self.dropout(lstm(self.dropout(x))[0])
        return self.out(x)  # type: ignore[no-any-return]


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


def shuffled(arrays: tuple[np.ndarray, ...], batch_size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield batches in a new order each epoch. The data stay on the device."""
    tensors = [torch.from_numpy(np.array(array)).to(DEVICE) for array in arrays]
    while True:
        order = torch.randperm(len(tensors[0]), device=DEVICE)
        for rows in order[: len(order) // batch_size * batch_size].split(batch_size):
            yield tuple(tensor[rows] for tensor in tensors)


def classifier(net: nn.Module, prepare: Callable[[torch.Tensor], torch.Tensor]) -> Loss:
    return lambda images, labels: functional.cross_entropy(net(prepare(images)), labels)


def language_model(net: nn.Module) -> Loss:
    def loss(windows: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(net(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    return loss


def contender(workload: Workload) -> tuple[nn.Module, Loss, Iterator[tuple[torch.Tensor, ...]]]:
    """Return the model, the loss, and the batches of a workload."""
    train = workload.load().train
    name, batch_size = workload.name, workload.batch_size
    if name in ("fashion_mini", "fashion_mnist_cnn"):
        net = (fashion_net() if name == "fashion_mini" else simple_cnn()).to(DEVICE)
        batches = shuffled((train[0][:, None], train[1].astype(np.int64)), batch_size)
        return net, classifier(net, lambda images: images.float() / 255), batches
    if name == "cifar10_resnet32":
        net = resnet32().to(DEVICE)
        batches = shuffled((train[0].transpose(0, 3, 1, 2), train[1].astype(np.int64)), batch_size)
        return net, classifier(net, lambda images: standardized(pad_crop_flip(images.float()))), batches
    if name == "tolstoi_mini":
        net = CharacterNet(76, 32).to(DEVICE)
        return net, language_model(net), shuffled((train.astype(np.int64),), batch_size)
    if name in GPTS:
        net = GPTS[name]().to(DEVICE)
        return net, language_model(net), shuffled((train.astype(np.int64),), batch_size)
    if name == "war_and_peace_lstm":
        net = CharacterNet(83, 128, layers=2, dropout=0.2).to(DEVICE)
        windows = train[0].reshape(-1, train[0].shape[-1]).astype(np.int64)
        return net, language_model(net), shuffled((windows,), batch_size)
    if name == "quadratic":
        net = nn.ParameterList([torch.randn(100, device=DEVICE)])
        curvatures = 1 / torch.arange(1, 101, device=DEVICE)
        scale = 1 / torch.sqrt(curvatures * batch_size)

        def noisy() -> Iterator[tuple[torch.Tensor, ...]]:
            while True:
                yield (torch.randn(100, device=DEVICE),)

        return net, lambda noise: 0.5 * torch.sum(curvatures * (net[0] - noise * scale) ** 2), noisy()
    if name == "wilson":
        net = nn.ParameterList([torch.zeros(train[0].shape[1], device=DEVICE)])
        return net, lambda x, y: 0.5 * torch.mean((x @ net[0] - y) ** 2), shuffled(train, batch_size)
    raise SystemExit(f"{name}: this benchmark has no PyTorch version of it")


class TorchTrial:
    """One trial in PyTorch, in eager mode or compiled with CUDA graphs."""

    def __init__(self, workload: Workload, adam: dict[str, float], threads: int = 1, compiled: bool = False) -> None:
        on_cpu = f"{threads} thread{'s' if threads > 1 else ''}"
        self.name = "CUDA graphs" if compiled else "eager" if DEVICE.type == "cuda" else on_cpu
        self._threads = threads
        net, loss, self._batches = contender(workload)
        self._loss: Any = torch.compile(loss, mode="reduce-overhead") if compiled else loss
        self._adam = torch.optim.Adam(net.parameters(), adam["learning_rate"], eps=adam["epsilon"], fused=True)

    def stretch(self) -> int:
        """Train for a number of steps and return it."""
        torch.set_num_threads(self._threads)
        for _ in range(STRETCH):
            self._adam.zero_grad()
            self._loss(*next(self._batches)).backward()
            self._adam.step()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        return STRETCH
