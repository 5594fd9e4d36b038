"""What published mixers put around their core: a short convolution, a norm per head, a gate.

Each is a module of its own, for mixers written by hand, and an option of `Around`
(luna/around.py) of any attention; state spaces end in a map, which may be gated, too.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.around import Gate
from luna.errors import LunaError
from luna.streaming import StreamingAttention
from luna.tensors import Mask, zero_padded_rows
from luna.traits import AttentionTraits

Output = Literal["linear", "glu"]
RANK = 16  # of a low-rank gate


class ShortConv(nn.Module):
    """A depthwise convolution over the last `kernel` tokens, or, if not causal, over those around,
    then silu, as in Mamba and Gated DeltaNet: x (B, n, E) -> (B, n, E). Padding enters no sum and
    comes out 0."""

    def __init__(self, channels: int, kernel: int = 4, *, causal: bool = False):
        super().__init__()
        if kernel < 1:
            raise LunaError(f"a short convolution needs a kernel of at least 1, got {kernel}")
        self.kernel = kernel
        before = kernel - 1 if causal else (kernel - 1) // 2
        self.pad = before, kernel - 1 - before
        bound = kernel**-0.5  # as nn.Conv1d begins
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))

    def forward(self, x: Tensor, mask: Mask = None) -> Tensor:
        x = zero_padded_rows(x, mask)
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        y = F.conv1d(F.pad(x.mT, self.pad), weight, bias, groups=len(weight))
        return zero_padded_rows(F.silu(y.mT), mask)


class HeadNorm(nn.Module):
    """out (B, H, n, d) divided by the root mean square of each head, with a gain per channel, as in
    RetNet and GLA."""

    def __init__(self, n_heads: int, head_dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(n_heads, 1, head_dim))

    def forward(self, out: Tensor) -> Tensor:
        square = out.float().square() if out.dtype in (torch.half, torch.bfloat16) else out.square()
        rms = (square.mean(-1, keepdim=True) + self.eps).sqrt()
        return out / rms.to(out.dtype) * self.gain.to(out.dtype)


class NormedHeads(StreamingAttention):
    """An attention with a norm of its own, unless its option `norm` is false."""

    norm: HeadNorm | None

    def _with_norm(self, facts: AttentionTraits) -> AttentionTraits:
        if self.norm is None:
            return facts
        return facts.but(has_matrix=False, exempt={"d_v": "its gains belong to channels"})

    def _normed(self, out: Tensor) -> Tensor:
        if self.norm is None:
            return out
        if out.shape[-1] != self.head_dim:
            raise LunaError(
                f"{self.name}'s norm has a gain for each of {self.head_dim} channels of a head, "
                f"and the values have {out.shape[-1]}: use norm=false"
            )
        normed: Tensor = self.norm(out)
        return normed


class OutputGate(nn.Module):
    """out (B, n, width) times silu of a projection of the hidden states x (B, n, E): of full rank,
    or through `rank` channels."""

    def __init__(self, d_model: int, width: int, rank: int | None = None):
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(d_model, width)]
        if rank is not None:
            if rank < 1:
                raise LunaError(f"an output gate needs a rank of at least 1, got {rank}")
            layers = [nn.Linear(d_model, rank, bias=False), nn.Linear(rank, width)]
        self.project = nn.Sequential(*layers)

    def forward(self, out: Tensor, x: Tensor) -> Tensor:
        return out * F.silu(self.project(x))


def output_gate(kind: Gate, d_model: int, width: int) -> OutputGate | None:
    if kind == "none":
        return None
    return OutputGate(d_model, width, RANK if kind == "low_rank" else None)


class GatedMap(nn.Module):
    """(W_1 y) sigmoid(W_2 y) of y (B, n, E), as in S4 and LRU."""

    def __init__(self, channels: int):
        super().__init__()
        self.maps = nn.Linear(channels, 2 * channels)

    def forward(self, y: Tensor) -> Tensor:
        return F.glu(self.maps(y), -1)


def output_map(kind: Output, channels: int) -> nn.Module:
    return nn.Linear(channels, channels) if kind == "linear" else GatedMap(channels)


def cost(maps: nn.Module) -> int:
    """Products of linear maps for a token."""
    return sum(p.numel() for p in maps.parameters() if p.dim() == 2)
