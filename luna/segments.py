"""Equal segments of a sequence, their means, and a softmax in which padding has no part."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over the visible columns. A row that sees none takes all of them instead of NaN: that
    is a row of an example without a token, whose values are 0."""
    if visible is None:
        return scores.softmax(-1)
    visible = visible | ~visible.any(-1, keepdim=True)
    return scores.masked_fill(~visible, float("-inf")).softmax(-1)


def valid_starts(n_valid: Tensor, m: int) -> Tensor:
    """Ranks (B, m + 1) at which the segments start if the valid token of rank r belongs to segment
    floor(r m_b / n_b), m_b = min(m, n_b); segments from m_b on are empty."""
    n_b = n_valid.unsqueeze(-1)
    m_b = n_b.clamp(1, m)
    a = torch.arange(m + 1, device=n_valid.device)
    return torch.minimum((a * n_b + m_b - 1) // m_b, n_b)


def position_starts(n: int, m: int, device: torch.device) -> Tensor:
    """Positions (1, m + 1) at which the segments start: short ones of length n // m first."""
    a = torch.arange(m + 1, device=device)
    s, longer = divmod(n, m)
    return (a * s + (a - (m - longer)).clamp(min=0)).unsqueeze(0)


def members(starts: Tensor, mask: Tensor | None, n: int) -> tuple[Tensor, Tensor]:
    """The tokens of each segment, from the ranks of valid tokens (B or 1, m + 1) at which segments
    start: positions and membership, both (B or 1, m, ceil(n / m))."""
    m = starts.shape[1] - 1
    rank = starts[:, :-1, None] + torch.arange(-(-n // m), device=starts.device)
    positions = rank.clamp(max=n - 1)
    if mask is not None:  # the token of rank r among the valid ones
        order = (~mask).byte().argsort(dim=-1, stable=True)  # (B, n), valid positions first
        positions = order.gather(-1, positions.flatten(1)).view_as(positions)
    return positions, rank < starts[:, 1:, None]


def valid_segments(
    mask: Tensor | None, n: int, m: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """`members` of m equal shares of each example's valid tokens."""
    valid = torch.full((1,), n, device=device) if mask is None else mask.sum(-1)
    return members(valid_starts(valid, m), mask, n)


def segment_means(x: Tensor, positions: Tensor, member: Tensor) -> Tensor:
    """x (B, H, n, d), positions and member (B or 1, m, s) -> (B, H, m, d); an empty segment is 0.

    Gathered rather than scattered: a sum by atomics is not deterministic on a GPU."""
    rows = torch.take_along_dim(x, positions.flatten(1)[:, None, :, None], 2)
    share = member.to(x.dtype) / member.sum(-1, keepdim=True).clamp(min=1)  # (B or 1, m, s)
    return (rows.unflatten(2, positions.shape[1:]) * share[:, None, :, :, None]).sum(3)
