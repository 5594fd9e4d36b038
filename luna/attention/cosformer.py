"""cosFormer: relu features, re-weighted by the cosine of the distance.

    theta_i = (pi / 2) (i / P), i = 1 .. n
    phi(x_i) = [relu(x_i) sin theta_i, relu(x_i) cos theta_i]

    phi(q_i) . phi(k_j) = (relu(q_i) . relu(k_j)) cos(pi (i - j) / (2 P)) >= 0

The horizon P must not move with the padding of a batch, nor grow while a causal model decodes
(which would change earlier weights). It is a constant, or each example's own number of real
tokens: then i counts real tokens. Under `published` (OpenNLPLab/cosFormer) it is the padded length
of the batch, and padding is attended.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from luna.base import LunaError, Paper, Slot, register
from luna.linear import KernelAttention


@register("cosformer")
class CosFormer(KernelAttention):
    paper = Paper(
        title="cosFormer: Rethinking Softmax in Attention",
        year=2022,
        url="https://arxiv.org/abs/2202.08791",
    )
    complexity: ClassVar[str] = "O(n d e)"
    profiles: ClassVar[tuple[str, ...]] = ("strict", "published")
    equivariant: ClassVar[bool] = False
    bound_to_max_len: ClassVar[bool] = True  # the default horizon

    def __init__(self, slot: Slot, *, P: int | Literal["max_len", "valid"] = "max_len"):
        super().__init__(slot)
        if isinstance(P, int) and slot.max_len > P:
            raise LunaError(
                f"cosformer.P must be at least max_len={slot.max_len}, or 'max_len' or 'valid'; "
                f"got {P}"
            )
        if self.causal and (P == "valid" or self.profile == "published"):
            raise LunaError(
                "causal cosformer needs a constant horizon: P='max_len' or a number, profile=strict"
            )
        self.bound_to_max_len = P == "max_len" and self.profile == "strict"  # type: ignore[misc]
        self.cross_form = P != "valid"  # type: ignore[misc]  # else q and k have two horizons
        self.P = slot.max_len if P == "max_len" else P
        self.feature_dim = 2 * slot.head_dim
        self.sees_padding = self.profile == "published"
        self.tokenwise = self.profile == "strict" and P != "valid"

    def phi(self, x: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
        theta = self.angles(x, mask, start).unsqueeze(-1)  # (n, 1) or (B, 1, n, 1)
        x = x.relu()
        return torch.cat([x * theta.sin(), x * theta.cos()], dim=-1)

    def angles(self, x: Tensor, mask: Tensor | None, start: int) -> Tensor:
        n = x.shape[-2]
        i = torch.arange(start + 1, start + n + 1, device=x.device, dtype=x.dtype)
        if self.profile == "published":
            return math.pi / 2 * i / n
        if self.P == "valid":
            if mask is None:
                return math.pi / 2 * i / n
            rank = mask.cumsum(-1).unsqueeze(1).to(x.dtype)  # (B, 1, n)
            return math.pi / 2 * rank / rank[..., -1:].clamp_min(1)
        if start + n > self.P:
            raise LunaError(
                f"cosformer was built for {self.P} positions and got {start + n}: "
                "build it with a larger max_len or P"
            )
        return math.pi / 2 * i / self.P
