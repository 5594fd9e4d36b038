"""Mega: moving averages under an attention of one head with gates. Ma et al. (2022),
https://arxiv.org/abs/2209.10655

    m = EMA(x)                            silu(y + omega x), luna/mixers/ema.py      (E)
    u = sigmoid(W_u m), z = silu(W_z m), r = silu(W_r m)                             (E, s, F)
    q = gamma_q z + beta_q, k = gamma_k z + beta_k        feature by feature         (s)
    v = silu(W_v x)                                                                  (F)
    A = softmax(q k^T / sqrt(s) + b)      or laplace(q k^T / n + b), n keys being seen
    o = u (silu(W_m m + W_h (r (A v))) - x),  F = expand E

laplace(t) = (1 + erf((t - sqrt(1/2)) / (sigma sqrt(2)))) / 2 with sigma^2 = 1 / (4 pi) is close to
the square of a relu and needs no sum over the keys. b_ij = R[j - i] is learned for every distance,
so n <= max_len. The block around a mixer adds o to its hidden states, which in the authors' layer
is x + u (. - x): they subtract x before its norm, of which a mixer knows only what comes out.

With `chunk` tokens attend to those of their own chunk alone (Mega-chunk): linear in n and without a
limit, the averages being all that goes from one to the next. Chunks are counted from the first
place, padding included, so padding in front of a sequence moves their borders. Text, ListOps and
Retrieval have a softmax in the authors' runs, the three tasks of images laplace.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import LunaError, Mask, Mixer, Paper, Place, Traits, at_least, register
from luna.blocks import masked_softmax, to_blocks
from luna.dropout import dropout
from luna.mixers.ema import Lag0, MovingAverages

STD = 0.02  # of all weights at the start
KEY_SHIFT = (
    "what is added to all keys adds the same to all scores of a query, which no softmax sees"
)


def laplace(t: Tensor) -> Tensor:
    """The distribution function of a normal number with mean sqrt(1/2), variance 1 / (4 pi)."""
    return torch.special.ndtr((t - math.sqrt(0.5)) * math.sqrt(4 * math.pi))


@register("mega")
class Mega(Mixer):
    title = "Mega"
    family = "state space"
    marker = "X"
    paper = Paper(
        title="Mega: Moving Average Equipped Gated Attention",
        year=2022,
        url="https://arxiv.org/abs/2209.10655",
    )
    complexity = "O(n (E (E + N + log n) + n F))"
    declared = Traits(
        causal_form=True,
        equivariant=False,
        holes_are_time=True,
        linear_in_n=False,
        uses_dropout=True,
        bound_to_max_len=True,
        exempt={"causal": "its keys hold averages in both directions, those of prefixes too"},
    )

    def __init__(
        self,
        place: Place,
        *,
        weights: Literal["softmax", "laplace"] = "softmax",
        z: int = 64,
        expand: int = 2,
        dims: int = 16,
        lag0: Lag0 = "once",
        chunk: int | None = None,
    ):
        super().__init__(place)
        at_least("mega", 1, z=z, expand=expand, chunk=1 if chunk is None else chunk)
        E, width = place.d_model, expand * place.d_model
        self.weights, self.chunk_length = weights, chunk
        self.sizes = E, width, E  # of u, r and W_m m
        self.average = MovingAverages("mega", place, dims, lag0)
        self.value = nn.Linear(E, width)
        self.shared = nn.Linear(E, z)
        self.read = nn.Linear(E, sum(self.sizes))
        self.inner = nn.Linear(width, E, bias=False)  # W_m has one
        self.gamma_q, self.gamma_k = (nn.Parameter(STD * torch.randn(z)) for _ in range(2))
        self.beta_q, self.beta_k = (nn.Parameter(torch.zeros(z)) for _ in range(2))
        self.furthest = (chunk or place.max_len) - 1
        self.R = nn.Parameter(STD * torch.randn(2 * self.furthest + 1))
        for linear in (self.value, self.shared, self.read, self.inner):
            nn.init.normal_(linear.weight, std=STD)
        for linear in (self.value, self.shared, self.read):
            nn.init.zeros_(linear.bias)

    def _traits(self) -> Traits:
        whole = self.chunk_length is None
        linear = (
            {} if whole else {"memory": "in chunks it is linear in n, which as a class it is not"}
        )
        return self.declared.but(
            bound_to_max_len=whole,
            exempt={**self.declared.exempt, **linear},
            idle={"beta_k": KEY_SHIFT} if self.weights == "softmax" else {},
        )

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        if self.causal:
            return self.mix_from(None, x, mask)[1]
        q, k, v, rest = self._read(self.average(x), x)
        return self._merge(self.attend(q, k, v, mask), x, rest)

    def mix_from(self, state: Any, x: Tensor, mask: Mask) -> tuple[Any, Tensor]:
        """The averages (B, E, N), and keys, values and mask of the tokens that later ones see: of
        all, or of those of a chunk that is not full."""
        before = x.new_zeros(len(x), 0, 1)
        s, *seen = state or (None, before, before, before[..., 0].bool())
        s, m = self.average.after(s, x)
        q, k, v, rest = self._read(m, x)
        real = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        if seen[0].shape[1]:
            k, v, real = (torch.cat(both, 1) for both in zip(seen, (k, v, real), strict=True))
        out = self._merge(self.attend(q, k, v, real), x, rest)
        kept = k.shape[1] if self.chunk_length is None else k.shape[1] % self.chunk_length
        first = k.shape[1] - kept
        return (s, k[:, first:], v[:, first:], real[:, first:]), out

    def _read(self, m: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
        """q and k (B, n, s), v (B, n, F), and what is needed behind the attention: u, r, W_m m."""
        u, r, h = self.read(m).split(self.sizes, -1)
        z = F.silu(self.shared(m))
        q, k = self.gamma_q * z + self.beta_q, self.gamma_k * z + self.beta_k
        return q, k, F.silu(self.value(x)), (u.sigmoid(), F.silu(r), h)

    def _merge(self, seen: Tensor, x: Tensor, rest: tuple[Tensor, ...]) -> Tensor:
        u, r, h = rest
        return u * (F.silu(h + self.inner(r * seen)) - x)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """A v (B, n, F) of q (B, n, s), k (B, T, s), v (B, T, F) and the mask of the keys (B, T),
        whose last n tokens are those of the queries."""
        n, T = q.shape[1], k.shape[1]
        if self.chunk_length is None:
            if self.max_len < T:
                raise LunaError(
                    f"mega was built for max_len={self.max_len} tokens and got {T}: build it with "
                    "a larger max_len, or with a chunk"
                )
            real = None if mask is None else mask.unsqueeze(1)
            return self._seen(q, k, v, real, T - n)
        C = min(self.chunk_length, T)
        if mask is None and T % C:
            mask = k.new_ones(k.shape[:2], dtype=torch.bool)
        q = F.pad(q, (0, 0, T - n, 0))  # queries stand as their keys do
        q, k, v = (to_blocks(t, C) for t in (q, k, v))  # (B, m, C, .)
        real = None if mask is None else to_blocks(mask.unsqueeze(-1), C).mT  # (B, m, 1, C)
        return self._seen(q, k, v, real, 0).flatten(1, 2)[:, T - n : T]

    def _seen(self, q: Tensor, k: Tensor, v: Tensor, real: Mask, first: int) -> Tensor:
        """A v (..., n, F) for queries whose first one stands at this place among the keys."""
        places = torch.arange(k.shape[-2], device=k.device)
        lag = places - places[first:].unsqueeze(1)  # j - i
        bias, visible = self.R[self.furthest + lag], real
        if self.causal:
            visible = lag <= 0 if real is None else real & (lag <= 0)
        scores = q @ k.mT
        if self.weights == "softmax":
            A = masked_softmax(scores * q.shape[-1] ** -0.5 + bias, visible)
        elif visible is None:
            A = laplace(scores / k.shape[-2] + bias)
        else:
            keys = visible.sum(-1, keepdim=True).clamp(min=1)
            A = laplace(scores / keys + bias).masked_fill(~visible, 0)
        return dropout(A, self.place.dropout, self.training) @ v

    def flops(self, x: Tensor, *_: Any) -> int:
        """Averages, projections, and 2 (s + F) for each pair of tokens of a chunk."""
        B, n = x.shape[:2]
        maps = (self.value, self.shared, self.read, self.inner)
        linear = sum(part.weight.numel() for part in maps)
        pair = 2 * (len(self.beta_q) + self.sizes[1])
        pairs = n * min(self.chunk_length or n, n)
        return B * (self.average.cost(n) + 2 * n * linear + pairs * pair)
