"""BigBird, block-sparse: a block of b tokens attends to its neighbours, to the two ends and to R random blocks.

    keys of block i = {0, i-1, i, i+1, N-1} + random(i)   for 0 < i < N-1;   blocks 0 and N-1 attend to everything

with one softmax over the gathered keys. The random blocks are the graph, (H, N, R) block numbers, -1 for none:

`strict`     any blocks outside the set, each once; drawn at construction.
`published`  the graph of the public PyTorch code, which has one seed for all layers: for n = 1024, 3072, 4096 the targets
             lie within the first 1024 tokens, for other n within the first 2 R + 5 blocks; at n = 1024 the rows N-3 and
             N-2 may draw from their own window, whose keys then count twice.
`official`   the graph of the Long Range Arena's code, within the first 1024 tokens for every n. Its sequences get
             b - n mod b filling rows, zeros that count as real tokens: the last global block may be nothing else.

Where those codes find fewer than R targets, and fail, there are fewer.
Sources: huggingface/transformers, models/big_bird; google-research/long-range-arena, models/bigbird.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from luna.base import Attention, LunaError, Paper, Slot, register
from luna.blocks import attend_visible, fill, real_tokens, to_blocks

PUBLISHED_SEED = 42
CAPPED_LENGTHS = (1024, 3072, 4096)  # those with targets within the first CAP tokens
CAP = 1024


@register("bigbird")
class BigBird(Attention):
    paper = Paper(
        title="Big Bird: Transformers for Longer Sequences",
        year=2020,
        url="https://arxiv.org/abs/2007.14062",
    )
    complexity = "O(n (5 + R) b d)"
    profiles = ("strict", "published", "official")
    equivariant = False

    def __init__(
        self,
        slot: Slot,
        *,
        block: int = 64,
        random_blocks: int = 3,
        graph_seed: int | None = None,
    ):
        super().__init__(slot)
        if block < 1:
            raise LunaError(f"bigbird.block must be at least 1, got {block}")
        if random_blocks < 0:
            raise LunaError(f"bigbird.random_blocks must be at least 0, got {random_blocks}")
        self.block, self.R = block, random_blocks
        default = PUBLISHED_SEED if self.profile == "published" else slot.seed
        self.graph_seed = default if graph_seed is None else graph_seed
        self.graph: Tensor | None = None  # (H, N, R): set it to use another graph than the drawn one
        self._drawn: dict[int, Tensor] = {}  # the public codes' graphs, by n

        if self.profile == "strict":
            # One draw holds the graph of every N: a row takes those R of its candidates that rank lowest.
            N = -(-self.max_len // block)
            generator = torch.Generator().manual_seed(self.graph_seed)
            self.register_buffer("rank", torch.rand(self.n_heads, N, N, generator=generator))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, x: Tensor | None
    ) -> Tensor:
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
        first, last = [t[:, :, :1] for t in out[:2]], [t[:, :, 1:] for t in out[1::-1]]
        joined = torch.cat(first + out[2:] + last, 2).flatten(2, 3)[:, :, :n]
        return joined if mask is None else joined.masked_fill(~mask[:, None, :, None], 0)

    def _attend_rows(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor, keys: Tensor) -> Tensor:
        """Rows of blocks q (B, H, rows, b, d), each with its own blocks of keys (H, rows, S), -1 for none."""
        H, rows, S = keys.shape
        N = k.shape[-2] // self.block
        head = torch.arange(H, device=keys.device)[:, None, None]
        picked = (head * N + keys.clamp_min(0)).flatten()
        k, v = (  # (B, H rows, S b, .)
            to_blocks(t, self.block).flatten(1, 2).index_select(1, picked).unflatten(1, (-1, S)).flatten(2, 3)
            for t in (k, v)
        )
        real = to_blocks(real, self.block)[:, 0, keys.clamp_min(0), :, 0]  # (B or 1, H, rows, S, b)
        visible = (real & (keys >= 0).unsqueeze(-1)).flatten(3, 4).flatten(1, 2).unsqueeze(2)
        return attend_visible(q.flatten(1, 2), k, v, visible).unflatten(1, (H, rows))

    def _filled(self, *tensors: Tensor) -> list[Tensor]:
        """q, k, v and the mask in whole blocks."""
        if self.profile != "official":
            return [fill(t, self.block) for t in tensors]
        # This code fills its boolean mask up with -1e9, and as a boolean that is True.
        extra = self.block - tensors[0].shape[-2] % self.block
        return [F.pad(t, (0, 0, 0, extra), value=t.dtype == torch.bool) for t in tensors]

    def random_graph(self, n: int, device: torch.device) -> Tensor:
        """(H, N, R or less): the random blocks of every block of n tokens, n a multiple of the block; -1 for none."""
        N = n // self.block
        if self.graph is not None:
            return self.graph.to(device)
        if self.profile != "strict":
            if n not in self._drawn:
                self._drawn[n] = torch.from_numpy(self._public_graph(n))
            return self._drawn[n].to(device)
        if N > self.rank.shape[1]:
            raise LunaError(
                f"bigbird was built for max_len={self.max_len} tokens and got more: build it with a larger max_len"
            )
        row = torch.arange(N, device=device)[:, None]
        column = torch.arange(N, device=device)[None, :]
        taken = ((row - column).abs() <= 1) | (column == 0) | (column == N - 1)
        rank, graph = self.rank[:, :N, :N].masked_fill(taken, 2).topk(min(self.R, N), largest=False)
        return graph.masked_fill(rank == 2, -1)

    def _public_graph(self, n: int) -> np.ndarray:
        N = n // self.block
        official = self.profile == "official"
        rng = np.random.RandomState(self.graph_seed)  # noqa: NPY002  (the generator those codes draw with)
        graph = np.full((self.n_heads, N, self.R), -1)
        if official or n in CAPPED_LENGTHS:
            cap = min(n, CAP)
            last = cap // self.block - 1 if cap > 2 * self.block else N - 1
            order = [(h, i) for h in range(self.n_heads) for i in range(1, N - 1)]
            targets = [capped_targets(i, N, last, official) for _, i in order]
        else:
            reach = min(N, 2 * self.R + 5)
            order = [(h, i) for i in range(1, N) for h in range(self.n_heads)]
            targets = [range(reach)] * len(order)
        for (h, i), candidates in zip(order, targets, strict=True):
            drawn = rng.permutation(np.array(candidates, dtype=np.int64))
            if not (official or n in CAPPED_LENGTHS):
                drawn = drawn[[allowed(i, int(j), reach) for j in drawn]]
            graph[h, i, : len(drawn[: self.R])] = drawn[: self.R]
        return graph
