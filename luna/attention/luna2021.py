"""Luna, Linear Unified Nested Attention (Ma et al., 2021): not LUNA of 2025, which is `luna`.

    p in R^(l x d), learned, per head
    pack     G = softmax(p k^T / sqrt(d))  (l, n)      K' = G k      V' = G v
    unpack   out = softmax(q K'^T / sqrt(d)) V'

The original (XuezheMax/fairseq-apollo) packs hidden states and projects what it packed: packing
mixes tokens and a projection mixes channels, so that their order does not matter. Left out: the
packed sequence is not handed to the next layer, where it would be the next p; k scores both steps;
p is not cut to the longest example of a batch. The causal form is the paper's, with omega = elu + 1
(a version of the original has softplus with beta = ln 2) in place of the first softmax and means
over the t tokens up to each row:

    G_j = omega(p k_j / sqrt(d))     w_t = softmax(q_t (1 / t) sum_j k_j G_j / sqrt(d))
    out_t = w_t (1 / t) sum_j G_j v_j
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from luna.base import KEY_BIAS, Mask, Paper, Slot, at_least, register, zero_padding
from luna.blocks import masked_softmax
from luna.streaming import StreamingAttention, tokens_seen
from luna.sums import causal_linear_sums


class PackedState(NamedTuple):
    V: Tensor  # (B, H, l, e) sum of G_j v_j
    K: Tensor  # (B, H, d, l) sum of k_j G_j
    t: Tensor  # (B, 1, 1)


@register("luna2021")
class Luna2021(StreamingAttention):
    title = "Luna (2021)"
    family = "low rank"
    marker = "p"
    paper = Paper("Luna: Linear Unified Nested Attention", 2021, "https://arxiv.org/abs/2106.01540")
    complexity = "O(n l (d + e))"
    declared = StreamingAttention.declared.but(
        idle=KEY_BIAS,
        cross_form=True,
        exempt={"causal": "it packs with elu + 1 and means, the bidirectional form with a softmax"},
    )

    def __init__(self, slot: Slot, *, packed: int = 256):
        super().__init__(slot)
        at_least("luna2021", 1, packed=packed)
        p = torch.randn(slot.n_heads, packed, slot.head_dim)
        self.p = nn.Parameter(p * (slot.n_heads * slot.head_dim) ** -0.5)

    def pack(self, k: Tensor, mask: Mask) -> Tensor:
        """The scores (B, H, l, n) or, in the causal form, the weights G_j as rows (B, H, n, l)."""
        scores = self.p.to(k.dtype) @ k.mT * self.head_dim**-0.5
        if self.causal:
            return zero_padding(elu(scores.mT) + 1, mask)
        return masked_softmax(scores, None if mask is None else mask[:, None, None, :])

    def cross(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Mask) -> Tensor:
        G = self.pack(k, key_mask)
        return (q @ (G @ k).mT * self.head_dim**-0.5).softmax(-1) @ (G @ v)

    def causal_from(
        self, state: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask
    ) -> tuple[PackedState, Tensor]:
        G, t = self.pack(k, mask), tokens_seen(state and state.t, q, mask)
        mean = t.clamp_min(1).reciprocal().unsqueeze(-1)  # (B, 1, n, 1)
        K, V = k.mT @ G, G.mT @ v
        scores, _ = causal_linear_sums(q, k, G, self.chunk)
        if state:
            scores, K = scores + q @ state.K, K + state.K
        w = (scores * mean * self.head_dim**-0.5).softmax(-1)  # (B, H, n, l)
        out, _ = causal_linear_sums(w, G, v, self.chunk)
        if state:
            out, V = out + w @ state.V, V + state.V
        return PackedState(V, K, t[..., -1:]), out * mean

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        G, scale = self.pack(k, mask), self.head_dim**-0.5
        if not self.causal:
            K = torch.einsum("bhrj,bhjd->bhrd", G, k)
            return (torch.einsum("bhid,bhrd->bhir", q, K) * scale).softmax(-1) @ G
        mean = tokens_seen(None, q, mask).clamp_min(1).reciprocal().unsqueeze(-1)
        scores = (q @ k.mT).tril() @ G  # (B, H, n, l)
        return ((scores * mean * scale).softmax(-1) @ G.mT).tril() * mean
