"""The envelope h(x) of LUNA's feature map (eq. phi-def-scalarenv and the kernel ablation).

    scalar  h: R^d -> R       phi = h(x) psi          h = sigmoid or softplus
    vector  h: R^d -> R^L     phi = h_l(x) psi_l      h in [0, 1]^L, sigmoid

of a linear map of x, or of one hidden relu layer as in the paper's theory. A positive scalar envelope
cancels for queries in the normalised output: only h(k_j) acts, as a weight of the key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import LunaError
from luna.feature_maps.headwise import HeadwiseLinear

Kind = Literal["none", "scalar", "vector"]
Squash = Literal["sigmoid", "softplus"]

SQUASH: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "softplus": F.softplus}


class Envelope(nn.Module):
    """h(x): (B, H, n, d) -> (B, H, n, 1 or L)."""

    def __init__(self, groups: int, d: int, L: int, *, kind: Kind, hidden: int, squash: Squash):
        super().__init__()
        if hidden < 0:
            raise LunaError(f"luna.envelope_hidden must be 0 (linear) or more, got {hidden}")
        if kind == "vector" and squash != "sigmoid":
            raise LunaError(
                "a vector envelope lies in [0, 1]: luna.envelope_squash must be sigmoid"
            )
        widths = [d, *([hidden] if hidden else []), L if kind == "vector" else 1]
        self.layers = nn.ModuleList(
            HeadwiseLinear(groups, d_in, d_out)
            for d_in, d_out in zip(widths, widths[1:], strict=False)
        )
        nn.init.zeros_(self.layers[-1].bias)
        self.squash = SQUASH[squash]

    def forward(self, x: Tensor) -> Tensor:
        *first, last = self.layers
        for layer in first:
            x = layer(x).relu()
        return self.squash(last(x))

    def flops(self, n: int) -> int:
        """n tokens of one head: the linear maps, their biases and activations."""
        return sum(layer.flops(n) + 2 * n * layer.d_out for layer in self.layers)
