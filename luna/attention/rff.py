"""Random Fourier features: linear attention with the Gaussian kernel, or with the softmax kernel.

    gaussian   phi(q) . phi(k) ~ exp(-|q - k|^2 / (2 sqrt(d)))
    softmax    keys are multiplied by e^(|k|^2 / (2 sqrt(d))), which turns the above into
               e^(q . k / sqrt(d)) up to a factor of the query that cancels

The frequencies are drawn once, from the slot's seed, and never trained: this is the fixed-kernel
row of LUNA's ablation, not Random Feature Attention (Peng et al., 2021). Features are signed, and
so may be the denominator: its magnitude is kept above eps, its sign is kept.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from luna.base import Paper, Slot, at_least, positive, register
from luna.feature_maps.rff import FourierFeatures
from luna.weighted import WeightedKernelAttention


@register("rff")
class RFF(WeightedKernelAttention):
    paper = Paper(
        title="Random Features for Large-Scale Kernel Machines",
        year=2007,
        url="https://papers.nips.cc/paper/2007/hash/013a006f03dbc5392effeb8f18fda755-Abstract.html",
    )
    complexity: ClassVar[str] = "O(n P (d + e))"
    convex: ClassVar[bool] = False  # weights may be negative
    signed: ClassVar[bool] = True

    def __init__(
        self,
        slot: Slot,
        *,
        P: int = 32,
        kernel: Literal["gaussian", "softmax"] = "gaussian",
        eps: float = 1e-2,
    ):
        super().__init__(slot, eps=eps)
        at_least("rff", 1, P=P)
        positive("rff", eps=eps)
        self.weighted = kernel == "softmax"
        self.tokenwise = not self.weighted
        self.map = FourierFeatures(slot.head_dim, P, slot.seed)
        self.feature_dim = 2 * P

    def phi_q(self, q: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
        return self.map(q)

    def phi_k(self, k: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
        return super().phi_k(k, mask, start) if self.weighted else self.map(k)

    def weigh(self, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.map(k), k.square().sum(-1) / (2 * self.head_dim**0.5)
