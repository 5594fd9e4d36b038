"""Gated DeltaNet in both directions: a state that corrects what it holds under a key, and forgets.
Yang et al. (2024), https://arxiv.org/abs/2412.06464

    S_i = e^(g_i) (I - beta_i k_i k_i^T) S_(i-1) + beta_i k_i v_i^T     o_i = S_i^T q_i / sqrt(d)
    q, k = silu of the projections, of length 1
    beta_i = sigmoid(w . k_i + b)            twice that with `negative`
    g_i = -a_h softplus(u . k_i + c)         of each head
    out_i = gain * o_i / rms(o_i)            of each head

`deltanet` (Yang et al. 2024, https://arxiv.org/abs/2406.06484) is the same with g = 0. A key that
was written before is overwritten where linear attention adds: with beta = 1 and the same key twice
the second value replaces the first. With beta up to 2 the state may change its sign along a key,
which lets it track states (Grazzi et al. 2024, https://arxiv.org/abs/2411.12537).

The papers are about language models. Both ways, the same recurrence runs from the end too, and a
token's own weight, beta_i q_i . k_i / sqrt(d), counts once.

The published gates read the hidden states x (`gates=x`, preset `published`). By default they read
the key's projection, before silu: in a matched comparison all methods are functions of the same
q, k, v. The norm stays: without it outputs begin at 3 % of the size of values. Left out: silu of
the values, which are as in every other row; and a short convolution, which the authors call
crucial, and a gate on the output, which an `Around` (luna/around.py) puts around any method.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import AttentionTraits, Mask, Paper, Rate, Slot, register, zero_padding
from luna.delta import dense_delta, rule_scan
from luna.errors import LunaError
from luna.gates import Gates, Source, begin_with_small_steps
from luna.surround import HeadNorm, NormedHeads
from luna.tensors import unit

EPS = 1e-5  # of the norm
RATES = (0.01, 16.0)  # a_h at the start is uniform between these; the authors begin at 0
FADING = dict.fromkeys(("log_rate", "step_size.map.bias"), Rate(decay=False))


class DeltaState(NamedTuple):
    S: Tensor  # (B, H, d, e)


class DeltaRule(NormedHeads):
    """What all of them have in common: one gate of what is written, which is what is erased, too;
    a subclass says what decays, or gates both apart."""

    complexity = "O(n d (d + e))"
    declared = NormedHeads.declared.but(
        equivariant=False,
        row_stochastic=False,
        convex=False,
    )
    chunk = 64

    def __init__(
        self, slot: Slot, *, gates: Source = "k", negative: bool = False, norm: bool = True
    ):
        super().__init__(slot)
        H, d = slot.n_heads, slot.head_dim
        self.highest = 2.0 if negative else 1.0  # beta
        self.write = Gates(gates, H, d)
        self.norm = HeadNorm(H, d, EPS) if norm else None

    def _traits(self) -> AttentionTraits:
        facts = self.declared.but(needs_x=self.write.source == "x")
        return self._with_norm(facts)

    def log_decay(self, k: Tensor, x: Tensor | None) -> Tensor:
        """g (B, H, n, 1), or (B, H, n, d): of each feature."""
        return torch.zeros_like(k[..., :1])

    def strengths(self, k: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        """What is erased, (B, H, n, 1 or d), and what is written, (B, H, n, 1 or e)."""
        beta = self.highest * self.write(k, x).sigmoid()
        return beta, beta

    def _read(
        self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, both strengths and g of the recurrence, the last three 0 at padding."""
        erase, write = self.strengths(k, x)
        gates = (zero_padding(t, mask) for t in (erase, write, self.log_decay(k, x)))
        return self.phi(q) * self.head_dim**-0.5, self.phi(k), *gates

    def phi(self, t: Tensor) -> Tensor:
        """Queries and keys as the rule takes them, of length 1."""
        return unit(F.silu(t))

    def tokens(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None
    ) -> tuple[Tensor, ...]:
        """q, k, r, w, g of the recurrence (luna/delta.py)."""
        q, k, erase, write, g = self._read(q, k, mask, x)
        return q, k, erase * k, write * v, g

    def values_of_a_head(self, v: Tensor, option: str) -> None:
        """Refuse values of another width, for which this option has no maps."""
        if v.shape[-1] != self.head_dim:
            raise LunaError(
                f"{self.name} with {option} needs values as wide as a head, {self.head_dim}, got "
                f"{v.shape[-1]}: leave {option} out"
            )

    def scan(self, tokens: tuple[Tensor, ...], before: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, r, w, g = tokens
        return rule_scan(q, k, r, w, g, before, self.chunk)

    def alone(self, tokens: tuple[Tensor, ...]) -> Tensor:
        """What each token reads of itself."""
        q, k, _, w, _ = tokens
        return (q * k).sum(-1, keepdim=True) * w

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.causal:
            return self.causal_from(None, q, k, v, mask, x)[1]
        tokens = self.tokens(q, k, v, mask, x)
        _, ahead = self.scan(tokens, None)
        _, back = self.scan(tuple(t.flip(2) for t in tokens), None)
        return self._normed(ahead + back.flip(2) - self.alone(tokens))  # in both, to count once

    def causal_from(
        self,
        state: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        x: Tensor | None = None,
    ) -> tuple[DeltaState, Tensor]:
        S, out = self.scan(self.tokens(q, k, v, mask, x), None if state is None else state.S)
        return DeltaState(S), self._normed(out)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        q, k, beta, _, g = self._read(q, k, mask, x)  # who gates both apart has no matrix
        A = dense_delta(q, k, beta, g)
        if self.causal:
            return A
        back = dense_delta(*(t.flip(2) for t in (q, k, beta, g))).flip(2, 3)
        return A + back.triu(1)

    def flops(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """By the recurrence: 2 d e each to read what the key holds, to write, and to read for the
        query, in each direction."""
        B, H, n, d = q.shape
        directions = 1 if self.causal else 2
        return directions * 6 * B * H * n * d * v.shape[-1] + self.gates_cost(k)

    def gates_cost(self, k: Tensor) -> int:
        return sum(gate.cost(k) for gate in self.modules() if isinstance(gate, Gates))

    def elementwise(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """A state of d e numbers fades at each token, in each direction."""
        return (1 if self.causal else 2) * k.numel() * v.shape[-1]


@register("gated_deltanet")
class GatedDeltaNet(DeltaRule):
    title = "Gated DeltaNet"
    family = "delta rule"
    marker = "P"
    paper = Paper(
        "Gated Delta Networks: Improving Mamba2 with Delta Rule",
        2024,
        "https://arxiv.org/abs/2412.06464",
    )
    rates: ClassVar[dict[str, Rate]] = FADING

    def __init__(
        self, slot: Slot, *, gates: Source = "k", negative: bool = False, norm: bool = True
    ):
        super().__init__(slot, gates=gates, negative=negative, norm=norm)
        self.step_size = Gates(gates, slot.n_heads, slot.head_dim)
        self.log_rate = drawn_rates(slot.n_heads, RATES)
        begin_with_small_steps(self.step_size)

    def log_decay(self, k: Tensor, x: Tensor | None) -> Tensor:
        return faded(self.log_rate, self.step_size(k, x))


def drawn_rates(n_heads: int, between: tuple[float, float]) -> nn.Parameter:
    """log a_h, with a_h uniform between two numbers."""
    return nn.Parameter(torch.empty(n_heads).uniform_(*between).log())


def faded(log_rate: Tensor, steps: Tensor) -> Tensor:
    """g = -a_h softplus(steps)."""
    return -log_rate.to(steps.dtype).exp().view(-1, 1, 1) * F.softplus(steps)
