"""Trials side by side in PyTorch (torch.func.vmap) against one trial at a time: is it worth it?

    python benchmarks/torch_vmap.py [--trials 4 16 64] [--rounds 3] [--seconds 2] [--compile]

Each trial is a small network with its own weights and learning rate, trained by Adam with batches of 64 images of
28 × 28 pixels. One at a time uses torch.optim.Adam(fused=True); side by side, one vmapped program computes the
gradients of all trials, and Adam's equations are written with stacked tensors. The contenders take turns; the table
shows the median over the rounds, in steps per second summed over the trials. It needs nothing but PyTorch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

BATCH, EXAMPLES = 64, 4096
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Stretch = Callable[[], int]  # trains a few steps and returns their number, summed over the trials


def cnn() -> nn.Module:
    convolutions = [nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(1568, 10))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def one_at_a_time(make: Callable[[], nn.Module], images: torch.Tensor, labels: torch.Tensor) -> Stretch:
    net = make().to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, fused=True)

    def stretch() -> int:
        for _ in range(20):
            rows = torch.randint(EXAMPLES, (BATCH,), device=DEVICE)
            optimizer.zero_grad()
            cross_entropy(net(images[rows]), labels[rows]).backward()
            optimizer.step()
        return 20

    return stretch


def side_by_side(
    make: Callable[[], nn.Module], images: torch.Tensor, labels: torch.Tensor, trials: int, compiled: bool
) -> Stretch:
    nets = [make().to(DEVICE) for _ in range(trials)]
    params, _ = stack_module_state(nets)
    params = {name: param.detach() for name, param in params.items()}
    first, second = ({name: torch.zeros_like(param) for name, param in params.items()} for _ in range(2))
    rates = torch.logspace(-4, -2, trials, device=DEVICE)

    def loss(own: dict[str, torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(functional_call(nets[0], own, (inputs,)), targets)

    def step(rows: torch.Tensor, number: torch.Tensor) -> None:
        gradients = vmap(grad(loss))(params, images[rows], labels[rows])
        for name, gradient in gradients.items():
            first[name].lerp_(gradient, 0.1)
            second[name].lerp_(gradient.square(), 0.001)
            size = (rates / (1 - 0.9**number)).view(-1, *[1] * (gradient.dim() - 1))
            params[name].sub_(size * first[name] / ((second[name] / (1 - 0.999**number)).sqrt() + 1e-8))

    run = torch.compile(step) if compiled else step
    number = torch.zeros((), device=DEVICE)

    def stretch() -> int:
        for _ in range(5):
            number.add_(1)
            run(torch.randint(EXAMPLES, (trials, BATCH), device=DEVICE), number)
        return 5 * trials

    return stretch


def speed(stretch: Stretch, seconds: float) -> float:
    """Return steps per second, measured for about this many seconds."""
    synchronize()
    begun, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begun) < seconds:
        steps += stretch()
        synchronize()
    return steps / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[4, 16, 64] + [256] * (DEVICE.type == "cuda"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each contender in each round")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on a CPU")
    parser.add_argument("--compile", action="store_true", help="also with torch.compile")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else f"CPU, {arguments.threads} threads"
    print(f"PyTorch {torch.__version__}, {name}")
    images = torch.rand(EXAMPLES, 1, 28, 28, device=DEVICE)
    labels = torch.randint(10, (EXAMPLES,), device=DEVICE)
    for make in (cnn, mlp):
        contenders = {"one at a time": one_at_a_time(make, images, labels)}
        for trials in arguments.trials:
            for compiled in (False, True)[: 1 + arguments.compile]:
                title = f"{trials} side by side{', compiled' * compiled}"
                contenders[title] = side_by_side(make, images, labels, trials, compiled)
        for stretch in contenders.values():
            stretch()  # compiles and warms up
        speeds: dict[str, list[float]] = {title: [] for title in contenders}
        for _ in range(arguments.rounds):
            for title, stretch in contenders.items():
                speeds[title].append(speed(stretch, arguments.seconds))
        base = statistics.median(speeds["one at a time"])
        for title, found in speeds.items():
            median = statistics.median(found)
            print(f"{make.__name__:4} {title:28} {median:10,.0f} steps/s  {median / base:6.2f}×")


if __name__ == "__main__":
    main()
