"""The GPTs of levelfield in PyTorch, and the fastest way we know to train one trial of them on a GPU.

    python benchmarks/torch_gpt.py [--precision bfloat16|tf32] [--workload war_and_peace_gpt] [--seconds 5]

Run on a GPU, this prints the steps per second of each variant, which other benchmarks compare with levelfield's.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from levelfield.workloads import get_workload


class Block(nn.Module):
    """Causal attention and a hidden layer, each with a residual connection and layer normalization before it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width, bias=False) for _ in range(2)])
        self.projected = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.hidden = nn.Linear(width, 4 * width, bias=False)
        self.back = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        projected = self.projected(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.output(attended.transpose(1, 2).reshape(batch, length, width)))
        hidden = functional.gelu(self.hidden(self.norms[1](x)), approximate="tanh")
        return x + self.dropout(self.back(hidden))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """The same network as ``levelfield.models.transformer.GPT``."""

    def __init__(self, characters: int, length: int, layers: int, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, bias=False)
        self.dropout = nn.Dropout(dropout)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.embedding(characters) + self.positions.weight[: characters.shape[1]])
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.embedding.weight)


GPTS: dict[str, Callable[[], GPT]] = {
    "tolstoi_gpt": functools.partial(GPT, 76, 32, layers=2, width=32, heads=2),
    "war_and_peace_gpt": functools.partial(GPT, 83, 256, layers=6, width=384, heads=6, dropout=0.2),
}


def graphed_step(
    windows: torch.Tensor,
    workload: str = "war_and_peace_gpt",
    batch_size: int = 64,
    bfloat16: bool = True,
    compiled: bool = True,
    learning_rate: float = 1e-3,
) -> Callable[[], None]:
    """Return a function that trains one step: batch, gradient, and fused AdamW in one CUDA graph.

    ``windows`` are all windows of the training text, on the GPU. Matrix products take bfloat16 by autocast, the weights
    stay in float32; without ``bfloat16`` they take TF32.
    """
    torch.set_float32_matmul_precision("high")
    net = GPTS[workload]().cuda()
    optimizer = torch.optim.AdamW(net.parameters(), learning_rate, fused=True, capturable=True)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=bfloat16):
            logits = net(batch[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())

    compiled_loss = torch.compile(loss) if compiled else loss

    def step() -> None:
        batch = windows[torch.randint(0, len(windows), (batch_size,), device=windows.device)].long()
        optimizer.zero_grad(set_to_none=True)
        compiled_loss(batch).backward()
        optimizer.step()

    # A graph is captured after some steps on a stream of its own (PyTorch's notes on CUDA graphs).
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(12):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    return graph.replay  # type: ignore[no-any-return]


def rate(step: Callable[[], None], seconds: float, stretch: int = 50) -> float:
    """Return steps per second: the median over five turns."""
    rates = []
    for _ in range(5):
        torch.cuda.synchronize()
        start, steps = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - start) < seconds / 5:
            for _ in range(stretch):
                step()
            torch.cuda.synchronize()
            steps += stretch
        rates.append(steps / elapsed)
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="war_and_peace_gpt", choices=list(GPTS))
    parser.add_argument("--precision", default="bfloat16,tf32", help="comma-separated")
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    workload = get_workload(arguments.workload)
    windows = torch.from_numpy(workload.load().train).cuda()
    for precision in arguments.precision.split(","):
        for compiled in (False, True):
            options = {"bfloat16": precision == "bfloat16", "compiled": compiled}
            step = graphed_step(windows, workload.name, workload.batch_size, **options)
            print(
                f"{workload.name}, {precision}, {'compiled' if compiled else 'eager'}, whole step in a CUDA graph: "
                f"{rate(step, arguments.seconds):,.0f} steps/s on {torch.cuda.get_device_name()}, "
                f"torch {torch.__version__}",
                flush=True,
            )


if __name__ == "__main__":
    main()
