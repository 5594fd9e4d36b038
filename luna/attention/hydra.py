"""Hydra: a state space in both directions, with a diagonal of its own. Hwang et al. (2024),
https://arxiv.org/abs/2407.09941

    M_ij = (q_(i-1) . k_j) s_j exp(a (s_(j+1) + ... + s_(i-1)))     j < i
    M_ii = D_h + u_h . k_i + c_h
    M_ij = (q_(i+1) . k_j) r_j exp(a (r_(i+1) + ... + r_(j-1)))     j > i
    o = M v

with q, k after silu, a = -exp(A_h) < 0, and the steps s, r >= 0 of the two directions softplus of
a gate. It is Mamba-2's recurrence (Dao and Gu 2024, https://arxiv.org/abs/2405.21060) with q, k, v
for its C, B, x, run from both ends. The outputs of both move on by one token: row i reads with the
query of its neighbour, and its own token acts by the diagonal alone. With padding between, the
neighbour is the next real token.

Causally it is the first line and the diagonal. By default both gates, the steps and the diagonal,
read the key, and directions are alike. With preset `published` both read the hidden states x
(`gates=x`), and each direction has steps of its own (`tie=false`). The authors' code
(goombalab/hydra at 0daa208) does so for the steps, with one bias for both directions; its diagonal
reads the values of all heads, and has D for its only bias. Left out, for it is the authors' block
and not the mixer: a short convolution, a norm and a gate on the output (`Around` in luna/around.py
puts these around any method), twice the width, and keys and queries of each direction.

So a row is not read with its own query, and one layer cannot answer what its own token asks.
The authors' convolution, before it, brings a token into its neighbours' queries. With `shift=false`
outputs do not move on, which is no published method: row i reads with q_i what has faded up to it,

    M_ij = (q_i . k_j) s_j exp(a (s_(j+1) + ... + s_i))             j < i
    M_ii = (q_i . k_i) s_i + D_h + u_h . k_i + c_h

and alike from behind, with r; the token's own weight counts once, with s.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import AttentionTraits, Mask, Paper, Rate, Slot, register, zero_padding
from luna.gates import Gates, Source, begin_with_small_steps
from luna.scans import dense_weights, scan
from luna.streaming import StreamingAttention


class HydraState(NamedTuple):
    S: Tensor  # (B, H, d, e)
    last: Tensor | None  # (B, H, 1, e): what the last token's query read, which the next one gets


@register("hydra")
class Hydra(StreamingAttention):
    title = "Hydra"
    family = "state space"
    marker = "v"
    paper = Paper(
        "Hydra: Bidirectional State Space Models Through Generalized Matrix Mixers",
        2024,
        "https://arxiv.org/abs/2407.09941",
    )
    complexity = "O(n d e)"
    declared = StreamingAttention.declared.but(
        equivariant=False,
        row_stochastic=False,
        convex=False,
    )
    rates = dict.fromkeys(("log_a", "D", "step_size.map.bias"), Rate(decay=False))
    chunk = 32
    added: ClassVar[dict[str, Any]] = {"shift": True}

    def __init__(self, slot: Slot, *, gates: Source = "k", tie: bool = True, shift: bool = True):
        super().__init__(slot)
        H, d = slot.n_heads, slot.head_dim
        self.alike, self.shift = tie, shift
        self.step_size = Gates(gates, H, d)
        self.diagonal = Gates(gates, H, d)
        self.log_a = nn.Parameter(torch.zeros(H))
        self.D = nn.Parameter(torch.ones(H))
        begin_with_small_steps(self.step_size)
        if not tie and not slot.causal:
            self.step_size_back = Gates(gates, H, d)
            begin_with_small_steps(self.step_size_back)

    def _traits(self) -> AttentionTraits:
        return self.declared.but(needs_x=self.step_size.source == "x")

    def _decay(self, steps: Tensor) -> Tensor:
        """a s (B, H, n, 1)."""
        return -self.log_a.to(steps.dtype).exp().view(-1, 1, 1) * steps

    def _read(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> tuple[Tensor, ...]:
        """q, k, the steps of both directions, 0 at padding, and the diagonal (B, H, n, 1)."""
        ahead = back = zero_padding(F.softplus(self.step_size(k, x)), mask)
        if not self.alike and not self.causal:
            back = zero_padding(F.softplus(self.step_size_back(k, x)), mask)
        own = self.D.to(k.dtype).view(-1, 1, 1) + self.diagonal(k, x)
        return F.silu(q), F.silu(k), ahead, back, zero_padding(own, mask)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.causal:
            return self.causal_from(None, q, k, v, mask, x)[1]
        q, k, ahead, back, own = self._read(q, k, mask, x)
        _, before = scan(q, ahead * k, v, self._decay(ahead), chunk=self.chunk)
        if not self.shift:  # a token's own weight is in both directions, and counts once
            own = own - back * (q * k).sum(-1, keepdim=True)
        q, k, v_behind, back = (t.flip(2) for t in (q, k, v, back))
        _, behind = scan(q, back * k, v_behind, self._decay(back), chunk=self.chunk)
        if self.shift:
            flipped = None if mask is None else mask.flip(1)
            before, behind = of_neighbour(before, mask), of_neighbour(behind, flipped)
        return before + behind.flip(2) + own * v

    def causal_from(
        self,
        state: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        x: Tensor | None = None,
    ) -> tuple[HydraState, Tensor]:
        q, k, steps, _, own = self._read(q, k, mask, x)
        S, read = (None, None) if state is None else state
        S, before = scan(q, steps * k, v, self._decay(steps), state=S, chunk=self.chunk)
        if not self.shift:
            return HydraState(S, None), before + own * v
        out = of_neighbour(before, mask, read) + own * v
        # Padding stands among the first tokens alone, so the last one is real, or none is.
        return HydraState(S, before[:, :, -1:]), out

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        q, k, ahead, back, own = self._read(q, k, mask, x)
        A = dense_weights(q, ahead * k, self._decay(ahead))
        A = of_neighbour(A, mask) if self.shift else A
        if not self.causal:
            q, k, back = (t.flip(2) for t in (q, k, back))
            behind = dense_weights(q, back * k, self._decay(back))
            flipped = None if mask is None else mask.flip(1)
            behind = of_neighbour(behind, flipped) if self.shift else behind.tril(-1)
            A = A + behind.flip(2, 3)
        return A + torch.diag_embed(own.squeeze(-1))

    def flops(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """By the recurrence: 2 d e to write and as many to read, for each direction."""
        B, H, n, d = q.shape
        directions = 1 if self.causal else 2
        gates = self.step_size.cost(k) * (1 if self.alike else directions) + self.diagonal.cost(k)
        return directions * 4 * B * H * n * d * v.shape[-1] + gates

    def elementwise(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """A state of d e numbers fades at each token, in each direction."""
        return (1 if self.causal else 2) * k.numel() * v.shape[-1]


def of_neighbour(t: Tensor, mask: Mask, first: Tensor | None = None) -> Tensor:
    """Each row of t (B, H, n, .) moved to the next real token; the first real token gets `first`,
    or 0, and so does padding before it."""
    start = torch.zeros_like(t[:, :, :1]) if first is None else first
    rows = torch.cat([start, t], 2)
    if mask is None:
        return rows[:, :, :-1]
    # The place behind the last real token before each one: 0 where there is none.
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    behind = places.where(mask, 0).cummax(1).values
    place = F.pad(behind, (1, -1))[:, None, :, None].expand(-1, t.shape[1], -1, t.shape[3])
    return rows.gather(2, place)
