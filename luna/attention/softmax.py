"""Softmax attention (Vaswani et al., 2017), the quadratic reference.

`strict`     torch's fused kernel, in the precision of its inputs; without a visible key: 0.
`published`  1e6 subtracted from the scores of padded keys (pkuzengqi/Skyformer,
             mlpen/Nystromformer), in float32.
`official`   1e10 subtracted where the key or the query is padding, in float32
             (google-research/long-range-arena): a padded query attends uniformly to all
             positions, padding included.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from luna.base import Attention, Paper, Slot, register


@register("softmax")
class Softmax(Attention):
    paper = Paper(
        title="Attention Is All You Need", year=2017, url="https://arxiv.org/abs/1706.03762"
    )
    complexity = "O(n² d)"
    profiles = ("strict", "published", "official")
    cross_form = True
    uses_dropout = True
    linear_in_n = False
    full_precision = False

    def __init__(self, slot: Slot):
        super().__init__(slot)
        # The public codes compute the scores in float32 whatever surrounds them.
        self.full_precision = self.profile != "strict"  # type: ignore[misc]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, x: Tensor | None
    ) -> Tensor:
        if self.profile != "strict":
            weights = self._weights(q, k, mask)
            return F.dropout(weights, self.slot.dropout, self.training) @ v
        visible = None
        if mask is not None:
            # An example without any token: its values are 0, so it may see all of them.
            visible = (mask | ~mask.any(-1, keepdim=True))[:, None, None, :]
        p = self.slot.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=p)

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """(B, H, n, n) under the two public codes."""
        scores = q @ k.mT / self.head_dim**0.5
        if mask is not None and self.profile == "published":
            scores = scores - 1e6 * ~mask[:, None, None, :]
        if mask is not None and self.profile == "official":
            # In float32 adding -1e10 absorbs the score; written out, it does so in any precision.
            scores = scores.masked_fill(~mask[:, None, None, :], -1e10)
            scores = scores.masked_fill(~mask[:, None, :, None], -1e10)
        return scores.softmax(-1)

    def _matrix(self, q: Tensor, k: Tensor, mask: Tensor | None, x: Tensor | None) -> Tensor:
        if self.profile != "strict":
            return self._weights(q, k, mask)
        weights = torch.einsum("bhid,bhjd->bhij", q, k).div(self.head_dim**0.5)
        weights = (weights - weights.amax(-1, keepdim=True)).exp()
        if mask is not None:
            weights = weights * mask[:, None, None, :]
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)

    def flops(self, n: int, d_v: int | None = None) -> int:
        """The two products, 2 n² (d + e), and the softmax, 5 n²."""
        return self.n_heads * n * n * (2 * self.head_dim + 2 * (d_v or self.head_dim) + 5)
