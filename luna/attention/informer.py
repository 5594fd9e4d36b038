"""Informer's ProbSparse attention: the u most selective queries attend, the others take the mean.

Each query is scored on U keys sampled with replacement (Informer, section 3.1, with the maximum in
place of log-sum-exp),

    M_i = max_j q_i . k_j - (1 / divisor) sum_j q_i . k_j
    U = u = c ceil(ln n)     c = ceil(budget / ln max_len)

and the u largest M_i of each head are active: softmax(q_i k^T / sqrt(d)) v over all keys. The
others are the mean of v; no gradient flows through the choice.

`strict`     U and u those of max_len, samples among the real keys, divisor U
`published`  zhouhaoyi/Informer2020, in pkuzengqi/Skyformer: the mask ignored, divisor n, new
             samples in every forward, at most n samples and active queries. With masked=true the
             variant that this code holds and never calls: U = u = budget, samples among the first
             n_b positions (n_b the number of real ones), padding zeroed and not attended to
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from luna.base import LunaError, Paper, Slot, at_least, register
from luna.blocks import attend_visible, dense_weights, real_tokens
from luna.redraw import Redrawn

GATHERED = 2**23  # numbers of sampled keys held at a time: 32 MB in float32


@register("informer")
class Informer(Redrawn):
    paper = Paper(
        title="Informer: Beyond Efficient Transformer for Long Sequence Time-Series Forecasting",
        year=2021,
        url="https://arxiv.org/abs/2012.07436",
    )
    complexity = "O(n log(n) d)"
    profiles = ("strict", "published")
    equivariant = False  # the samples belong to positions

    def __init__(
        self,
        slot: Slot,
        *,
        budget: int = 128,
        divisor: Literal["U", "n"] | None = None,
        masked: bool | None = None,
    ):
        super().__init__(slot)
        at_least("informer", 1, budget=budget)
        strict = self.profile == "strict"
        if strict and masked is False:
            raise LunaError("informer.masked must be true under profile strict")
        self.budget = budget
        self.divisor = divisor or ("U" if strict else "n")
        self.masked = strict or bool(masked)
        self.samples: Tensor | None = None  # (n, U) or (B, n, U) keys: set it to fix the draw

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, x: Tensor | None
    ) -> Tensor:
        n = q.shape[-2]
        q, k, v, real = self._masked(q, k, v, mask)
        active = self.selectivity(q, k, real).topk(min(self.counts(n)[1], n)).indices.unsqueeze(-1)

        rows = q.gather(2, active.expand(-1, -1, -1, q.shape[-1]))  # (B, H, u, d)
        rows = attend_visible(rows, k, v, real.mT)
        mean = v.sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp_min(1)
        return mean.expand_as(v).scatter(2, active.expand(-1, -1, -1, v.shape[-1]), rows)

    def _masked(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v zeroed at padding, and which tokens are real; all, where the mask is ignored."""
        real = real_tokens(mask if self.masked else None, q)
        if self.masked:
            q, k, v = (t.masked_fill(~real, 0) for t in (q, k, v))
        return q, k, v, real

    def counts(self, n: int) -> tuple[int, int]:
        """U and u: sampled keys per query, active queries per head."""
        c = math.ceil(self.budget / math.log(max(self.max_len, 2)))
        if self.profile == "strict":
            U = u = c * math.ceil(math.log(max(self.max_len, 2)))
        elif self.masked:
            U = u = self.budget
        else:
            U = u = min(n, c * max(1, math.ceil(math.log(n))))
        return U, u

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
            if self.profile == "strict":  # a masked key scores 0; only an overriding table has any
                highest = scores.masked_fill(~real[batch[: len(real)], 0, at, 0], -math.inf)
            parts.append(highest.amax(-1) - scores.sum(-1) / self._divide_by(n, draw))
        M = torch.cat(parts, 2)
        return M.masked_fill(~real[..., 0], -math.inf) if self.profile == "strict" else M

    def _divide_by(self, n: int, draw: Tensor) -> int:
        return n if self.divisor == "n" else draw.shape[-1]

    @torch.compiler.disable  # generators do not compile
    def _draw(self, n: int) -> Tensor:
        """(n, U) uniform numbers in [0, 1), or the overriding table."""
        if self.samples is not None:
            return self.samples
        return torch.rand(n, self.counts(n)[0], generator=self.stream())

    def _valid_first(self, real: Tensor) -> Tensor:
        """The positions (B or 1, n), under strict an example's valid ones before the others."""
        order = (~real[:, 0, :, 0]).int()
        return (order if self.profile == "strict" else order * 0).argsort(dim=-1, stable=True)

    def _positions(self, draw: Tensor, real: Tensor, valid: Tensor) -> Tensor:
        """Key positions (B or 1, rows, U): the numbers drawn are ranks among the valid keys."""
        if self.samples is not None:
            return draw if draw.dim() == 3 else draw.unsqueeze(0)
        n_b = real.sum((1, 2, 3))[:, None, None]  # (B or 1, 1, 1)
        rank = (draw * n_b).long().minimum(n_b - 1).clamp_min(0)  # a product may round up to n_b
        return valid.gather(1, rank.flatten(1)).view_as(rank)

    def _matrix(self, q: Tensor, k: Tensor, mask: Tensor | None, x: Tensor | None) -> Tensor:
        n = q.shape[-2]
        q, k, _, real = self._masked(q, k, k, mask)
        draw = self._draw(n).to(q.device)
        at = self._positions(draw, real, self._valid_first(real)).unsqueeze(1)
        scores = torch.einsum("bhid,bhjd->bhij", q, k)
        sampled = scores.gather(-1, at.expand(*scores.shape[:2], -1, -1))  # (B, H, n, U)
        M = -sampled.sum(-1) / self._divide_by(n, draw)
        if self.profile == "strict":
            scores = scores.masked_fill(~real.mT, -math.inf)
            sampled = scores.gather(-1, at.expand(*scores.shape[:2], -1, -1))
            M = M.masked_fill(~real[..., 0], -math.inf)
        M = M + sampled.amax(-1)
        active = (M.unsqueeze(-2) > M.unsqueeze(-1)).sum(-1) < self.counts(n)[1]
        mean = real.mT.to(scores) / real.sum(2, keepdim=True).clamp_min(1)
        return torch.where(active.unsqueeze(-1), dense_weights(q, k, real.mT), mean)
