"""Performer's generalised attention with deterministic features: phi(x) = relu(x) + eps.

No random projection and no d^(-1/4) scaling. This is the row "Performer" of the official Long Range
Arena on every task but ListOps, called Performer-ReLU in the paper. Under `official` padding is
attended, as that code ignores the bias through which padding arrives.
"""

from __future__ import annotations

from torch import Tensor

from luna.base import Mask, Paper, Slot, at_least, register
from luna.linear import KernelAttention
from luna.weighted import TINY


@register("performer_relu")
class PerformerReLU(KernelAttention):
    title = "Performer with relu"
    family = "fixed kernels"
    marker = "X"
    paper = Paper("Rethinking Attention with Performers", 2021, "https://arxiv.org/abs/2009.14794")
    complexity = "O(n d e)"
    profiles = ("strict", "official")

    def __init__(self, slot: Slot, *, eps: float = 1e-3):
        super().__init__(slot, eps=TINY)
        at_least("performer_relu", 0, eps=eps)
        self.feature_eps = eps
        self.feature_dim = slot.head_dim
        self.sees_padding = self.profile == "official"
        self.tokenwise = not self.sees_padding

    def phi(self, x: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return x.relu() + self.feature_eps
