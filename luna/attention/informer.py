"""Informer's ProbSparse attention: the u most selective queries attend, the others take the mean.

Each query is scored on U keys sampled with replacement (Informer, section 3.1, with the maximum in
place of log-sum-exp),

    M_i = max_j q_i . k_j - (1 / divisor) sum_j q_i . k_j
    U = u = c ceil(ln n)     c = ceil(budget / ln max_len)

and the u largest M_i of each head are active: softmax(q_i k^T / sqrt(d)) v over all keys. The
others are the mean of v; no gradient flows through the choice.

`strict`     U and u those of max_len, samples among the real keys, divisor U
`published`  zhouhaoyi/Informer2020, in pkuzengqi/Skyformer: the mask ignored, divisor n, new
             samples in every forward, at most n samples and active queries
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from luna.base import KEY_BIAS, Mask, Paper, Redrawn, Slot, at_least, register, uncompiled
from luna.blocks import attend_visible, dense_weights, real_tokens

GATHERED = 2**23  # numbers of sampled keys held at a time: 32 MB in float32


@register("informer")
class Informer(Redrawn):
    title = "Informer"
    family = "softmax and sparse"
    marker = "^"
    paper = Paper(
        "Informer: Beyond Efficient Transformer for Long Sequence Time-Series Forecasting",
        2021,
        "https://arxiv.org/abs/2012.07436",
    )
    complexity = "O(n log(n) d)"
    profiles = ("strict", "published")
    declared = Redrawn.declared.but(
        draws=True,
        idle=KEY_BIAS,
        holes_are_time=True,
        equivariant=False,  # the samples belong to positions
    )

    def __init__(self, slot: Slot, *, budget: int = 128):
        super().__init__(slot)
        at_least("informer", 1, budget=budget)
        self.budget, self.strict = budget, self.profile == "strict"
        self.samples: Tensor | None = None  # (n, U) or (B, n, U) keys: set it to fix the draw

    def flops(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """2 n U d of the sampled scores, 2 u n (d + e) of the active rows. The code computes these,
        but the sampled scores without gradient."""
        n, d, e = q.shape[-2], q.shape[-1], v.shape[-1]
        U = self.count(n)
        return len(q) * self.n_heads * n * (2 * U * d + 2 * min(U, n) * (d + e))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        n = q.shape[-2]
        real = real_tokens(mask if self.strict else None, q)
        active = self.selectivity(q, k, real).topk(min(self.count(n), n)).indices.unsqueeze(-1)

        rows = q.gather(2, active.expand(-1, -1, -1, q.shape[-1]))  # (B, H, u, d)
        rows = attend_visible(rows, k, v, real.mT)
        mean = v.sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp_min(1)
        return mean.expand_as(v).scatter(2, active.expand(-1, -1, -1, v.shape[-1]), rows)

    def count(self, n: int) -> int:
        """U = u: sampled keys per query, and active queries per head."""
        c = math.ceil(self.budget / math.log(max(self.max_len, 2)))
        if self.strict:
            return c * math.ceil(math.log(max(self.max_len, 2)))
        return min(n, c * max(1, math.ceil(math.log(n))))

    @torch.no_grad()
    def selectivity(self, q: Tensor, k: Tensor, real: Tensor) -> Tensor:
        """M (B, H, n), some queries at a time: the keys of all would be n U d numbers per head."""
        B, H, n, d = q.shape
        batch = torch.arange(B, device=q.device)[:, None, None, None]
        head = torch.arange(H, device=q.device)[:, None, None]
        draw, valid = self._draw(n).to(q.device), self._valid_first(real)
        part = max(1, GATHERED // (B * H * d * draw.shape[-1]))
        parts = []
        for rows, of_rows in zip(q.split(part, 2), draw.split(part, -2), strict=True):
            at = self._positions(of_rows, real, valid).unsqueeze(1)  # (B or 1, 1, part, U)
            scores = (rows.unsqueeze(-2) @ k[batch, head, at].mT).squeeze(-2)  # (B, H, part, U)
            highest = scores
            if self.strict:  # a masked key scores 0; only an overriding table has any
                highest = scores.masked_fill(~real[batch[: len(real)], 0, at, 0], -math.inf)
            parts.append(highest.amax(-1) - scores.sum(-1) / self._divide_by(n, draw))
        M = torch.cat(parts, 2)
        return M.masked_fill(~real[..., 0], -math.inf) if self.strict else M

    def _divide_by(self, n: int, draw: Tensor) -> int:
        return draw.shape[-1] if self.strict else n

    @uncompiled  # generators do not compile
    def _draw(self, n: int) -> Tensor:
        """(n, U) uniform numbers in [0, 1), or the overriding table."""
        if self.samples is not None:
            return self.samples
        return torch.rand(n, self.count(n), generator=self.stream())

    def _valid_first(self, real: Tensor) -> Tensor:
        """The positions (B or 1, n), under strict an example's valid ones before the others."""
        order = (~real[:, 0, :, 0]).int()
        return (order if self.strict else order * 0).argsort(dim=-1, stable=True)

    def _positions(self, draw: Tensor, real: Tensor, valid: Tensor) -> Tensor:
        """Key positions (B or 1, rows, U): the numbers drawn are ranks among the valid keys."""
        if self.samples is not None:
            return draw if draw.dim() == 3 else draw.unsqueeze(0)
        n_b = real.sum((1, 2, 3))[:, None, None]  # (B or 1, 1, 1)
        rank = (draw * n_b).long().minimum(n_b - 1).clamp_min(0)  # a product may round up to n_b
        return valid.gather(1, rank.flatten(1)).view_as(rank)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        n = q.shape[-2]
        real = real_tokens(mask if self.strict else None, q)
        draw = self._draw(n).to(q.device)
        at = self._positions(draw, real, self._valid_first(real)).unsqueeze(1)
        scores = torch.einsum("bhid,bhjd->bhij", q, k)
        sampled = scores.gather(-1, at.expand(*scores.shape[:2], -1, -1))  # (B, H, n, U)
        M = -sampled.sum(-1) / self._divide_by(n, draw)
        if self.strict:
            scores = scores.masked_fill(~real.mT, -math.inf)
            sampled = scores.gather(-1, at.expand(*scores.shape[:2], -1, -1))
            M = M.masked_fill(~real[..., 0], -math.inf)
        M = M + sampled.amax(-1)
        active = (M.unsqueeze(-2) > M.unsqueeze(-1)).sum(-1) < self.count(n)
        mean = real.mT.to(scores) / real.sum(2, keepdim=True).clamp_min(1)
        return torch.where(active.unsqueeze(-1), dense_weights(q, k, real.mT), mean)
