"""KDA, Kimi Delta Attention, in both directions: `gated_deltanet` whose decay is one of each
feature. Kimi Team (2025), https://arxiv.org/abs/2510.26692

    S_i = (I - beta_i k_i k_i^T) diag(e^(g_i)) S_(i-1) + beta_i k_i v_i^T
    o_i = S_i^T q_i / sqrt(d)
    q, k = silu of the projections, of length 1
    beta_i = sigmoid(w . k_i + b)                     twice that with `negative`
    g_i = -a_h softplus(U_2 U_1 k_i + c)              of each feature, a_h of each head
    out_i = gain * o_i / rms(o_i)                     of each head

`erase` is GDN-2 (2026), https://arxiv.org/abs/2605.22791: a gate of what is erased, of each feature
of the keys, apart from one of what is written, of each channel of the values,

    S_i = (I - k_i (b_i * k_i)^T) diag(e^(g_i)) S_(i-1) + k_i (w_i * v_i)^T
    b_i = sigmoid(B k_i + .)     w_i = sigmoid(W k_i + .)

where `negative` doubles what is erased. Both ways, gates and norm are those of `gated_deltanet`,
which says why; the published gates read the hidden states (`gates=x`) through as many channels as a
head has. Left out: silu of the values, and a short convolution and a sigmoid gate on the output
(luna/around.py has one with silu). Decays below e^-10 count as that (luna/scans.py).
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from luna.attention.gated_deltanet import FADING, DeltaRule, drawn_rates, faded
from luna.base import AttentionTraits, Mask, Paper, Rate, Slot, at_least, register
from luna.gates import Gates, Source, begin_with_small_steps
from luna.scans import FLOOR

RATES = (1.0, 16.0)  # a_h at the start is uniform between these


@register("kda")
class KDA(DeltaRule):
    title = "KDA"
    family = "delta rule"
    marker = "D"
    paper = Paper(
        "Kimi Linear: An Expressive, Efficient Attention Architecture",
        2025,
        "https://arxiv.org/abs/2510.26692",
    )
    rates: ClassVar[dict[str, Rate]] = FADING
    chunk = 32

    def __init__(
        self,
        slot: Slot,
        *,
        gates: Source = "k",
        rank: int = 16,
        erase: bool = False,
        negative: bool = False,
        norm: bool = True,
    ):
        super().__init__(slot, gates=gates, negative=negative, norm=norm)
        at_least("kda", 1, rank=rank)
        H, d = slot.n_heads, slot.head_dim
        self.step_size = Gates(gates, H, d, d, rank=rank)
        self.log_rate = drawn_rates(H, RATES)
        begin_with_small_steps(self.step_size)
        self.erase = None
        if erase:
            self.erase, self.write = Gates(gates, H, d, d), Gates(gates, H, d, d)

    def _traits(self) -> AttentionTraits:
        facts = super()._traits()
        if self.erase is None:
            return facts
        # Each channel of the values has a weight of its own.
        reasons = {**facts.exempt, "d_v": "its gates belong to channels"}
        return facts.but(has_matrix=False, exempt=reasons)

    def tokens(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None
    ) -> tuple[Tensor, ...]:
        if self.erase is not None:
            self.values_of_a_head(v, "erase=true")
        return super().tokens(q, k, v, mask, x)

    def log_decay(self, k: Tensor, x: Tensor | None) -> Tensor:
        return faded(self.log_rate, self.step_size(k, x)).clamp_min(FLOOR)

    def strengths(self, k: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.erase is None:
            return super().strengths(k, x)
        return self.highest * self.erase(k, x).sigmoid(), self.write(k, x).sigmoid()
