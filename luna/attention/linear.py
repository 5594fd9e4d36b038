"""Linear attention with phi(u) = elu(u) + 1 (Linear Transformer, eq. 7): D = d, no scaling of q or
k.

`strict`     denominators are kept above eps
`published`  eps is added to them (idiap/fast-transformers)
`official`   eps is added, and padding is attended like any token
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from luna.base import Mask, Paper, Slot, register
from luna.linear import KernelAttention


@register("linear")
class Linear(KernelAttention):
    title = "Linear attention"
    family = "fixed kernels"
    marker = "s"
    paper = Paper(
        "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention",
        2020,
        "https://arxiv.org/abs/2006.16236",
    )
    complexity = "O(n d e)"
    profiles = ("strict", "published", "official")
    fused_map = "elu"

    def __init__(self, slot: Slot, *, eps: float = 1e-6):
        super().__init__(slot, eps=eps)
        self.feature_dim = slot.head_dim
        self.sees_padding = self.profile == "official"
        self.tokenwise = not self.sees_padding

    def phi(self, x: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return F.elu(x) + 1

    def den(self, c: Tensor) -> Tensor:
        return super().den(c) if self.profile == "strict" else c + self.eps
