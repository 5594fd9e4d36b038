"""DeltaNet in both directions: `gated_deltanet` without its decay, which has the formulas.

Yang et al. (2024), https://arxiv.org/abs/2406.06484, in chunks; the rule is of Schlag et al.
(2021), https://arxiv.org/abs/2102.11174.

`steps: s` is DeltaProduct (Siems et al. 2025, https://arxiv.org/abs/2502.10297): each token applies
the rule s times, with keys, values and strengths of its own,

    S = (I - b_s k_s k_s^T) ... (I - b_1 k_1 k_1^T) S + what the steps write

so that a token may do to the state what no single reflection does, such as turn it: with `negative`
two steps are a rotation. The first step is that of the rule; keys and values of the others are
linear maps of the token's own key and value, head by head, or of the hidden states (`gates=x`), as
published. From the end the steps of a token have the same order.

With `features` k and q are phi(k) and phi(q) (luna/feature_maps/unit.py).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from luna.attention.gated_deltanet import DeltaRule
from luna.base import AttentionTraits, Mask, Paper, Slot, at_least, register, zero_padding
from luna.delta import product_alone, product_scan
from luna.feature_maps.unit import USUAL, Features, UnitFeatures
from luna.gates import Gates, Source
from luna.kernels.scalar_mlp import Nonneg


@register("deltanet")
class DeltaNet(DeltaRule):
    title = "DeltaNet"
    family = "delta rule"
    marker = "v"
    paper = Paper(
        "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
        2024,
        "https://arxiv.org/abs/2406.06484",
    )
    complexity = "O(n s D (D + e))"
    added: ClassVar[dict[str, Any]] = {"steps": 1, **USUAL}

    def __init__(
        self,
        slot: Slot,
        *,
        gates: Source = "k",
        negative: bool = False,
        steps: int = 1,
        features: Features = "none",
        M: int = 8,
        L: int = 8,
        nonneg: Nonneg = True,
        frozen: bool = False,
        norm: bool = True,
    ):
        super().__init__(slot, gates=gates, negative=negative, norm=norm)
        at_least("deltanet", 1, steps=steps)
        learned: dict[str, Any] = {"nonneg": nonneg, "frozen": frozen}
        self.features = UnitFeatures(self.name, slot, features, M=M, L=L, **learned)
        self.steps_of_token = steps
        if steps > 1:
            H, d = slot.n_heads, slot.head_dim
            self.write = Gates(gates, H, d, steps)
            self.keys = Gates(gates, H, d, (steps - 1) * d)
            self.values = Gates(gates, H, d, (steps - 1) * d)

    def _traits(self) -> AttentionTraits:
        facts = super()._traits()
        facts = facts.but(idle=self.features.idle("features"))
        if self.steps_of_token == 1:
            return facts
        reasons = {**facts.exempt, "d_v": "values of further steps are maps of a head's channels"}
        return facts.but(has_matrix=False, exempt=reasons)

    def phi(self, t: Tensor) -> Tensor:
        phi: Tensor = self.features(t)
        return phi

    def tokens(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None
    ) -> tuple[Tensor, ...]:
        """q, k, r, w, the last three (B, H, n, s, .), where a token has several steps."""
        s = self.steps_of_token
        if s == 1:
            return super().tokens(q, k, v, mask, x)
        self.values_of_a_head(v, f"steps={s}")
        beta = zero_padding(self.highest * self.write(k, x).sigmoid(), mask).unsqueeze(-1)
        keys = torch.cat([k, self.keys(k, x)], -1).unflatten(-1, (s, -1))
        values = torch.cat([v, self.values(v, x)], -1).unflatten(-1, (s, -1))
        keys = self.phi(keys.flatten(2, 3)).unflatten(2, (-1, s))
        q = self.phi(q) * self.head_dim**-0.5
        return q, keys, beta * keys, beta * values

    def scan(self, tokens: tuple[Tensor, ...], before: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.steps_of_token == 1:
            return super().scan(tokens, before)
        q, k, r, w = tokens
        return product_scan(q, k, r, w, before, self.chunk)

    def alone(self, tokens: tuple[Tensor, ...]) -> Tensor:
        if self.steps_of_token == 1:
            return super().alone(tokens)
        return product_alone(*tokens)

    def flops(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """By the recurrence: 2 D e each to read what a key holds and to write, for each step, and
        to read for the query, in each direction; maps of the gates, further steps, and features."""
        B, H, n = q.shape[:3]
        s, directions = self.steps_of_token, 1 if self.causal else 2
        D = self.features.width
        rule = directions * (4 * s + 2) * n * D * v.shape[-1]
        return B * H * (rule + self.features.cost(n + n * s)) + self.gates_cost(k)

    def elementwise(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """Its state does not fade."""
        return 0
