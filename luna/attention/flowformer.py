"""Flowformer: attention as a flow from sources (keys) to sinks (queries) that conserve it.

    phi = sigmoid; sums are over the m real tokens

    incoming    I_i = phi(q_i) . sum_j phi(k_j)           outgoing  O_j = phi(k_j) . sum_i phi(q_i)
    conserved   I'_i = phi(q_i) . sum_j phi(k_j) / O_j    O'_j = phi(k_j) . sum_i phi(q_i) / I_i

    out_i = sigmoid(I'_i) sum_j phi(q_i) . phi(k_j) / I_i  m softmax(O')_j v_j

The causal form is the paper's: each sum over all tokens becomes one over those up to the row, t its
number of tokens, 1 / O_j and 1 / I_i become t_j / O_j and t_i / I_i inside the sums, I' and O' are
divided by t, and the softmax of source j is among the sources up to j. So row i is not what the
bidirectional form makes of its prefix. The authors' PyTorch code bounds O' at 1, that of their runs
on the Long Range Arena does not, and nor does this.

`strict`     flows are kept above 1e-6
`published`  thuml/Flowformer, Flowformer_LRA: phi = relu + 1e-6, and 1e-6 is added to both factors
             of every flow; padding takes part; the softmax is over the heads of a token, its axis
             being the last of (B, n, H)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from luna.base import Mask, Paper, register, zero_padding
from luna.blocks import masked_softmax
from luna.streaming import StreamingAttention, tokens_seen
from luna.sums import causal_linear_sums

EPS = 1e-6
ABSENT = -1e4  # log weight of padding among the sources: e^ABSENT is 0, and so is its gradient


class FlowState(NamedTuple):
    S: Tensor  # (B, H, d, e)
    sums: Tensor  # (B, H, 4, d) of phi_k, phi_q, phi_k t / O and phi_q t / I
    rivals: Tensor  # (B, H, 1) log of the sum of e^O'
    t: Tensor  # (B, 1, 1)


@register("flowformer")
class Flowformer(StreamingAttention):
    title = "Flowformer"
    family = "fixed kernels"
    marker = "<"
    paper = Paper(
        "Flowformer: Linearizing Transformers with Conservation Flows",
        2022,
        "https://arxiv.org/abs/2202.06258",
    )
    complexity = "O(n d e)"
    profiles = ("strict", "published")
    declared = StreamingAttention.declared.but(
        causal_if_strict="the public code has none",
        row_stochastic=False,  # rows sum to what competition and allocation leave
        convex=False,
        exempt={
            "causal": "what a source sends depends on the queries up to it, and not on later ones"
        },
    )

    def cross(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Mask) -> Tensor:
        phi_q, phi_k, weight, share = self.capacities(q, k, key_mask)
        return (phi_q @ (phi_k.mT @ (share.unsqueeze(-1) * v))) * weight.unsqueeze(-1)

    def capacities(self, q: Tensor, k: Tensor, mask: Mask) -> tuple[Tensor, ...]:
        """phi_q, phi_k, and what multiplies the rows and the columns of phi_q phi_k^T, (B, H, n)
        each."""
        phi_q, phi_k = self.phi(q, mask), self.phi(k, mask)
        if mask is None or self.profile == "published":
            m, mask = phi_q.new_full((1, 1, 1), q.shape[2]), None
        else:
            m, mask = mask.sum(-1).to(q.dtype)[:, None, None], mask.unsqueeze(1)
        weight, O = self._flows(phi_q, phi_k, 1, lambda rows: rows.sum(-2, keepdim=True))
        share = O.softmax(1) if self.profile == "published" else masked_softmax(O, mask)
        return phi_q, phi_k, weight, m * share

    def phi(self, x: Tensor, mask: Mask) -> Tensor:
        return x.relu() + EPS if self.profile == "published" else zero_padding(x.sigmoid(), mask)

    def _flows(
        self, phi_q: Tensor, phi_k: Tensor, t: Tensor | int, gather: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """sigmoid(I') / I and O', (B, H, n). `gather` sums rows (B, H, n, d) over the tokens that
        each row sees: t in the causal form, whose flows are means."""

        def flow(x: Tensor, others: Tensor) -> Tensor:
            total = gather(others)
            if self.profile == "published":
                return ((x + EPS) * (total + EPS)).sum(-1)
            return (x * total).sum(-1).clamp_min(EPS)

        incoming, outgoing = flow(phi_q, phi_k), flow(phi_k, phi_q)
        received = flow(phi_q, phi_k * (t / outgoing).unsqueeze(-1)) / t
        sent = flow(phi_k, phi_q * (t / incoming).unsqueeze(-1)) / t
        return received.sigmoid() / incoming, sent

    def causal_capacities(
        self, state: FlowState | None, q: Tensor, k: Tensor, mask: Mask
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor, Tensor]]:
        """Return `capacities`, and the state's `sums`, `rivals` and `t` after these tokens."""
        phi_q, phi_k = self.phi(q, mask), self.phi(k, mask)
        t = tokens_seen(state and state.t, q, mask)
        sums: list[Tensor] = []

        def gather(rows: Tensor) -> Tensor:
            total = rows.cumsum(-2)
            if state:
                total = total + state.sums[:, :, len(sums), None]
            sums.append(total[:, :, -1])
            return total

        weight, O = self._flows(phi_q, phi_k, t.clamp_min(1), gather)
        if mask is not None:
            O = O.masked_fill(~mask.unsqueeze(1), ABSENT)
        rivals = O.logcumsumexp(-1)  # (B, H, n)
        if state:
            rivals = torch.logaddexp(rivals, state.rivals)
        after = torch.stack(sums, 2), rivals[..., -1:], t[..., -1:]
        return (phi_q, phi_k, weight, t * (O - rivals).exp()), after

    def causal_from(
        self, state: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask
    ) -> tuple[FlowState, Tensor]:
        (phi_q, phi_k, weight, share), after = self.causal_capacities(state, q, k, mask)
        v = share.unsqueeze(-1) * v
        N, _ = causal_linear_sums(phi_q, phi_k, v, self.chunk)
        S = phi_k.mT @ v
        if state:
            N, S = N + phi_q @ state.S, S + state.S
        return FlowState(S, *after), N * weight.unsqueeze(-1)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        phi_q, phi_k, weight, share = (
            self.causal_capacities(None, q, k, mask)[0]
            if self.causal
            else self.capacities(q, k, mask)
        )
        A = torch.einsum("bhi,bhid,bhjd,bhj->bhij", weight, phi_q, phi_k, share)
        return A.tril() if self.causal else A
