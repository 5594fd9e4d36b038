"""BigBird: a block of b tokens attends to its neighbours, the two ends and R random blocks.

    keys of block i = {0, i-1, i, i+1, N-1} + random(i)   for 0 < i < N-1
    keys of the blocks 0 and N-1 = all

with one softmax over the gathered keys. The random blocks are the graph, (H, N, R) block numbers,
-1 for none; where a public code finds fewer than R targets, and fails, there are fewer here.

`strict`     any blocks outside the set, each once; drawn at construction
`published`  huggingface/transformers, one seed for all layers: for n = 1024, 3072, 4096 the targets
             lie within the first 1024 tokens, for other n within the first 2 R + 5 blocks; at
             n = 1024 the rows N-3 and N-2 may draw from their own window, whose keys count twice
`official`   targets lie within the first 1024 tokens for every n; b - n mod b filling rows, zeros
             that count as real tokens: the last global block may be nothing else
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from luna.base import (
    KEY_BIAS,
    Attention,
    AttentionTraits,
    Mask,
    Paper,
    Slot,
    at_least,
    register,
    uncompiled,
    zero_padding,
)
from luna.blocks import attend_visible, fill, official_fill, real_tokens, to_blocks

PUBLISHED_SEED = 42
CAPPED_LENGTHS = (1024, 3072, 4096)  # those with targets within the first CAP tokens
CAP = 1024


@register("bigbird")
class BigBird(Attention):
    title = "BigBird"
    family = "softmax and sparse"
    marker = "s"
    paper = Paper(
        "Big Bird: Transformers for Longer Sequences", 2020, "https://arxiv.org/abs/2007.14062"
    )
    complexity = "O(n (5 + R) b d)"
    profiles = ("strict", "published", "official")
    declared = Attention.declared.but(
        idle=KEY_BIAS,
        holes_are_time=True,
        equivariant=False,
        bound_to_max_len=True,  # under strict: the graph is drawn at construction
    )

    rank: Tensor  # (H, N, N) under strict

    def _traits(self) -> AttentionTraits:
        return self.declared.but(bound_to_max_len=self.profile == "strict")

    def __init__(self, slot: Slot, *, block: int = 64, random_blocks: int = 3):
        super().__init__(slot)
        at_least("bigbird", 1, block=block)
        at_least("bigbird", 0, random_blocks=random_blocks)
        self.block, self.R = block, random_blocks
        self.graph_seed = PUBLISHED_SEED if self.profile == "published" else slot.seed
        self.graph: Tensor | None = None  # (H, N, R): set it to override the drawn one
        self._drawn: dict[int, Tensor] = {}  # the public codes' graphs, by n

        if self.profile == "strict":
            # One draw holds the graph of every N: a row takes those R of its candidates that rank
            # lowest.
            N = -(-self.max_len // block)
            generator = torch.Generator().manual_seed(self.graph_seed)
            rank = torch.rand(self.n_heads, N, N, generator=generator).argsort(-1).int()
            self.register_buffer("rank", rank)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        n, b = q.shape[-2], self.block
        q, k, v, real = self._filled(q, k, v, real_tokens(mask, q))
        graph = self.random_graph(q.shape[-2], q.device)  # (H, N, R)
        N = graph.shape[1]

        q_blocks = to_blocks(q, b)  # (B, H, N, b, d)
        ends = q_blocks[:, :, sorted({0, N - 1})].flatten(2, 3)
        out = [attend_visible(ends, k, v, real.mT).unflatten(2, (-1, b))]
        for rows, fixed in fixed_blocks(N, q.device):
            keys = torch.cat([fixed.expand(self.n_heads, -1, -1), graph[:, rows]], -1)
            out.append(self._attend_rows(q_blocks[:, :, rows], k, v, real, keys))
        # From the outside in: blocks 0 and N-1, 1 and N-2, the others.
        first, last = [t[:, :, :1] for t in out[:2]], [t[:, :, 1:] for t in out[1::-1]]
        joined = torch.cat(first + out[2:] + last, 2).flatten(2, 3)[:, :, :n]
        return zero_padding(joined, mask)

    def _attend_rows(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor, keys: Tensor) -> Tensor:
        """Query blocks (B, H, rows, b, d), each with key blocks of its own, (H, rows, S)."""
        H, rows, S = keys.shape
        N = k.shape[-2] // self.block
        head = torch.arange(H, device=keys.device)[:, None, None]
        picked = (head * N + keys.clamp_min(0)).flatten()
        k, v = (  # (B, H rows, S b, .)
            to_blocks(t, self.block)
            .flatten(1, 2)
            .index_select(1, picked)
            .unflatten(1, (-1, S))
            .flatten(2, 3)
            for t in (k, v)
        )
        real = to_blocks(real, self.block)[:, 0, keys.clamp_min(0), :, 0]  # (B or 1, H, rows, S, b)
        visible = (real & (keys >= 0).unsqueeze(-1)).flatten(3, 4).flatten(1, 2).unsqueeze(2)
        return attend_visible(q.flatten(1, 2), k, v, visible).unflatten(1, (H, rows))

    def _filled(self, *tensors: Tensor) -> list[Tensor]:
        """q, k, v and the mask in whole blocks."""
        how = official_fill if self.profile == "official" else fill
        return [how(t, self.block) for t in tensors]

    def random_graph(self, n: int, device: torch.device) -> Tensor:
        """The random blocks (H, N, R or less) of n tokens, n a multiple of the block."""
        N = n // self.block
        if self.graph is not None:
            return self.graph.to(device)
        if self.profile != "strict":
            if n not in self._drawn:
                self._drawn[n] = self._public_graph(n)
            return self._drawn[n].to(device)
        row = torch.arange(N, device=device)[:, None]
        column = torch.arange(N, device=device)[None, :]
        taken = ((row - column).abs() <= 1) | (column == 0) | (column == N - 1)
        worst = self.rank.shape[1]
        rank = self.rank[:, :N, :N].masked_fill(taken, worst)
        rank, graph = rank.topk(min(self.R, N), largest=False)
        return graph.masked_fill(rank == worst, -1)

    @uncompiled  # NumPy's generator does not compile
    def _public_graph(self, n: int) -> Tensor:
        import numpy as np  # the strict profile needs torch alone

        H, N, R, official = self.n_heads, n // self.block, self.R, self.profile == "official"
        rng, rows = np.random.RandomState(self.graph_seed), range(1, N - 1)
        if official or n in CAPPED_LENGTHS:
            cap = min(n, CAP)
            last = cap // self.block - 1 if cap > 2 * self.block else N - 1
            draws = (((h, i), capped(i, N, last, official, rng)) for h in range(H) for i in rows)
        else:
            reach = min(N, 2 * R + 5)
            draws = (((h, i), of_the_first(i, reach, rng)) for i in rows for h in range(H))
        graph = torch.full((H, N, R), -1)
        for place, blocks in draws:
            graph[place][: len(blocks)] = torch.as_tensor(blocks[:R], dtype=torch.long)
        return graph

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        n = q.shape[-2]
        q, k, _, real = self._filled(q, k, k, real_tokens(mask, q))
        graph = self.random_graph(q.shape[-2], q.device)
        N = graph.shape[1]
        i, j = torch.arange(N, device=q.device)[:, None], torch.arange(N, device=q.device)[None, :]
        ends = (i == 0) | (i == N - 1)
        fixed = ends | ((i - j).abs() <= 1) | (j == 0) | (j == N - 1)
        drawn = (graph.unsqueeze(-1) == torch.arange(N, device=q.device)).sum(2)  # (H, N, N)
        times = fixed + drawn.masked_fill(ends, 0)  # how often block i counts the keys of block j
        times = times.repeat_interleave(self.block, 1).repeat_interleave(self.block, 2)

        scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        scores = scores + (times * real.mT).to(scores).log()
        return zero_padding(scores.softmax(-1).nan_to_num(0.0)[..., :n, :n], mask)


def fixed_blocks(N: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """(rows, {0, i-1, i, i+1, N-1}) for the rows 1 ... N-2: first those two, whose sets are
    smaller, then the others."""
    groups = [sorted({1, N - 2})] if N > 2 else []
    groups += [list(range(2, N - 2))] if N > 4 else []
    sets = [[sorted({0, i - 1, i, i + 1, N - 1}) for i in rows] for rows in groups]
    return [
        (torch.tensor(rows, device=device), torch.tensor(blocks, device=device))
        for rows, blocks in zip(groups, sets, strict=True)
    ]


def capped(i: int, N: int, last: int, official: bool, rng: Any) -> Sequence[int]:
    """Row i's draw from the blocks 1 ... last outside its window. The PyTorch code forgets the
    window in the rows N-3 and N-2; the JAX code remembers it there as if `last` were the last
    block."""
    if i > 2 and i >= N - 3:
        barred = range(last - 3 + (i - N + 3), N) if official else range(0)
    else:
        barred = range(i - 1, i + 2)
    return rng.permutation([j for j in range(1, min(last, N - 2) + 1) if j not in barred])


def of_the_first(i: int, reach: int, rng: Any) -> Sequence[int]:
    """Row i's draw from the first 2 R + 5 blocks without its window and the two ends of these; rows
    1 and 2 R + 3 also without the block two beyond their window."""
    barred = {0, reach - 1, i - 1, i, i + 1}
    barred |= {reach - 2} if i == 1 else {1} if i == reach - 2 else set()
    return [j for j in rng.permutation(reach) if j not in barred]
