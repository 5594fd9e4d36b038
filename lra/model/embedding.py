"""Token ids, or numbers, to vectors: a table or a linear map, positions, and a CLS vector for CLS
pooling."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra.base.config import ClsMask, Input, Pooling, Positions, Style
from lra.data.arrays import Scale
from luna.base import autocast_off
from luna.dropout import Dropout


class Learned(nn.Module):
    """A trained table (max_len, d_model), N(0, std^2) at the start."""

    def __init__(self, max_len: int, d_model: int, std: float):
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_len, d_model))
        nn.init.normal_(self.table, std=std)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]]


class Fixed(nn.Module):
    """Even channels sin, odd channels cos of pos * 10000^(-2i/d_model); not trained, not saved."""

    table: Tensor

    def __init__(self, max_len: int, d_model: int, std: float):
        super().__init__()
        position = torch.arange(max_len, dtype=torch.float64).unsqueeze(1)
        rate = torch.exp(
            torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000) / d_model)
        )
        angle = position * rate  # (max_len, ceil(d_model / 2))
        table = torch.stack((angle.sin(), angle.cos()), -1).flatten(1)[:, :d_model]
        self.register_buffer("table", table.float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]]


# Where nothing is added here, tokens are a bag unless the attention itself depends on the order.
POSITIONS: dict[Positions, type[nn.Module]] = {
    Positions.learned: Learned,
    Positions.fixed: Fixed,
    Positions.rope: nn.Identity,  # lra/model/rotary.py
    Positions.rope2d: nn.Identity,
    Positions.alibi: nn.Identity,  # luna/attention/softmax.py
    Positions.none: nn.Identity,
}

# Put the CLS token into the mask, (B, n) -> (B, 1 + n).
CLS_MASKS = {
    ClsMask.real: lambda mask: F.pad(mask, (1, 0), value=True),
    ClsMask.first: lambda mask: torch.cat((mask[:, :1], mask), 1),
}


class Numbers(nn.Module):
    """Numbers (B, n, C), or ids (B, n) whose C = 1 number each is, to (B, n, E): a linear map of
    them as the task scales them."""

    centre: Tensor
    spread: Tensor

    def __init__(self, scale: Scale, d_model: int):
        super().__init__()
        for name, values in zip(("centre", "spread"), scale, strict=True):
            self.register_buffer(name, torch.tensor(values), persistent=False)  # (C)
        self.map = nn.Linear(len(scale.centre), d_model)

    def forward(self, numbers: Tensor) -> Tensor:
        if not numbers.is_floating_point():
            numbers = numbers.unsqueeze(-1).to(self.map.weight.dtype)
        with autocast_off(numbers.device):  # what blocks add to is float32
            return self.map((numbers - self.centre) / self.spread)


class Embedding(nn.Module):
    """ids (B, n) -> x (B, n, E); with CLS pooling (B, 1 + n, E), the CLS vector at position 0. With
    `stack` ids per token, (B, stack n) -> (B, n, E), the sum of a token's embeddings. Where the
    style reads numbers, `scale` says how."""

    def __init__(
        self,
        vocab: int,
        d_model: int,
        max_len: int,
        style: Style,
        dropout: float,
        stack: int = 1,
        scale: Scale | None = None,
    ):
        super().__init__()
        self.stack = stack
        self.token: nn.Module
        if style.input is Input.numbers:
            assert scale is not None  # build() refuses other tasks
            self.token = Numbers(scale, d_model)
        else:
            self.token = table = nn.Embedding(vocab, d_model)
            nn.init.normal_(table.weight, std=style.embedding_std)
        self.cls = nn.Parameter(torch.zeros(d_model)) if style.pooling is Pooling.cls else None
        self.cls_mask = CLS_MASKS[style.cls_mask]
        self.max_len = max_len // stack + (self.cls is not None)
        self.position = POSITIONS[style.positions](self.max_len, d_model, style.position_std)
        dropped = dropout if style.embedding_dropout else 0.0
        self.dropout = Dropout(dropped, tied=style.tied_dropout)

    def forward(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        x = self.token(ids)
        if self.stack > 1:
            x = x.unflatten(1, (-1, self.stack)).sum(2)
            mask = None if mask is None else mask[:, :: self.stack]
        if self.cls is not None:
            x = torch.cat((self.cls.expand(len(x), 1, -1), x), 1)
            mask = None if mask is None else self.cls_mask(mask)
        return self.dropout(self.position(x)), mask
