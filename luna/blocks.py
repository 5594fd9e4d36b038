"""Attention inside blocks of the sequence: what the sparse methods share.

b block length   N = ceil(n / b) blocks   rows: the tokens of a block
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def fill(t: Tensor, block: int) -> Tensor:
    """(..., n, .) -> (..., N b, .): zero (False) rows up to a whole number of blocks."""
    return F.pad(t, (0, 0, 0, -t.shape[-2] % block))


def official_fill(t: Tensor, block: int) -> Tensor:
    """The same in the code of the Long Range Arena: always b - n mod b rows, a whole block where b
    divides n. It fills its boolean mask up with -1e9, and as a boolean that is True."""
    extra = block - t.shape[-2] % block
    return F.pad(t, (0, 0, 0, extra), value=t.dtype == torch.bool)


def to_blocks(t: Tensor, block: int) -> Tensor:
    """(..., n, .) -> (..., N, b, .), the last block filled up."""
    return fill(t, block).unflatten(-2, (-1, block))


def real_tokens(mask: Tensor | None, like: Tensor) -> Tensor:
    """The mask as a column beside `like` (B, H, n, .): (B or 1, 1, n, 1)."""
    if mask is None:
        return torch.ones(1, 1, like.shape[-2], 1, dtype=torch.bool, device=like.device)
    return mask[:, None, :, None]


def neighbours(t: Tensor, back: int, ahead: int, rows: int) -> Tensor:
    """Every block of t (B, N, ...) joined along dimension `rows` with the `back` blocks before and
    the `ahead` blocks after it; beyond the ends there are zeros (False)."""
    if back == ahead == 0:
        return t
    N = t.shape[1]
    t = F.pad(t, [0, 0] * (t.dim() - 2) + [back, ahead])
    return torch.cat([t[:, shift : shift + N] for shift in range(back + 1 + ahead)], rows)


def attend_visible(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, dropout: float = 0.0
) -> Tensor:
    """softmax(q k^T / sqrt(d)) v over the visible keys, without storing the scores.

    q (B, H, rows, d), k and v (B, H, keys, .), visible broadcasts to (B, H, rows, keys). A row
    that sees no key takes all of them instead of becoming NaN: under the mask rule such a row is
    padding, or the values it takes are zero.
    """
    visible = visible | ~visible.any(-1, keepdim=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout)


def dense_weights(q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
    """The matrix of `attend_visible` (B, H, n, n), a row that sees no key being 0."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    return scores.masked_fill(~visible, float("-inf")).softmax(-1).nan_to_num(0.0)
