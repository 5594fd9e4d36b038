"""Logits of gates, which are read off each token: of its keys, head by head, or of its hidden
states, as published codes read them.

    k   w_h . k_h + b_h     a token's own key says how it is kept. Needs q, k and v alone, so the
                            method is a function of them like every other, streams and converts
    x   w_h . x + b_h       x are all hidden states of the token

Both see the same hidden states, k through the backbone's projection; with `rank` the map is a
product of two, the first one without a bias.

    B batch   H heads   n tokens   d width of a head   E = H d
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from luna.errors import LunaError
from luna.feature_maps.headwise import HeadwiseLinear

Source = Literal["k", "x"]

STEPS = (1e-3, 0.1)  # softplus of a gate of steps is log-uniform between these at the start


class Gates(nn.Module):
    """Logits (B, H, n, width)."""

    def __init__(
        self,
        source: Source,
        n_heads: int,
        head_dim: int,
        width: int = 1,
        *,
        rank: int | None = None,
    ):
        super().__init__()
        self.source, self.n_heads, self.width = source, n_heads, width
        if rank is not None and rank < 1:
            raise LunaError(f"gates need a rank of at least 1, got {rank}")
        groups, d_in, d_out = n_heads, head_dim, width
        if source == "x":  # one map for the gates of all heads
            groups, d_in, d_out = 1, n_heads * head_dim, n_heads * width
        self.narrow = None if rank is None else HeadwiseLinear(groups, d_in, rank, bias=False)
        self.map = HeadwiseLinear(groups, d_in if rank is None else rank, d_out)

    def forward(self, k: Tensor, x: Tensor | None) -> Tensor:
        given = k
        if self.source == "x":
            assert x is not None  # the contract has seen to it
            width = self.n_heads * k.shape[-1]
            if x.shape[-1] != width:
                raise LunaError(
                    f"gates=x needs hidden states of width n_heads * head_dim = {width}, got "
                    f"{x.shape[-1]}"
                )
            given = x.unsqueeze(1)
        if self.narrow is not None:
            given = self.narrow(given)
        logits = self.map(given)
        if self.source == "k":
            return logits
        return logits.squeeze(1).unflatten(-1, (self.n_heads, self.width)).transpose(1, 2)

    def cost(self, k: Tensor) -> int:
        """FLOPs of the maps for these tokens (B, H, n, d)."""
        weights = sum(p.numel() for name, p in self.named_parameters() if name.endswith("weight"))
        return 2 * len(k) * k.shape[2] * weights


@torch.no_grad()
def begin_with_small_steps(gates: Gates) -> None:
    """Set the bias of gates whose softplus is a step in time."""
    bias = gates.map.bias
    assert bias is not None
    bias.copy_(small_steps(bias))


def small_steps(like: Tensor) -> Tensor:
    """Numbers whose softplus is a step in time, as Mamba-2 and its kin begin."""
    low, high = (math.log(step) for step in STEPS)
    step = torch.empty_like(like).uniform_(low, high).exp()
    return step + torch.log(-torch.expm1(-step))  # softplus of it is the step
