"""Local attention: a block of b tokens attends to itself and, if asked, to neighbouring blocks.

`pattern=block` is what the Long Range Arena paper describes. `pattern=strided` is what its code
computes: it cuts the sequence into (b, N) with the number of blocks last, so that token t attends
to all t' = t (mod N), across the whole sequence.

`official`   strided unless the option says otherwise; always b - n mod b filling rows (a whole
             block where b divides n), which count as real tokens; and a padding mask that is cut
             into contiguous blocks, so that it meets other tokens than its own
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from luna.base import KEY_BIAS, Attention, LunaError, Mask, Paper, Slot, at_least, register
from luna.blocks import (
    attend_visible,
    dense_weights,
    fill,
    neighbours,
    official_fill,
    real_tokens,
    to_blocks,
)

Pattern = Literal["block", "strided"]


def cut(t: Tensor, block: int, pattern: str) -> Tensor:
    """(B, H, n, .) -> (B, N, H, b, .); strided, block j holds the tokens j, N + j, 2N + j, ..."""
    if pattern == "block":
        return to_blocks(t, block).transpose(1, 2)
    return fill(t, block).unflatten(2, (block, -1)).permute(0, 3, 1, 2, 4)


def join(t: Tensor, pattern: str) -> Tensor:
    """The inverse of `cut`, filling rows included."""
    order = (0, 2, 1, 3, 4) if pattern == "block" else (0, 2, 3, 1, 4)
    return t.permute(*order).flatten(2, 3)


@register("local")
class Local(Attention):
    title = "Local attention"
    family = "softmax and sparse"
    marker = "P"
    paper = Paper(
        "Long Range Arena: A Benchmark for Efficient Transformers",
        2020,
        "https://arxiv.org/abs/2011.04006",
    )
    complexity = "O(n b d)"
    profiles = ("strict", "official")
    declared = Attention.declared.but(
        idle=KEY_BIAS,
        holes_are_time=True,
        uses_dropout=True,
        equivariant=False,
    )

    def __init__(
        self,
        slot: Slot,
        *,
        block: int = 64,
        look_back: int = 0,
        look_ahead: int = 0,
        pattern: Pattern | None = None,
    ):
        super().__init__(slot)
        at_least("local", 1, block=block)
        at_least("local", 0, look_back=look_back, look_ahead=look_ahead)
        self.official = self.profile == "official"
        if self.official and (look_back or look_ahead):
            raise LunaError("local.look_back and local.look_ahead must be 0 under profile official")
        self.block, self.look_back, self.look_ahead = block, look_back, look_ahead
        self.pattern = pattern or ("strided" if self.official else "block")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        n, look = q.shape[-2], (self.look_back, self.look_ahead)
        real = real_tokens(mask, q)
        if self.official:
            q, k, v, real = (official_fill(t, self.block) for t in (q, k, v, real))
        q, k, v = (cut(t, self.block, self.pattern) for t in (q, k, v))  # (B, N, H, b, .)
        real = cut(real, self.block, "block" if self.official else self.pattern)
        if self.official:
            q = q * real  # the code's -1e10 on a whole row leaves it uniform, as a zero query does

        k, v = neighbours(k, *look, rows=3), neighbours(v, *look, rows=3)
        visible = neighbours(real, *look, rows=3).mT  # (B or 1, N, 1, 1, keys)
        if self.official:
            visible = visible & real
        out = attend_visible(q, k, v, visible, self.dropout_p)  # (B, N, H, b, e)
        return join(out, self.pattern)[:, :, :n]

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        n, b = q.shape[-2], self.block
        N = n // b + 1 if self.official else -(-n // b)
        t = torch.arange(N * b, device=q.device)
        home, place = (t % N, t // N) if self.pattern == "strided" else (t // b, t % b)
        ahead = home[None, :] - home[:, None]
        visible = (-self.look_back <= ahead) & (ahead <= self.look_ahead)  # (N b, N b)

        real = real_tokens(mask, q)
        if not self.official:
            return dense_weights(q, k, visible[:n, :n] & real.mT)
        q, k, real = (official_fill(t, self.block) for t in (q, k, real))
        real = real[:, :, home * b + place]  # the entry of the mask that each token meets
        A = dense_weights(q, k, visible & real & real.mT)
        return torch.where(real, A, visible.to(A) / b)[..., :n, :n]
