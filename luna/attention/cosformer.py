"""cosFormer: relu features, re-weighted by the cosine of the distance.

    theta_i = (pi / 2) (i / P), i = 1 .. n
    phi(x_i) = [relu(x_i) sin theta_i, relu(x_i) cos theta_i]

    phi(q_i) . phi(k_j) = (relu(q_i) . relu(k_j)) cos(pi (i - j) / (2 P)) >= 0

The horizon P is max_len: it must not move with the padding of a batch, nor grow while a causal
model decodes (which would change earlier weights). Under `published` (OpenNLPLab/cosFormer) it is
the padded length of the batch, and padding is attended.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from luna.base import AttentionTraits, LunaError, Mask, Paper, Slot, register
from luna.linear import KernelAttention


@register("cosformer")
class CosFormer(KernelAttention):
    title = "cosFormer"
    family = "fixed kernels"
    marker = "^"
    paper = Paper(
        "cosFormer: Rethinking Softmax in Attention", 2022, "https://arxiv.org/abs/2202.08791"
    )
    complexity = "O(n d e)"
    profiles = ("strict", "published")
    declared = KernelAttention.declared.but(
        holes_are_time=True,
        causal_if_strict="it needs a constant horizon",
        equivariant=False,
        bound_to_max_len=True,
    )

    def __init__(self, slot: Slot):
        super().__init__(slot)
        strict = self.profile == "strict"
        self.feature_dim = 2 * slot.head_dim
        self.sees_padding, self.tokenwise = not strict, strict

    def _traits(self) -> AttentionTraits:
        return super()._traits().but(bound_to_max_len=self.profile == "strict")

    def phi(self, x: Tensor, mask: Mask, start: int = 0) -> Tensor:
        n = x.shape[-2]
        i = torch.arange(start + 1, start + n + 1, device=x.device, dtype=x.dtype)
        if self.profile == "strict" and start + n > self.max_len:
            raise LunaError(
                f"cosformer was built for {self.max_len} positions and got {start + n}: "
                "build it with a larger max_len"
            )
        horizon = self.max_len if self.profile == "strict" else n
        theta = (math.pi / 2 * i / horizon).unsqueeze(-1)
        x = x.relu()
        return torch.cat([x * theta.sin(), x * theta.cos()], dim=-1)
