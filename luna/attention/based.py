"""Based: the Taylor series of exp(q . k / sqrt(d')) up to its second order, on narrow queries and
keys.

    x' = W x in R^d', W per head, one for queries and one for keys
    phi(x) = [1, x' / d'^(1/4), vec(x' x'^T) / sqrt(2 d')]
    phi(q) . phi(k) = 1 + s + s^2 / 2 >= 1/2,   s = q' . k' / sqrt(d')

Equal products x_a x_b are one feature times sqrt(2): the kernel is the same. Left out is the rest
of HazyResearch/based: its layers of sliding-window attention and its short convolutions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from luna.base import Mask, Paper, Slot, at_least, register
from luna.feature_maps.headwise import HeadwiseLinear, products
from luna.linear import KernelAttention


@register("based")
class Based(KernelAttention):
    title = "Based"
    family = "fixed kernels"
    marker = "o"
    paper = Paper(
        "Simple linear attention language models balance the recall-throughput tradeoff",
        2024,
        "https://arxiv.org/abs/2402.18668",
    )
    complexity = "O(n d'² e)"
    tokenwise = True

    def __init__(self, slot: Slot, *, d_out: int = 16):
        super().__init__(slot)
        at_least("based", 1, d_out=d_out)
        self.d_out, self.feature_dim = d_out, 1 + d_out + d_out * (d_out + 1) // 2
        self.map_q = HeadwiseLinear(slot.n_heads, slot.head_dim, d_out, bias=False)
        self.map_k = HeadwiseLinear(slot.n_heads, slot.head_dim, d_out, bias=False)

    def phi_q(self, q: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self._taylor(self.map_q(q))

    def phi_k(self, k: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self._taylor(self.map_k(k))

    def _taylor(self, x: Tensor) -> Tensor:
        x = x * self.d_out**-0.25
        return torch.cat([torch.ones_like(x[..., :1]), x, 0.5**0.5 * products(x)], -1)
