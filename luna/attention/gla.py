"""GLA, gated linear attention, in both directions: a state that forgets each feature of the keys at
a rate of its own. Yang et al. (2023), https://arxiv.org/abs/2312.06635

    S_i = diag(e^(g_i)) S_(i-1) + k_i v_i^T     o_i = S_i^T q_i / sqrt(d)
    out_i = gain * o_i / rms(o_i)     of each head

    vector   g_i = log(sigmoid(W_2 W_1 k_i + b)) / 16 for each feature (GLA)
    scalar   g_i = log(sigmoid(w . k_i + b)) / 16 for each head
    fixed    g = log(1 - 2^(-5-h)) of head h: retention (Sun et al. 2023, arXiv:2307.08621)

`keys=complement` is HGRN2 (Qin et al. 2024, arXiv:2404.07904): the key projection is the logit f of
the gate, and what is forgotten makes room for what is new,

    e^(g_i) = c + (1 - c) sigmoid(f_i)     k_i = 1 - e^(g_i)     q_i is silu of the projection

where c rises with the layer, l / L for layer l of L: there the authors' learned bounds begin.

The papers are about language models. Both ways, the same recurrence runs from the end too and a
token's own weight counts once; the decay of the query's own token acts, the key's does not.

The published gate reads the hidden states x (`gates=x`, preset `published`). By default it reads
the key: in a matched comparison all methods are functions of the same q, k, v. The norm stays, for
without it outputs begin 3 times as large as values; HGRN2 has one for all heads. Left out: a short
convolution, and a gate on the output, which an `Around` (luna/around.py) puts around any method.
Decays of a feature below e^-10 count as that (luna/scans.py).
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from luna.base import (
    AttentionTraits,
    LunaError,
    Mask,
    Paper,
    Slot,
    at_least,
    register,
    zero_padding,
)
from luna.gates import Gates, Source
from luna.scans import FLOOR, dense_weights, scan
from luna.surround import HeadNorm, NormedHeads

TEMPERATURE = 16  # divides log sigmoid, so that a state begins with a memory of 23 tokens
EPS = 1e-5  # of the norm, as in the authors' code


class GlaState(NamedTuple):
    S: Tensor  # (B, H, d, e)


@register("gla")
class GLA(NormedHeads):
    title = "GLA"
    family = "gates"
    marker = "s"
    paper = Paper(
        "Gated Linear Attention Transformers with Hardware-Efficient Training",
        2023,
        "https://arxiv.org/abs/2312.06635",
    )
    complexity = "O(n d e)"
    declared = NormedHeads.declared.but(
        equivariant=False,
        row_stochastic=False,
        convex=False,
    )
    chunk = 32

    def __init__(
        self,
        slot: Slot,
        *,
        decay: Literal["vector", "scalar", "fixed"] = "vector",
        keys: Literal["own", "complement"] = "own",
        gates: Source = "k",
        rank: int = 16,
        norm: bool = True,
    ):
        super().__init__(slot)
        at_least("gla", 1, rank=rank)
        if keys == "complement" and decay != "vector":
            raise LunaError(
                f"gla.keys='complement' makes keys of a decay for each feature: it needs "
                f"decay='vector', not '{decay}'"
            )
        self.decay, self.keys, self.gates = decay, keys, None
        if decay == "vector" and keys == "own":
            self.gates = Gates(gates, slot.n_heads, slot.head_dim, slot.head_dim, rank=rank)
        elif decay == "scalar":
            self.gates = Gates(gates, slot.n_heads, slot.head_dim)
        self.norm = HeadNorm(slot.n_heads, slot.head_dim, EPS) if norm else None

    def _traits(self) -> AttentionTraits:
        reads = self.gates is not None and self.gates.source == "x"
        facts = self.declared.but(needs_x=reads, layers_differ=self.keys == "complement")
        return self._with_norm(facts)

    def log_decay(self, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        """g (B, H, n, 1 or d), 0 at padding, which lets everything pass."""
        if self.gates is not None:
            g = F.logsigmoid(self.gates(k, x)) / TEMPERATURE
        elif self.keys == "complement":
            g = F.logsigmoid(k)
            if self.slot.layer:  # log(c + (1 - c) sigmoid(f)), no term of which overflows
                c = self.slot.layer / self.slot.n_layers
                g = torch.logaddexp(torch.full_like(g, math.log(c)), g + math.log1p(-c))
        else:
            heads = torch.arange(self.n_heads, dtype=k.dtype, device=k.device)
            g = torch.log1p(-(2.0 ** (-5 - heads))).view(-1, 1, 1).expand_as(k[..., :1])
        return zero_padding(g.clamp_min(FLOOR) if self.decay == "vector" else g, mask)

    def _read(
        self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, scaled, k and g of the recurrence."""
        g = self.log_decay(k, mask, x)
        if self.keys == "complement":
            q, k = F.silu(q), -torch.expm1(g)
        return q * self.head_dim**-0.5, k, g

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.causal:
            return self.causal_from(None, q, k, v, mask, x)[1]
        q, k, g = self._read(q, k, mask, x)
        return self._normed(scan(q, k, v, g, back=g, chunk=self.chunk)[1])

    def causal_from(
        self,
        state: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        x: Tensor | None = None,
    ) -> tuple[GlaState, Tensor]:
        q, k, g = self._read(q, k, mask, x)
        before = None if state is None else state.S
        S, out = scan(q, k, v, g, state=before, chunk=self.chunk)
        return GlaState(S), self._normed(out)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        q, k, g = self._read(q, k, mask, x)
        return dense_weights(q, k, g, back=None if self.causal else g)

    def flops(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """By the recurrence: 2 d e to write and as many to read, for each direction."""
        B, H, n, d = q.shape
        directions = 1 if self.causal else 2
        gates = 0 if self.gates is None else self.gates.cost(k)
        return directions * 4 * B * H * n * d * v.shape[-1] + gates

    def elementwise(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """A state of d e numbers fades at each token, in each direction."""
        return (1 if self.causal else 2) * k.numel() * v.shape[-1]
