"""Rotary positions: queries and keys are turned by angles that grow with their positions (Su et al.
2021, arXiv:2104.09864), so that q_i . k_j depends on i - j.

Channels i and i + d/2 are a pair, as in Llama. On images half of the pairs turn with the row and
half with the column. Every attention is given the turned queries and keys; a feature map sees
turned inputs, so its scores depend on i - j only as far as it keeps inner products.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lra.base.config import Positions
from lra.base.errors import UserError
from luna.base import Attention

BASE = 10_000.0


class Rotary(nn.Module):
    """x (B, H, n, d) -> the same, turned; with a CLS token, position 0 of the sequence stays."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, max_len: int, grid: tuple[int, int] | None, *, cls: bool):
        super().__init__()
        n = max_len - cls
        if grid is None:
            axes = [torch.arange(n)]
        else:
            axes = list(torch.meshgrid(*map(torch.arange, grid), indexing="ij"))
        if head_dim % (2 * len(axes)):
            raise UserError(
                f"rotary positions on {len(axes)} axes turn {2 * len(axes)} channels together, "
                f"which does not divide heads of width {head_dim}"
            )
        pairs = head_dim // 2 // len(axes)
        rates = BASE ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
        angles = torch.cat([axis.reshape(-1, 1) * rates for axis in axes], 1)  # (n, d / 2)
        if cls:
            angles = torch.cat((angles.new_zeros(1, head_dim // 2), angles))
        self.register_buffer("cos", angles.cos().float().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().float().repeat(1, 2), persistent=False)

    def flops(self, x: Tensor) -> int:
        """A product of each pair of channels with a 2 x 2 rotation: 4 FLOPs per channel. The code
        multiplies and adds element by element."""
        return 4 * x.numel()

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[-2]
        a, b = x.chunk(2, -1)
        turned = x * self.cos[:n] + torch.cat((-b, a), -1) * self.sin[:n]  # in float32
        return turned.to(x.dtype)


def turning(
    positions: Positions, grid: tuple[int, int] | None, *, cls: bool
) -> Callable[[Attention], nn.Module] | None:
    """What builds the rotation of an attention's queries and keys, where positions are rotary."""
    if positions not in (Positions.rope, Positions.rope2d):
        return None
    where = f"protocol.style.positions={positions.name}"
    axes = grid if positions is Positions.rope2d else None

    def build(attention: Attention) -> Rotary:
        if not attention.traits().compares:
            raise UserError(
                f"{where} turns queries and keys, and attention '{attention.name}' compares none: "
                "use learned, fixed or none"
            )
        if positions is Positions.rope2d and grid is None:
            raise UserError(f"{where} is for image tasks: use rope")
        return Rotary(attention.head_dim, attention.max_len, axes, cls=cls)

    return build
