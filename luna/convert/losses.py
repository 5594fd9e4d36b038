"""Hedgehog's distillation loss: the cross-entropy between the teacher's attention rows and the
student's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luna.base import autocast_off
from luna.convert.host import converted

FLOOR = 1e-8  # relu features give exact zeros: a row's loss is at most -log(1e-8) = 18.42


def softmax_rows(
    q: Tensor, k: Tensor, mask: Tensor | None = None, *, causal: bool = False
) -> Tensor:
    """The teacher's matrix T (B, H, n, n): softmax of q k^T / sqrt(d) over real (and, if causal, no
    later) keys; 0 in rows that see no key."""
    hidden = torch.zeros(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    if causal:
        hidden = hidden | torch.ones_like(hidden).triu(1)
    if mask is not None:
        hidden = hidden | ~mask[:, None, None, :]
    with autocast_off(q.device):
        q, k = _full(q), _full(k)
        scores = (q @ k.mT) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        return scores.softmax(-1).masked_fill(hidden, 0)


def teacher_rows(module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """The matrix of the softmax attention that this converted layer replaces."""
    return softmax_rows(q, k, mask, causal=converted(module).attention.causal)


def row_cross_entropy(teacher: Tensor, student: Tensor, *, floor: float = FLOOR) -> Tensor:
    """-sum_j T_ij log max(A_ij, floor) of every row: T, A (B, H, n, n) -> (B, H, n)."""
    with autocast_off(teacher.device):
        return -(_full(teacher) * _full(student).clamp_min(floor).log()).sum(-1)


def row_entropy(teacher: Tensor) -> Tensor:
    """-sum_j T_ij log T_ij (B, H, n), with 0 log 0 = 0: the lower bound of the cross-entropy. Their
    difference is the KL divergence."""
    with autocast_off(teacher.device):
        return torch.special.entr(_full(teacher)).sum(-1)


def attention_cross_entropy(
    teacher: Tensor, student: Tensor, mask: Tensor | None = None, *, floor: float = FLOOR
) -> Tensor:
    """Minus the mean over examples, heads and real queries i of sum_j T_ij log max(A_ij, floor).

    T and A are (B, H, n, n). The mean weighs every real token equally, whatever the length of its
    example. The loss is at least the teacher's entropy, `attention_cross_entropy(teacher, teacher,
    mask)`; the rest is the KL divergence.
    """
    rows = row_cross_entropy(teacher, student, floor=floor)
    if mask is None:
        return rows.mean()
    real = mask[:, None, :].expand_as(rows)
    return rows.masked_fill(~real, 0).sum() / real.sum().clamp_min(1)


def real_queries(q: Tensor, mask: Tensor | None) -> Tensor:
    """1.0 at real queries, 0.0 at padded ones: (B, 1, n)."""
    if mask is None:
        return q.new_ones(q.shape[0], 1, q.shape[2], dtype=torch.float32)
    return mask[:, None, :].float()


def _full(t: Tensor) -> Tensor:
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t
