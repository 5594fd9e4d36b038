"""The envelope h(x) of LUNA's feature map (eq. phi-def-scalarenv and the kernel ablation).

    scalar  h: R^d -> R       phi = h(x) psi          h = s(g . x + b)
    norm    h: R^d -> R       phi = h(x) psi          h = s(g |x|^2 + b)
    vector  h: R^d -> R^L     phi = h_l(x) psi_l      h in [0, 1]^L, s = sigmoid

with s = sigmoid, softplus, exp, or none, which leaves h any sign; one hidden relu layer may come
before, as in the paper's theory. `norm` starts at g = -1 / (2 sqrt(d)), b = 0: with s = exp,
gaussian projections and psi(u) = exp(d^(-1/4) u), phi is then Performer's positive feature map.

A positive scalar envelope cancels for queries in the normalised output: only h(k_j) acts, as a
weight of the key.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import Slot
from luna.feature_maps.headwise import HeadwiseLinear
from luna.feature_maps.options import LunaOptions, Squash
from luna.kernels.scalar_mlp import OUTPUTS

SQUASH: dict[Squash, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "exp": OUTPUTS["exp"],
    "none": OUTPUTS[False],
}


class Envelope(nn.Module):
    """h(x): (B, H, n, d) -> (B, H, n, 1 or L)."""

    def __init__(self, slot: Slot, options: LunaOptions):
        super().__init__()
        G, hidden = options.groups(slot), options.envelope_hidden
        self.of_norm = options.envelope == "norm"
        d = 1 if self.of_norm else slot.head_dim
        self.hidden = HeadwiseLinear(G, d, hidden) if hidden else None
        self.out = HeadwiseLinear(G, hidden or d, options.L if options.envelope == "vector" else 1)
        assert self.out.bias is not None
        nn.init.zeros_(self.out.bias)
        if self.of_norm and not hidden:
            nn.init.constant_(self.out.weight, -0.5 * slot.head_dim**-0.5)
        self.squash = SQUASH[options.envelope_squash]

    def forward(self, x: Tensor) -> Tensor:
        if self.of_norm:
            x = x.square().sum(-1, keepdim=True)  # (B, H, n, 1)
        if self.hidden is not None:
            x = self.hidden(x).relu()
        return self.squash(self.out(x))
