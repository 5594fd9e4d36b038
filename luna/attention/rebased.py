"""ReBased: a quadratic kernel whose minimum is learned.

    x' = gamma * norm(W x) + beta in R^d',  W, gamma, beta per head, for queries and for keys
    phi(q) . phi(k) = (q' . k')^2 / d'

norm subtracts the mean of the d' entries and divides by their standard deviation. Unlike Based's,
this kernel reaches 0, so that a query can ignore a key. Left out are the short convolutions. Under
`published` (corl-team/rebased) mean and deviation are those of all heads together, and 1e-12 is
added to denominators.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luna.base import Mask, Paper, Slot, at_least, register
from luna.feature_maps.headwise import HeadwiseLinear, products
from luna.linear import KernelAttention

NORM_EPS = 1e-5  # added to the variance, as in nn.LayerNorm


class LearnedShift(nn.Module):
    """gamma * norm(W x) + beta of x (B, H, n, d): (B, H, n, d')."""

    def __init__(self, n_heads: int, d_in: int, d_out: int, *, joint: bool):
        super().__init__()
        self.map = HeadwiseLinear(n_heads, d_in, d_out, bias=False)
        self.gamma = nn.Parameter(torch.ones(n_heads, 1, d_out))
        self.beta = nn.Parameter(torch.zeros(n_heads, 1, d_out))
        self.over = (1, 3) if joint else (3,)

    def forward(self, x: Tensor) -> Tensor:
        x = self.map(x)
        x = x - x.mean(self.over, keepdim=True)
        x = x * (x.square().mean(self.over, keepdim=True) + NORM_EPS).rsqrt()
        return x * self.gamma.to(x.dtype) + self.beta.to(x.dtype)


@register("rebased")
class ReBased(KernelAttention):
    title = "ReBased"
    family = "learned kernels"
    marker = "o"
    paper = Paper(
        "Linear Transformers with Learnable Kernel Functions are Better In-Context Models",
        2024,
        "https://arxiv.org/abs/2402.10644",
    )
    complexity = "O(n d'² e)"
    profiles = ("strict", "published")
    tokenwise = True

    def __init__(self, slot: Slot, *, d_out: int = 16):
        super().__init__(slot)
        at_least("rebased", 2, d_out=d_out)
        joint = self.profile == "published"
        self.d_out, self.feature_dim = d_out, d_out * (d_out + 1) // 2
        self.map_q = LearnedShift(slot.n_heads, slot.head_dim, d_out, joint=joint)
        self.map_k = LearnedShift(slot.n_heads, slot.head_dim, d_out, joint=joint)

    def phi_q(self, q: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return products(self.d_out**-0.25 * self.map_q(q))

    def phi_k(self, k: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return products(self.d_out**-0.25 * self.map_k(k))

    def den(self, c: Tensor) -> Tensor:
        return super().den(c) if self.profile == "strict" else c + 1e-12
