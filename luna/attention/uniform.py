"""Uniform attention: every token receives the mean of the real values. The bag-of-tokens control
(the deep averaging network of Iyyer et al. in a Transformer's slot): what a method gains over this,
it gains by attending.
"""

from __future__ import annotations

from torch import Tensor

from luna.base import Attention, Mask, Paper, register
from luna.blocks import real_tokens


@register("uniform")
class Uniform(Attention):
    title = "Plain averaging"
    family = "control"
    marker = "o"
    paper = Paper(
        "Deep Unordered Composition Rivals Syntactic Methods for Text Classification",
        2015,
        "https://aclanthology.org/P15-1162/",
    )
    complexity = "O(n e)"
    declared = Attention.declared.but(
        cross_form=True,
        compares=False,
    )

    @classmethod
    def projected(cls, profile: str) -> str:
        return "vo"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        count = real_tokens(mask, v).sum(2, keepdim=True).clamp(min=1)
        mean = v.sum(2, keepdim=True) / count  # padded values are 0 already
        return mean.expand(-1, -1, q.shape[2], -1)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        B, H, n, _ = q.shape
        m = k.shape[2]
        real = q.new_ones(B, m) if mask is None else mask.to(q.dtype)
        share = real / real.sum(-1, keepdim=True).clamp(min=1)
        return share[:, None, None, :].expand(B, H, n, m)
