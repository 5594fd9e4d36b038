"""The envelope h(x) of LUNA's feature map (eq. phi-def-scalarenv and the kernel ablation).

    scalar  h: R^d -> R       phi = h(x) psi          h = sigmoid or softplus
    vector  h: R^d -> R^L     phi = h_l(x) psi_l      h in [0, 1]^L, sigmoid

of a linear map of x, or of one hidden relu layer as in the paper's theory. A positive scalar
envelope cancels for queries in the normalised output: only h(k_j) acts, as a weight of the key.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import Slot
from luna.feature_maps.headwise import HeadwiseLinear
from luna.feature_maps.options import LunaOptions

SQUASH: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "softplus": F.softplus}


class Envelope(nn.Module):
    """h(x): (B, H, n, d) -> (B, H, n, 1 or L)."""

    def __init__(self, slot: Slot, options: LunaOptions):
        super().__init__()
        G, d, hidden = options.groups(slot), slot.head_dim, options.envelope_hidden
        self.hidden = HeadwiseLinear(G, d, hidden) if hidden else None
        self.out = HeadwiseLinear(G, hidden or d, options.L if options.envelope == "vector" else 1)
        assert self.out.bias is not None
        nn.init.zeros_(self.out.bias)
        self.squash = SQUASH[options.envelope_squash]

    def forward(self, x: Tensor) -> Tensor:
        if self.hidden is not None:
            x = self.hidden(x).relu()
        return self.squash(self.out(x))

    def flops(self, n: int) -> int:
        """n tokens of one head: the linear maps, their biases and activations."""
        layers = [layer for layer in (self.hidden, self.out) if layer is not None]
        return sum(layer.flops(n) + 2 * n * layer.d_out for layer in layers)
