"""The GPTs of levelfield in PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional


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
