"""mLSTM, the matrix memory of xLSTM, in both directions. Beck et al. (2024),
https://arxiv.org/abs/2405.04517

    S_i = f_i S_(i-1) + e^(a_i) k_i v_i^T     z_i = f_i z_(i-1) + e^(a_i) k_i
    o_i = S_i^T q_i / max(|z_i . q_i|, 1)     q divided by sqrt(d)
    out_i = gain * o_i / rms(o_i)     of each head

    f_i = sigmoid(c(w_f . k_i + b_f))     what is kept
    a_i = c(w_a . k_i + b_a)              what is written, by an exponential
    c(t) = 15 tanh(t / 15)                of xLSTM 7B (https://arxiv.org/abs/2503.13427)

Uncapped, e^a overflows unless every sum is in units of the largest one so far. With the cap it is
at most 3.3 million, so plain sums in float32 hold it.

The papers are about language models; Vision-LSTM (https://arxiv.org/abs/2406.04303) turns the
direction at every layer. Here the same recurrence runs from the end too, a token's own weight
counts once, and one divisor serves both directions. The decay of the query's own token acts, the
key's does not.

The published gates read the hidden states x (`gates=x`, preset `published`). By default they read
the key: in a matched comparison all methods are functions of the same q, k, v. The authors' norm
subtracts the mean, too. Left out: a short convolution, and a gate on the output, which an `Around`
(luna/around.py) puts around any method.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import AttentionTraits, Mask, Paper, Slot, register, zero_padding
from luna.gates import Gates, Source
from luna.scans import dense_weights, scan, with_ones
from luna.surround import HeadNorm, NormedHeads

CAP = 15.0
EPS = 1e-6  # of the norm
KEPT = (3.0, 6.0)  # logits of f at the start, from the first head to the last: the authors'
WRITTEN = 0.1  # deviation of those of a


class MlstmState(NamedTuple):
    S: Tensor  # (B, H, d, e)
    z: Tensor  # (B, H, d, 1)


def capped(logits: Tensor) -> Tensor:
    return CAP * (logits / CAP).tanh()


@register("mlstm")
class Mlstm(NormedHeads):
    title = "mLSTM"
    family = "gates"
    marker = "h"
    paper = Paper(
        "xLSTM: Extended Long Short-Term Memory", 2024, "https://arxiv.org/abs/2405.04517"
    )
    complexity = "O(n d e)"
    declared = NormedHeads.declared.but(equivariant=False, row_stochastic=False, convex=False)
    chunk = 32

    def __init__(self, slot: Slot, *, gates: Source = "k", norm: bool = True):
        super().__init__(slot)
        H, d = slot.n_heads, slot.head_dim
        self.keep, self.write = Gates(gates, H, d), Gates(gates, H, d)
        begin_with(self.keep, torch.linspace(*KEPT, H))
        begin_with(self.write, WRITTEN * torch.randn(H))
        self.norm = HeadNorm(H, d, EPS) if norm else None

    def _traits(self) -> AttentionTraits:
        return self._with_norm(self.declared.but(needs_x=self.keep.source == "x"))

    def _read(
        self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, scaled, keys with what is written of them, and log f (B, H, n, 1), 0 at padding."""
        g = zero_padding(F.logsigmoid(capped(self.keep(k, x))), mask)
        return q * self.head_dim**-0.5, capped(self.write(k, x)).exp() * k, g

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.causal:
            return self.causal_from(None, q, k, v, mask, x)[1]
        q, k, g = self._read(q, k, mask, x)
        return self._normed(divided(scan(q, k, with_ones(v), g, back=g, chunk=self.chunk)[1]))

    def causal_from(
        self,
        state: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        x: Tensor | None = None,
    ) -> tuple[MlstmState, Tensor]:
        q, k, g = self._read(q, k, mask, x)
        before = None if state is None else torch.cat(state, -1)
        S, sums = scan(q, k, with_ones(v), g, state=before, chunk=self.chunk)
        return MlstmState(S[..., :-1], S[..., -1:]), self._normed(divided(sums))

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        q, k, g = self._read(q, k, mask, x)
        A = dense_weights(q, k, g, back=None if self.causal else g)
        return A / A.sum(-1, keepdim=True).abs().clamp_min(1)

    def flops(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """By the recurrence: 2 d (e + 1) to write and as many to read, for each direction."""
        B, H, n, d = q.shape
        directions = 1 if self.causal else 2
        gates = self.keep.cost(k) + self.write.cost(k)
        return directions * 4 * B * H * n * d * (v.shape[-1] + 1) + gates

    def elementwise(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """A state of d (e + 1) numbers fades at each token, in each direction."""
        return (1 if self.causal else 2) * k.numel() * (v.shape[-1] + 1)


def divided(sums: Tensor) -> Tensor:
    return sums[..., :-1] / sums[..., -1:].abs().clamp_min(1)


@torch.no_grad()
def begin_with(gates: Gates, logits: Tensor) -> None:
    """Let a gate be these logits of the heads at the start, whatever it reads."""
    bias = gates.map.bias
    assert bias is not None
    nn.init.zeros_(gates.map.weight)
    bias.copy_(logits.view_as(bias))
