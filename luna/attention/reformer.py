"""Reformer: a query attends to the keys that hash to the same place (Reformer, section 2).

Queries and keys are one tensor, x = q; k is not used. Each of r rounds hashes x with random
rotations R,

    bucket = argmax [x R; -x R],

sorts the tokens by (bucket, position), cuts them into chunks of c, and lets a chunk attend to
itself and to the one before, with unit-length keys x_j / sqrt(mean x_j^2 + 1e-6) / sqrt(d) and no
further scale. A token sees itself only if it sees nothing else. The rounds are averaged with the
weights softmax of their log-sum-exp.

`strict`     nothing precedes the first chunk of a round; as many buckets as suit max_len
`published`  huggingface/transformers: the last chunk of the round before it does, in a ring of all
             rounds; as many buckets as suit n, new rotations in every forward
`official`   one round of 10 buckets and 10 chunks, with one rotation for all heads and calls; keys
             not normalised, scores multiplied by sqrt(d), no mask, no self-mask; heads merged
             without transposing, so that row t holds n_heads consecutive tokens of one head; and
             neither keys nor the output are projected
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from luna.base import AttentionTraits, Mask, Paper, Redrawn, Slot, at_least, register, uncompiled
from luna.blocks import fill, official_fill, real_tokens

HIDDEN = -1e9  # the score of a masked key
ITSELF = -1e5  # the score of the token itself: below all others, above a masked key
OFFICIAL_BUCKETS = 10


@register("reformer")
class Reformer(Redrawn):
    title = "Reformer"
    family = "softmax and sparse"
    marker = "<"
    paper = Paper("Reformer: The Efficient Transformer", 2020, "https://arxiv.org/abs/2001.04451")
    complexity = "O(r n c d)"
    profiles = ("strict", "published", "official")
    declared = Redrawn.declared.but(
        draws=True,
        equivariant=False,
        exempt={"compares": "its keys are its queries"},
    )

    def __init__(self, slot: Slot, *, chunk: int = 64, rounds: int = 2):
        super().__init__(slot)
        at_least("reformer", 1, chunk=chunk, rounds=rounds)
        self.chunk, self.rounds = chunk, rounds
        self.ring = self.profile == "published"
        self.rotations: Tensor | None = None  # (H, d, r, columns): set it to fix the draw

    def _traits(self) -> AttentionTraits:
        # Under official it mixes heads.
        official = self.profile == "official"
        return self.declared.but(has_matrix=not official, draws=not official)

    @classmethod
    def projected(cls, profile: str) -> str:
        """Its keys are its queries, in every profile."""
        return "qv" if cls.effective_profile(profile) == "official" else "qvo"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.profile == "official":
            return self._official(q, v)
        n = q.shape[-2]
        qk, v, real, order, c = self._sort(q, v, real_tokens(mask, q))
        place = order.unsqueeze(-1).unflatten(3, (-1, c))  # (B, H, r, m, c, 1), m chunks

        qk = into_chunks(qk, order, c)
        keys = with_previous(unit_keys(qk), self.ring)  # (B, H, r, m, 2 c, d)
        values = with_previous(into_chunks(v, order, c), self.ring)
        seen = with_previous(into_chunks(real, order, c), self.ring)
        scores = qk @ keys.mT
        scores = scores.masked_fill(~seen.mT, HIDDEN)
        scores = scores.masked_fill(place == with_previous(place, self.ring, -1).mT, ITSELF)

        total = scores.logsumexp(-1, keepdim=True)
        back = order.argsort(-1)
        out = out_of_chunks((scores - total).exp() @ values, back)  # (B, H, r, n, e)
        weight = out_of_chunks(total, back).softmax(2)
        return (weight * out).sum(2)[:, :, :n]

    def _sort(
        self, qk: Tensor, v: Tensor, real: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        """The inputs in whole chunks, the order (B, H, r, n) of each round, and the chunk length.
        A sequence that fits into one chunk is that chunk, in one round."""
        B, H, n, _ = qk.shape
        if n <= self.chunk:
            order = torch.arange(n, device=qk.device).expand(B, H, 1, n)
            return qk, v, real.expand(B, H, n, 1), order, n
        qk, v, real = (fill(t, self.chunk) for t in (qk, v, real))
        order = self._bucket(qk, real).argsort(dim=-1, stable=True)
        return qk, v, real.expand(B, H, -1, 1), order, self.chunk

    @torch.no_grad()
    def _bucket(self, qk: Tensor, real: Tensor) -> Tensor:
        """The buckets (B, H, r, n) of each round; masked tokens have one more, the last."""
        factors = self._factors(qk.shape[-2])
        rotations = self._rotations(sum(factors) // 2).to(qk)
        if 2 * rotations.shape[-1] != sum(factors):
            factors = (2 * rotations.shape[-1],)
        rotated = torch.einsum("bhnd,hdrc->bhrnc", qk, rotations)
        bucket, stride = torch.zeros_like(rotated[..., 0], dtype=torch.long), 1
        for part in rotated.split([f // 2 for f in factors], -1):
            bucket = bucket + stride * torch.cat([part, -part], -1).argmax(-1)
            stride *= 2 * part.shape[-1]
        return bucket.masked_fill(~real.mT, stride)

    def _factors(self, n: int) -> tuple[int, ...]:
        """The number of buckets, or two factors of it that are hashed each on its own."""
        if self.profile == "official":
            return (OFFICIAL_BUCKETS,)
        longest = self.max_len if self.profile == "strict" else n
        p = max(1, (2 * (longest // self.chunk)).bit_length() - 1)
        if 2**p > 2 * max(math.isqrt(self.max_len // self.chunk), self.chunk):
            return 2 ** (p // 2), 2 ** (p - p // 2)
        return (2**p,)

    @uncompiled  # generators do not compile
    def _rotations(self, columns: int) -> Tensor:
        """(H, d, r, columns), from the standard normal distribution."""
        if self.rotations is not None:
            return self.rotations
        if self.profile == "official":
            fixed = torch.Generator().manual_seed(0)
            one = torch.randn(1, self.head_dim, 1, columns, generator=fixed)
            return one.expand(self.n_heads, -1, -1, -1)
        shape = (self.n_heads, self.head_dim, self.rounds, columns)
        return torch.randn(shape, generator=self.stream())

    def _official(self, qk: Tensor, v: Tensor) -> Tensor:
        _, H, n, _ = qk.shape
        qk, v = (official_fill(t, OFFICIAL_BUCKETS) for t in (qk, v))
        order = self._bucket(qk, real_tokens(None, qk)).argsort(dim=-1, stable=True)
        c = qk.shape[2] // OFFICIAL_BUCKETS
        qk = into_chunks(qk, order, c)
        values = with_previous(into_chunks(v, order, c), True)
        weights = (qk @ with_previous(qk, True).mT * self.head_dim**0.5).softmax(-1)
        out = out_of_chunks(weights @ values, order.argsort(-1)).squeeze(2)  # (B, H, 10 c, e)
        merged = out.reshape(len(out), out.shape[2], -1)[:, :n]  # no transpose before this reshape
        return merged.unflatten(-1, (H, -1)).transpose(1, 2)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        n, real = q.shape[-2], real_tokens(mask, q)
        scores = torch.einsum("bhid,bhjd->bhij", q, unit_keys(q)).masked_fill(~real.mT, HIDDEN)
        scores = scores.masked_fill(torch.eye(n, dtype=torch.bool, device=q.device), ITSELF)
        if n <= self.chunk:
            return scores.softmax(-1)
        filled = fill(q, self.chunk)
        chunk = self._ranks(self._bucket(filled, fill(real, self.chunk))) // self.chunk
        last, chunk = filled.shape[-2] // self.chunk - 1, chunk[..., :n]

        mine, other = chunk.unsqueeze(-1), chunk.unsqueeze(-2)
        before = other == mine - 1
        if self.ring:
            before = before | (mine == 0) & (other.roll(1, 2) == last)
        times = (mine == other).to(q.dtype) + before.to(q.dtype)  # (B, H, r, n, n)
        scores = scores.unsqueeze(2) + times.log()
        weight = scores.logsumexp(-1, keepdim=True).softmax(2)
        return (weight * scores.softmax(-1)).sum(2)

    def _ranks(self, bucket: Tensor) -> Tensor:
        """Each token's place in the order of (bucket, position): how many come before it."""
        n = bucket.shape[-1]
        key = bucket * n + torch.arange(n, device=bucket.device)
        return (key.unsqueeze(-1) > key.unsqueeze(-2)).sum(-1)


def unit_keys(qk: Tensor) -> Tensor:
    return qk * (qk.square().mean(-1, keepdim=True) + 1e-6).rsqrt() / qk.shape[-1] ** 0.5


def into_chunks(t: Tensor, order: Tensor, c: int) -> Tensor:
    """(B, H, n, .) -> (B, H, r, m, c, .): the rows in each round's order, in m chunks."""
    index = order.unsqueeze(-1).expand(-1, -1, -1, -1, t.shape[-1])
    rounds = t.unsqueeze(2).expand(-1, -1, order.shape[2], -1, -1)
    return rounds.gather(3, index).unflatten(3, (-1, c))


def out_of_chunks(t: Tensor, back: Tensor) -> Tensor:
    """(B, H, r, m, c, .) -> (B, H, r, n, .), by the inverse of each round's order."""
    t = t.flatten(3, 4)
    return t.gather(3, back.unsqueeze(-1).expand_as(t))


def with_previous(t: Tensor, ring: bool, nothing: float = 0) -> Tensor:
    """Each chunk of t (B, H, r, m, c, .) behind the chunk before it, in a ring of all rounds or,
    in each round's first chunk, behind nothing: (B, H, r, m, 2 c, .)."""
    if t.shape[2] * t.shape[3] == 1:
        return t
    if ring:
        previous = t.flatten(2, 3).roll(1, 2).unflatten(2, t.shape[2:4])
    else:
        previous = F.pad(t[:, :, :, :-1], (0, 0, 0, 0, 1, 0), value=nothing)
    return torch.cat([previous, t], 4)
