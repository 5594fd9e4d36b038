"""TransNormer: softmax within blocks in the early layers, then linear attention without a divisor.

    DiagAttention   layers 0 .. n_layers // 2 - 1   softmax(q k^T / sqrt(d)) v, in blocks of b
    NormAttention   the others                      norm(sum_j phi(q) . phi(k_j) v_j), phi = elu + 1

norm divides by the root mean square over the channels of all heads, each of which then has a gain.
This is the paper's T2, by the authors' code of the Long Range Arena (OpenNLPLab/lra), whose scripts
normalise over the batch instead. Left out: T1 (elu, and a normalised relu for the softmax), and the
rotation of q and k by their positions, which a protocol may add (`positions=rotary`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from luna.base import KEY_BIAS, AttentionTraits, Mask, Paper, Slot, at_least, register
from luna.blocks import attend_visible, dense_weights, real_tokens, to_blocks
from luna.linear import KernelAttention


class OpenBlock(NamedTuple):
    """Streaming state of DiagAttention: the t < b tokens since the last whole block."""

    v: Tensor  # (B, H, t, e)
    k: Tensor  # (B, H, t, d)
    real: Tensor  # (B, 1, t, 1) bool


@register("transnormer")
class TransNormer(KernelAttention):
    title = "TransNormer"
    family = "fixed kernels"
    marker = "p"
    paper = Paper("The Devil in Linear Transformer", 2022, "https://arxiv.org/abs/2210.10340")
    complexity = "O(n (b + d) e)"
    declared = KernelAttention.declared.but(
        layers_differ=True,
        normalise_form=False,  # it is its own
    )

    def __init__(self, slot: Slot, *, block: int = 64):
        diagonal = slot.layer < slot.n_layers // 2
        super().__init__(slot, normalise="sum" if diagonal else "rms")
        at_least("transnormer", 1, block=block)
        self.block, self.diagonal, self.feature_dim = block, diagonal, slot.head_dim
        self.tokenwise = self.rms_of_all_heads = not diagonal

    def _traits(self) -> AttentionTraits:
        facts = super()._traits()
        if self.diagonal:
            return facts.but(
                equivariant=False,
                holes_are_time=True,  # its blocks are of stored places
                cross_form=False,
                uses_dropout=True,
                idle=KEY_BIAS,
            )
        return facts.but(mixes_heads=True)

    def phi(self, x: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return F.elu(x) + 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.diagonal:
            return self._within_blocks(q, k, v, real_tokens(mask, q))
        return super().attend(q, k, v, mask, x)

    def _within_blocks(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
        n, b = q.shape[2], min(self.block, q.shape[2])
        q, k, v, real = (to_blocks(t, b).transpose(1, 2) for t in (q, k, v, real))
        visible = real.mT  # (B or 1, N, 1, 1, b)
        if self.causal:
            visible = visible & visible.new_ones(b, b).tril()
        out = attend_visible(q, k, v, visible, self.dropout_p)  # (B, N, H, b, e)
        return out.transpose(1, 2).flatten(2, 3)[:, :, :n]

    def causal_from(
        self, state: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask
    ) -> tuple[Any, Tensor]:
        if not self.diagonal:
            return super().causal_from(state, q, k, v, mask)
        n, real = q.shape[2], real_tokens(mask, q).expand(len(q), -1, -1, -1)
        if state is not None:
            v, k, real = (torch.cat(ts, 2) for ts in zip(state, (v, k, real), strict=True))
            q = F.pad(q, (0, 0, k.shape[2] - n, 0))
        out = self._within_blocks(q, k, v, real)[:, :, -n:]
        start = k.shape[2] - k.shape[2] % self.block
        return OpenBlock(*(t[:, :, start:] for t in (v, k, real))), out

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if not self.diagonal:
            return super()._matrix(q, k, mask, x)
        block = torch.arange(q.shape[2], device=q.device) // self.block
        visible = (block[:, None] == block) & real_tokens(mask, q).mT
        return dense_weights(q, k, visible.tril() if self.causal else visible)
