"""Parts of a sequence, and the softmax over what is visible.

blocks     b tokens each, N = ceil(n / b) of them, rows: the tokens of a block
segments   m equal shares of the tokens, whose means are landmarks
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from luna import dropout as drop
from luna.base import Mask


def fill(t: Tensor, block: int) -> Tensor:
    """(..., n, .) -> (..., N b, .): zero (False) rows up to a whole number of blocks."""
    return F.pad(t, (0, 0, 0, -t.shape[-2] % block))


def official_fill(t: Tensor, block: int) -> Tensor:
    """Fill up as the code of the Long Range Arena does: b - n mod b rows, a whole block where b
    divides n. It fills its boolean mask up with -1e9, and as a boolean that is True."""
    extra = block - t.shape[-2] % block
    return F.pad(t, (0, 0, 0, extra), value=t.dtype == torch.bool)


def to_blocks(t: Tensor, block: int) -> Tensor:
    """(..., n, .) -> (..., N, b, .), the last block filled up."""
    return fill(t, block).unflatten(-2, (-1, block))


def real_tokens(mask: Mask, like: Tensor) -> Tensor:
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
    padding, or the values it takes are zero. Blocks of tokens have one dimension more: q
    (B, N, H, rows, d), and so on.
    """
    if q.dim() == 5:
        shape, visible = q.shape[:2], visible.expand(len(q), *visible.shape[1:])
        q, k, v, visible = (t.flatten(0, 1) for t in (q, k, v, visible))
        return attend_visible(q, k, v, visible, dropout).unflatten(0, shape)
    visible = visible | ~visible.any(-1, keepdim=True)
    return drop.attend(q, k, v, visible, dropout)


def dense_weights(q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
    """The matrix of `attend_visible` (B, H, n, n), a row that sees no key being 0."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    return scores.masked_fill(~visible, float("-inf")).softmax(-1).nan_to_num(0.0)


def masked_softmax(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over the visible columns. A row that sees none takes all of them instead of NaN: that
    is a row of an example without a token, whose values are 0."""
    if visible is None:
        return scores.softmax(-1)
    visible = visible | ~visible.any(-1, keepdim=True)
    return scores.masked_fill(~visible, float("-inf")).softmax(-1)


def members(starts: Tensor, mask: Mask, n: int) -> tuple[Tensor, Tensor]:
    """The tokens of each segment, from the ranks of valid tokens (B or 1, m + 1) at which segments
    start: positions and membership, both (B or 1, m, ceil(n / m))."""
    m = starts.shape[1] - 1
    rank = starts[:, :-1, None] + torch.arange(-(-n // m), device=starts.device)
    positions = rank.clamp(max=n - 1)
    if mask is not None:  # the token of rank r among the valid ones
        order = (~mask).byte().argsort(dim=-1, stable=True)  # (B, n), valid positions first
        positions = order.gather(-1, positions.flatten(1)).view_as(positions)
    return positions, rank < starts[:, 1:, None]


def valid_segments(mask: Mask, n: int, m: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`members` of m equal shares of each example's valid tokens: the one of rank r belongs to
    segment floor(r m_b / n_b), m_b = min(m, n_b), and segments from m_b on are empty."""
    valid = torch.full((1,), n, device=device) if mask is None else mask.sum(-1)
    n_b, a = valid.unsqueeze(-1), torch.arange(m + 1, device=device)
    m_b = n_b.clamp(1, m)
    return members(torch.minimum((a * n_b + m_b - 1) // m_b, n_b), mask, n)


def position_segments(n: int, m: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`members` of m equal shares of the positions, short ones of length n // m first."""
    a = torch.arange(m + 1, device=device)
    s, longer = divmod(n, m)
    return members((a * s + (a - (m - longer)).clamp(min=0)).unsqueeze(0), None, n)


def segment_means(x: Tensor, positions: Tensor, member: Tensor) -> Tensor:
    """x (B, H, n, d), positions and member (B or 1, m, s) -> (B, H, m, d); an empty segment is 0.

    Gathered rather than scattered: a sum by atomics is not deterministic on a GPU."""
    rows = torch.take_along_dim(x, positions.flatten(1)[:, None, :, None], 2)
    share = member.to(x.dtype) / member.sum(-1, keepdim=True).clamp(min=1)  # (B or 1, m, s)
    return (rows.unflatten(2, positions.shape[1:]) * share[:, None, :, :, None]).sum(3)
