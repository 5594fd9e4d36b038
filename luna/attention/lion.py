"""LION: linear attention in both directions whose weights fall with every token between query and
key. Afzal et al. (2025), https://arxiv.org/abs/2502.16249

    phi(u) = (silu(u) + 1/2) / |silu(u) + 1/2|
    M_ij = a_j ... a_(i-1) for j < i     1 for j = i     a_(i+1) ... a_j for j > i
    o_i = sum_j M_ij phi(q_i) . phi(k_j) v_j / sum_j M_ij phi(q_i) . phi(k_j)

    selective   a_j = 1 - sigmoid(w . x_j + b) of each head (LION-S)
    fixed       a_j = sigmoid(a_h), learned (LION-D)
    none        a_j = 1 (LION-Lit has elu + 1 besides, which is our `linear`)

A token acts on what passes it, so the key's own factor counts and the query's does not. The
authors train with the matrix M; in chunks (luna/scans.py, on GPUs luna/kernels/decayed) time is
linear in n.

The gate of a published model reads the hidden states x (`gates=x`, preset `published`). By default
it reads the token's key: in a matched comparison all methods are functions of the same q, k, v,
and a gate of its own on x would be a fourth projection that others lack.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import AttentionTraits, Mask, Paper, Slot, register, zero_padding
from luna.gates import Gates, Source
from luna.kernels.decayed import decayed_attention, is_default
from luna.scans import dense_weights, scan, shifted, with_ones
from luna.streaming import StreamingAttention
from luna.sums import denominator, linear_sums
from luna.tensors import HALF

EPS = 1e-6  # smallest sum of weights; the authors add as much


class LionState(NamedTuple):
    S: Tensor  # (B, H, d, e)
    z: Tensor  # (B, H, d, 1)
    last: Tensor  # (B, H, 1, 1) log a of the last token, which acts on the next one


@register("lion")
class Lion(StreamingAttention):
    title = "LION"
    family = "gates"
    marker = "^"
    paper = Paper(
        "Linear Attention for Efficient Bidirectional Sequence Modeling",
        2025,
        "https://arxiv.org/abs/2502.16249",
    )
    complexity = "O(n d e)"
    declared = StreamingAttention.declared.but(equivariant=False)
    chunk = 32

    def __init__(
        self,
        slot: Slot,
        *,
        decay: Literal["selective", "fixed", "none"] = "selective",
        gates: Source = "k",
    ):
        super().__init__(slot)
        self.decay = decay
        if decay == "selective":
            self.gates = Gates(gates, slot.n_heads, slot.head_dim)
        elif decay == "fixed":
            self.a = nn.Parameter(torch.randn(slot.n_heads))

    def _traits(self) -> AttentionTraits:
        reads = self.decay == "selective" and self.gates.source == "x"
        return self.declared.but(needs_x=reads, equivariant=self.decay == "none")

    def phi(self, u: Tensor) -> Tensor:
        """Features, all above 0, of length 1."""
        return F.normalize(F.silu(u) + 0.5, dim=-1)

    def log_decay(self, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        """log a (B, H, n, 1), 0 at padding, which lets everything pass."""
        if self.decay == "none":
            return torch.zeros_like(k[..., :1])
        if self.decay == "selective":
            g = F.logsigmoid(-self.gates(k, x))
        else:
            g = F.logsigmoid(self.a.to(k.dtype)).view(-1, 1, 1).expand_as(k[..., :1])
        return zero_padding(g, mask)

    def is_fused(self, device: str) -> bool:
        return self.profile == "strict" and is_default(device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.is_fused(q.device.type):
            g = self.log_decay(k.float() if k.dtype in HALF else k, mask, x)
            both = (shifted(g),) if self.causal else self._both(g)
            decays = torch.stack(both).squeeze(-1)
            return decayed_attention(q, k, v, mask, decays, self._by_scan, eps=EPS)
        if self.causal:
            return self.causal_from(None, q, k, v, mask, x)[1]
        phi_q, phi_k = self.phi(q), zero_padding(self.phi(k), mask)
        if self.decay == "none":
            N, c = linear_sums(phi_q, phi_k, v)
            return divided(N, c.unsqueeze(-1))
        ahead, back = self._both(self.log_decay(k, mask, x))
        _, sums = scan(phi_q, phi_k, with_ones(v), ahead, back, chunk=self.chunk)
        return divided(sums[..., :-1], sums[..., -1:])

    def _by_scan(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, decays: Tensor) -> Tensor:
        """What the fused kernels compute; decays (2, B, H, n), or, causal, (1, B, H, n)."""
        q, k, v = (zero_padding(t, mask) for t in (q, k, v))
        phi_q, phi_k = self.phi(q), zero_padding(self.phi(k), mask)
        ahead, *others = decays.unsqueeze(-1)
        back = others[0] if others else None
        _, sums = scan(phi_q, phi_k, with_ones(v), ahead, back, chunk=self.chunk)
        return zero_padding(divided(sums[..., :-1], sums[..., -1:]), mask)

    def causal_from(
        self,
        state: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        x: Tensor | None = None,
    ) -> tuple[LionState, Tensor]:
        phi_q, phi_k = self.phi(q), zero_padding(self.phi(k), mask)
        g = self.log_decay(k, mask, x)
        before, last = None, None
        if state is not None:
            before, last = torch.cat([state.S, state.z], -1), state.last
        ahead = shifted(g, last)
        S, sums = scan(phi_q, phi_k, with_ones(v), ahead, state=before, chunk=self.chunk)
        out = divided(sums[..., :-1], sums[..., -1:])
        return LionState(S[..., :-1], S[..., -1:], g[:, :, -1:]), out

    def _both(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """The decays with which what stands before, and behind, arrives at each token: those of
        the neighbours."""
        return shifted(g), shifted(g.flip(2)).flip(2)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        phi_q, phi_k = self.phi(q), zero_padding(self.phi(k), mask)
        ahead, back = self._both(self.log_decay(k, mask, x))
        A = dense_weights(phi_q, phi_k, ahead, None if self.causal else back)
        return A / denominator(A.sum(-1, keepdim=True), EPS, signed=False)

    def flops(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """By the recurrence: 2 d (e + 1) to write and as many to read, for each direction."""
        B, H, n, d = q.shape
        directions = 1 if self.causal or self.decay == "none" else 2
        gates = self.gates.cost(k) if self.decay == "selective" else 0
        return directions * 4 * B * H * n * d * (v.shape[-1] + 1) + gates

    def elementwise(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """A state of d (e + 1) numbers fades at each token, in each direction."""
        if self.decay == "none":
            return 0
        return (1 if self.causal else 2) * k.numel() * (v.shape[-1] + 1)


def divided(N: Tensor, c: Tensor) -> Tensor:
    return N / denominator(c, EPS, signed=False)
