"""Longformer: a token attends to a window around it; global tokens see and are seen by all.

    S_ij = q_i . k_j / sqrt(d)   for -left <= j - i <= right, for j global and for i global
           -inf                  otherwise
    out = softmax(S) v

The default window is that of the Long Range Arena's code: 512 keys, 255 to the left and 256 to the
right, no global token. In allenai/longformer a window of w means w to each side, and global rows
have projections of their own, which are left out here.

A chunk of c queries sees whole chunks of c keys and the band is cut out of those, so the work is
at most (c ceil(left/c) + c + c ceil(right/c)) / (left + 1 + right) times what the definition
needs.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from luna.base import KEY_BIAS, Attention, LunaError, Mask, Paper, Slot, at_least, register
from luna.blocks import attend_visible, dense_weights, neighbours, real_tokens, to_blocks


@register("longformer")
class Longformer(Attention):
    title = "Longformer"
    family = "softmax and sparse"
    marker = "X"
    paper = Paper(
        "Longformer: The Long-Document Transformer", 2020, "https://arxiv.org/abs/2004.05150"
    )
    complexity = "O(n w d)"
    declared = Attention.declared.but(
        idle=KEY_BIAS,
        holes_are_time=True,
        uses_dropout=True,
        equivariant=False,
    )
    differences_from_profile: ClassVar[dict[str, str]] = {
        "official": "the released code also has three projections for global tokens in each layer "
        "(3 d_model qkv_dim parameters), unused where there are no such tokens, and lets a padded "
        "query attend to all positions alike"
    }

    positions: Tensor  # of the global tokens

    def __init__(
        self,
        slot: Slot,
        *,
        left: int = 255,
        right: int = 256,
        global_tokens: list[int] | tuple[int, ...] = (),
    ):
        super().__init__(slot)
        at_least("longformer", 0, left=left, right=right)
        if any(not 0 <= g < self.max_len for g in global_tokens):
            raise LunaError(
                f"longformer.global_tokens must be positions from 0 to {self.max_len - 1}, "
                f"got {list(global_tokens)}"
            )
        self.left, self.right = left, right
        self.global_tokens = sorted(set(global_tokens))
        positions = torch.tensor(self.global_tokens, dtype=torch.long)
        self.register_buffer("positions", positions, persistent=False)

    def flops(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """2 (d + e) for each of n tokens and each key of its window; a global token is a key and a
        row of n more. The code computes whole chunks and cuts the band out."""
        n = q.shape[-2]
        n_globals = sum(g < n for g in self.global_tokens)
        keys = min(self.left + 1 + self.right, n) + 2 * n_globals
        return len(q) * self.n_heads * 2 * n * keys * (q.shape[-1] + v.shape[-1])

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        n = q.shape[-2]
        c, back, ahead = self._chunks(n)
        G = self.positions[: sum(g < n for g in self.global_tokens)]
        real = real_tokens(mask, q)  # (B or 1, 1, n, 1)
        in_window = real.index_fill(2, G, False)  # a global key is seen once, not twice

        chunk = [to_blocks(t, c).transpose(1, 2) for t in (q, k, v, in_window)]  # (B, N, H, c, .)
        q_c, k_c, v_c, seen = (chunk[0], *(neighbours(t, back, ahead, rows=3) for t in chunk[1:]))
        visible = seen.mT & self._band(c, back, ahead, q.device)  # (B or 1, N, 1, c, keys)
        if self.global_tokens:
            N = q_c.shape[1]
            k_g, v_g, real_g = (t[:, None, :, G].expand(-1, N, -1, -1, -1) for t in (k, v, real))
            k_c, v_c = torch.cat([k_c, k_g], 3), torch.cat([v_c, v_g], 3)
            visible = torch.cat([visible, real_g.mT.expand(-1, -1, -1, c, -1)], 4)

        out = attend_visible(q_c, k_c, v_c, visible, self.dropout_p)  # (B, N, H, c, e)
        out = out.transpose(1, 2).flatten(2, 3)[:, :, :n]
        if not self.global_tokens:
            return out
        return out.index_copy(2, G, attend_visible(q[:, :, G], k, v, real.mT, self.dropout_p))

    def _chunks(self, n: int) -> tuple[int, int, int]:
        """Chunk length c and how many chunks to look back and ahead: c is about a quarter of the
        window, or n where that would see all n keys anyway."""
        left, right = min(self.left, n - 1), min(self.right, n - 1)
        c = min(max(16, 1 << ((left + right) // 4).bit_length()), 128)
        back, ahead = -(-left // c), -(-right // c)
        return (c, back, ahead) if (back + 1 + ahead) * c < n else (n, 0, 0)

    def _band(self, c: int, back: int, ahead: int, device: torch.device) -> Tensor:
        """(c, keys): which keys of its own and the neighbouring chunks lie in a row's window."""
        row = torch.arange(c, device=device)[:, None]
        key = torch.arange(-back * c, (ahead + 1) * c, device=device)[None, :]
        return (-self.left <= key - row) & (key - row <= self.right)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        n = q.shape[-2]
        t = torch.arange(n, device=q.device)
        offset = t[None, :] - t[:, None]
        is_global = torch.isin(t, self.positions)
        visible = (-self.left <= offset) & (offset <= self.right) | is_global | is_global[:, None]
        return dense_weights(q, k, visible & real_tokens(mask, q).mT)
