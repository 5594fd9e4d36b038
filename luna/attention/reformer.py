"""Reformer: queries attend to the keys that hash to the same place (Reformer, section 2).

Queries and keys are one tensor, x = q; k is not used. Each of r rounds hashes x with random rotations R,

    bucket = argmax [x R; -x R],

sorts the tokens by (bucket, position), cuts them into chunks of c, and lets a chunk attend to itself and to the one
before, with unit-length keys x_j / sqrt(mean x_j^2 + 1e-6) / sqrt(d) and no further scale. A token sees itself only if it
sees nothing else. The rounds are averaged with the weights softmax of their log-sum-exp.

What comes before the first chunk of a round, `wrap`: `none`, nothing; `round`, the round's last chunk; `list`, the last
chunk of the round before (and of the last round, before the first), as the public code has it.

`strict`     wrap=none, as many buckets as suit max_len, so that no other example nor padding moves a chunk; new rotations
             in every training step, the same ones in every evaluation.
`published`  wrap=list, as many buckets as suit n, new rotations in every forward. (Hugging Face, r=2, c=64.)
`official`   the computation of the Long Range Arena's code: one round of 10 buckets and 10 chunks, with the same rotations
             for all heads and for ever; keys not normalised, scores multiplied by sqrt(d), no mask, no self-mask; and
             heads merged without transposing, so that row t holds n_heads consecutive tokens of one head.

Sources: huggingface/transformers, models/reformer; google-research/long-range-arena, models/reformer.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from luna.base import Attention, LunaError, Paper, Slot, register
from luna.blocks import fill, real_tokens, to_blocks

Wrap = Literal["none", "round", "list"]
HIDDEN = -1e9  # the score of a masked key
ITSELF = -1e5  # the score of the token itself: below all others, above a masked key
OFFICIAL_BUCKETS = 10


@register("reformer")
class Reformer(Attention):
    paper = Paper(
        title="Reformer: The Efficient Transformer",
        year=2020,
        url="https://arxiv.org/abs/2001.04451",
    )
    complexity = "O(r n c d)"
    profiles = ("strict", "published", "official")
    equivariant = False

    def __init__(
        self,
        slot: Slot,
        *,
        chunk: int = 64,
        rounds: int = 2,
        buckets: int | None = None,
        wrap: Wrap | None = None,
    ):
        super().__init__(slot)
        if chunk < 1:
            raise LunaError(f"reformer.chunk must be at least 1, got {chunk}")
        if rounds < 1:
            raise LunaError(f"reformer.rounds must be at least 1, got {rounds}")
        if buckets is not None and (buckets < 2 or buckets & (buckets - 1)):
            raise LunaError(f"reformer.buckets must be a power of 2, at least 2, got {buckets}")
        self.chunk, self.rounds, self.buckets = chunk, rounds, buckets
        self.wrap = wrap or ("list" if self.profile == "published" else "none")
        self.rotations: Tensor | None = None  # (H, d, r, columns): set it to override the draw
