"""MALA, magnitude-aware linear attention: weights that grow with the query, and sum to 1 because an
offset is subtracted, not because they are divided.

    phi = elu + 1     s_ij = c phi(q_i) . phi(k_j)     z_i = sum_j s_ij over the m real tokens
    A_ij = (1 + 1 / z_i) s_ij - z_i / m

A longer phi(q_i) sets a row's weights further apart, and some of them are negative. The authors'
code, qhfan/MALA, has c = 1 / (sqrt(d) m). Left out: rotary positions between s and z, a gate, a
convolution of the values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu

from luna.base import Mask, Paper, register, zero_padding
from luna.streaming import StreamingAttention, tokens_seen
from luna.sums import continued_sums, linear_sums

EPS = 1e-6  # smallest z


class MalaState(NamedTuple):
    S: Tensor  # (B, H, d, e)
    z: Tensor  # (B, H, d)
    values: Tensor  # (B, H, 1, e) sum of v
    t: Tensor  # (B, 1, 1)


@register("mala")
class Mala(StreamingAttention):
    title = "MALA"
    family = "fixed kernels"
    marker = ">"
    paper = Paper(
        "Rectifying Magnitude Neglect in Linear Attention", 2025, "https://arxiv.org/abs/2507.00698"
    )
    complexity = "O(n d e)"
    declared = StreamingAttention.declared.but(
        cross_form=True,
        convex=False,
    )

    def phi(self, x: Tensor, mask: Mask) -> Tensor:
        return zero_padding(elu(x) + 1, mask)

    def _combine(self, N: Tensor, c: Tensor, values: Tensor, m: Tensor) -> Tensor:
        """From sums over phi(q_i) . phi(k_j): N (B, H, n, e) with v_j, c (B, H, n) without; the sum
        of all v_j (B, H, n or 1, e) and the number of them m (B, 1, n or 1)."""
        m = m.clamp_min(1)
        each = self.head_dim**-0.5 / m
        z = (each * c).clamp_min(EPS)
        return ((1 + 1 / z) * each).unsqueeze(-1) * N - (z / m).unsqueeze(-1) * values

    def cross(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Mask) -> Tensor:
        m = tokens_seen(None, k, key_mask)[..., -1:]
        N, c = linear_sums(self.phi(q, None), self.phi(k, key_mask), v)
        return self._combine(N, c, v.sum(-2, keepdim=True), m)

    def causal_from(
        self, state: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask
    ) -> tuple[MalaState, Tensor]:
        phi_q, phi_k, values = self.phi(q, None), self.phi(k, mask), v.cumsum(-2)
        t = tokens_seen(state and state.t, q, mask)
        values = values + state.values if state else values
        sums, N, c = continued_sums(state and state[:2], phi_q, phi_k, v, self.chunk)
        return MalaState(*sums, values[:, :, -1:], t[..., -1:]), self._combine(N, c, values, t)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        seen = torch.ones_like(k[:, 0, :, 0]) if mask is None else mask.to(q.dtype)
        seen = seen[:, None, None, :].expand(-1, 1, q.shape[2], -1)  # (B, 1, n, m)
        seen = seen.tril() if self.causal else seen
        m = seen.sum(-1, keepdim=True).clamp_min(1)
        s = torch.einsum("bhid,bhjd->bhij", self.phi(q, None), self.phi(k, None)) * seen
        s = s / (self.head_dim**0.5 * m)
        z = s.sum(-1, keepdim=True).clamp_min(EPS)
        return (s + s / z - z / m) * seen
