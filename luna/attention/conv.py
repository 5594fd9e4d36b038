"""A depthwise convolution in the place of attention: every token receives its nearest neighbours,
weighted by their distance and whatever they hold.

The control for locality, as `uniform` is for attending at all: a short convolution alone comes
close to the best published results on some tasks of the arena (Miralles-González et al. 2025).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import Attention, LunaError, Mask, Paper, Slot, register


@register("conv")
class Conv(Attention):
    title = "Short convolution"
    family = "convolution"
    marker = "<"
    paper = Paper(
        "On the locality bias and results in the Long Range Arena",
        2025,
        "https://arxiv.org/abs/2501.14850",
    )
    complexity = "O(n κ e)"
    declared = Attention.declared.but(
        holes_are_time=True,
        compares=False,
        has_matrix=False,  # one matrix per channel
        row_stochastic=False,
        convex=False,
        equivariant=False,
        exempt={"d_v": "its filters belong to the channels of a head"},
    )

    @classmethod
    def projected(cls, profile: str) -> str:
        return "vo"

    def __init__(self, slot: Slot, *, kernel: int = 5):
        super().__init__(slot)
        if kernel < 1 or kernel % 2 == 0:
            raise LunaError(f"conv.kernel must be odd and at least 1, got {kernel}")
        self.kernel = kernel
        channels, bound = slot.n_heads * slot.head_dim, kernel**-0.5  # as nn.Conv1d begins
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel).uniform_(-bound, bound))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        H, e = self.n_heads, self.head_dim
        if v.shape[-1] != e:
            raise LunaError(f"conv: v has width {v.shape[-1]}, its filters are for {e} channels")
        values = v.mT.flatten(1, 2)  # (B, H e, n); padded values are 0 already
        out = F.conv1d(values, self.weight.to(v.dtype), padding=self.kernel // 2, groups=H * e)
        return out.unflatten(1, (H, e)).mT
