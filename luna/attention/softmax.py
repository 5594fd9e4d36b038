"""Softmax attention (Vaswani et al., 2017), the quadratic reference.

`strict`     torch's fused kernel, in the precision of its inputs; without a visible key: 0. It
             alone has a causal form, whose state is the cache of keys and values
`published`  1e6 subtracted from the scores of padded keys, in float32
`official`   1e10 subtracted where the key or the query is padding, in float32: a padded query
             attends uniformly to all positions, padding included

With ALiBi a score falls with the distance of its tokens (Press et al. 2022, arXiv:2108.12409),

    s_ij = q_i . k_j / sqrt(d) - m_h |i - j|,   m_h = 2^(-8 h / H) for heads h = 1 .. H

in both directions here; a causal form sees the half with j <= i.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from luna import dropout
from luna.base import KEY_BIAS, AttentionTraits, Mask, Paper, Slot, register
from luna.streaming import StreamingAttention
from luna.weighted import largest


def alibi_slopes(n_heads: int) -> Tensor:
    """m_h, (H). If H is no power of two: those of the next lower power P, then every second one
    of 2 P heads, as in the paper's code."""
    power = 1 << (n_heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    slopes += [2 ** (-4 * h / power) for h in range(1, 2 * (n_heads - power), 2)]
    return torch.tensor(slopes)


def alibi_bias(q: Tensor, k: Tensor) -> Tensor:
    """-m_h |i - j|, (1, H, n, m), for queries that are the last n of the m tokens of k."""
    n, m = q.shape[2], k.shape[2]
    places = torch.arange(m, device=q.device)
    distance = (places[m - n :, None] - places).abs()
    slopes = alibi_slopes(q.shape[1]).to(q.device)
    return (-slopes[:, None, None] * distance)[None].to(q.dtype)


class ValuesAndKeys(NamedTuple):
    """Streaming state, which grows with every token."""

    v: Tensor  # (B, H, t, e)
    k: Tensor  # (B, H, t, d)
    real: Tensor  # (B, t) bool


@register("softmax")
class Softmax(StreamingAttention):
    title = "Softmax"
    family = "softmax and sparse"
    marker = "o"
    paper = Paper("Attention Is All You Need", 2017, "https://arxiv.org/abs/1706.03762")
    complexity = "O(n² d)"
    profiles = ("strict", "published", "official")
    declared = StreamingAttention.declared.but(
        idle=KEY_BIAS,
        causal_if_strict="the public codes have none",
        cross_form=True,
        alibi_form=True,
        uses_dropout=True,
        linear_in_n=False,
        full_precision=False,
    )

    def __init__(self, slot: Slot):
        super().__init__(slot)

    def _traits(self) -> AttentionTraits:
        # The public codes compute the scores in float32 whatever surrounds them.
        return self.declared.but(full_precision=self.profile != "strict")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.profile != "strict":
            weights = self._weights(q, k, mask)
            return dropout.dropout(weights, self.slot.dropout, self.training) @ v
        if self.causal:
            return self._causal(q, k, v, mask)
        visible = None
        if mask is not None:
            # An example without any token: its values are 0, so it may see all of them.
            visible = (mask | ~mask.any(-1, keepdim=True))[:, None, None, :]
        return self._fused(q, k, v, visible)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
        """torch's fused kernel, with ALiBi where the slot asks for it; `visible` is bool."""
        if self.slot.alibi:
            bias = alibi_bias(q, k)
            visible = bias if visible is None else bias.masked_fill(~visible, float("-inf"))
        return dropout.attend(q, k, v, visible, self.dropout_p)

    def _causal(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        if self.slot.alibi:  # distances are those of the stored places
            n = q.shape[2]
            visible = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
            if mask is not None:
                # A padded query, whose output is zeroed, sees itself.
                visible = visible & (mask[:, None, None, :] | torch.eye(n, device=q.device).bool())
            return self._fused(q, k, v, visible)
        if mask is None:
            return dropout.attend(q, k, v, None, self.dropout_p, causal=True)
        # With the real tokens moved to the front, in their order, no real query sees padding, and
        # no n x n mask is needed.
        order = (~mask).int().argsort(dim=-1, stable=True)[:, None, :, None]  # (B, 1, n, 1)
        q, k, v = (t.take_along_dim(order, 2) for t in (q, k, v))
        out = dropout.attend(q, k, v, None, self.dropout_p, causal=True)
        return out.take_along_dim(order.argsort(2), 2)

    def causal_from(
        self, state: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask
    ) -> tuple[ValuesAndKeys, Tensor]:
        real = k.new_ones(len(k), k.shape[2], dtype=torch.bool) if mask is None else mask
        if state is None:
            return ValuesAndKeys(v, k, real), self._causal(q, k, v, mask)
        v, k = torch.cat([state.v, v], 2), torch.cat([state.k, k], 2)
        real = torch.cat([state.real, real], 1)
        n, m = q.shape[2], k.shape[2]
        earlier = torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n)
        out = self._fused(q, k, v, real[:, None, None, :] & earlier)
        return ValuesAndKeys(v, k, real), out

    def _weights(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        """(B, H, n, n) under the two public codes."""
        scores = q @ k.mT / self.head_dim**0.5
        if self.slot.alibi:
            scores = scores + alibi_bias(q, k)
        if mask is not None and self.profile == "published":
            scores = scores - 1e6 * ~mask[:, None, None, :]
        if mask is not None and self.profile == "official":
            # In float32 adding -1e10 absorbs the score; written out, it does so in any precision.
            scores = scores.masked_fill(~mask[:, None, None, :], -1e10)
            scores = scores.masked_fill(~mask[:, None, :, None], -1e10)
        return scores.softmax(-1)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.profile != "strict":
            return self._weights(q, k, mask)
        weights = torch.einsum("bhid,bhjd->bhij", q, k).div(self.head_dim**0.5)
        if self.slot.alibi:
            weights = weights + alibi_bias(q, k)
        if self.causal:
            weights = weights + torch.full_like(weights, float("-inf")).triu(1)
        if mask is not None:
            weights = weights.masked_fill(~mask[:, None, None, :], float("-inf"))
        weights = (weights - largest(weights)).exp()
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)
