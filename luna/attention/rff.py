"""Random Fourier features: linear attention with the Gaussian kernel.

    phi(q) . phi(k) ~ exp(-|q - k|^2 / (2 sqrt(d)))

The frequencies are drawn once, from the slot's seed, and never trained: this is the fixed-kernel
row of LUNA's ablation, not Random Feature Attention (Peng et al., 2021). Features are signed, and
so may be the denominator: its magnitude is kept above eps, its sign is kept.
"""

from __future__ import annotations

from torch import Tensor

from luna.base import Mask, Paper, Slot, at_least, register
from luna.feature_maps.random import FourierFeatures
from luna.linear import KernelAttention


@register("rff")
class RFF(KernelAttention):
    title = "Random Fourier features"
    family = "fixed kernels"
    marker = "v"
    paper = Paper(
        "Random Features for Large-Scale Kernel Machines",
        2007,
        "https://papers.nips.cc/paper/2007/hash/013a006f03dbc5392effeb8f18fda755-Abstract.html",
    )
    complexity = "O(n P (d + e))"
    signed = True
    tokenwise = True

    def __init__(self, slot: Slot, *, P: int = 32, eps: float = 1e-2):
        super().__init__(slot, eps=eps)
        at_least("rff", 1, P=P)
        self.map = FourierFeatures(slot.head_dim, P, slot.seed)
        self.feature_dim = 2 * P

    def phi(self, x: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self.map(x)
