"""LUNA: linear attention whose kernel feature map is learned.

    phi_{iL+l}(x) = h(x) M^(-1/2) psi_l(w_i . x + beta_i)     o_i = S^T phi(q_i) / (z . phi(q_i))

w_i, beta_i are M learned projections, psi_1..psi_L learned scalar MLPs, h an optional envelope
(off, as in the paper's listing). `Listing` is the definition, in a form to read. `Luna` computes
the same in linear time, with the options of luna/feature_maps/options.py; causal attention and
streaming come from luna/linear.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from luna.base import AttentionTraits, LunaError, Mask, Paper, Slot, register
from luna.feature_maps.bank import BankFeatures
from luna.feature_maps.learned import FeatureMap, LearnedFeatures
from luna.feature_maps.options import LunaOptions
from luna.feature_maps.random import FourierFeatures
from luna.kernels import luna_attention as fused
from luna.kernels.scalar_mlp import ACTIVATIONS, OUTPUTS, evaluator
from luna.linear import KernelAttention
from luna.sums import denominator


class Listing(nn.Module):
    """LUNA as the paper lists it, quadratic in n: the definition of every fast version.

    One feature map serves queries and keys, all tokens and all heads.
    """

    def __init__(self, d: int, o: LunaOptions, *, causal: bool = False, eps: float = 1e-6):
        super().__init__()
        self.o, self.causal, self.eps = o, causal, eps
        self.W = nn.Parameter(torch.randn(o.M, d) / d**0.5)
        self.beta = nn.Parameter(torch.zeros(o.M))
        outputs = [o.L] if o.shared_channels else [1] * o.L  # one MLP for all channels, or one each
        self.first = nn.ModuleList(nn.Linear(1, o.hidden) for _ in outputs)
        self.second = nn.ModuleList(nn.Linear(o.hidden, out) for out in outputs)

    def psi(self, u: Tensor) -> Tensor:
        """Every channel of every scalar: (...) -> (..., L)."""
        act, layers = ACTIVATIONS[self.o.activation], zip(self.first, self.second, strict=True)
        y = torch.cat([second(act(first(u.unsqueeze(-1)))) for first, second in layers], -1)
        return OUTPUTS[self.o.nonneg](y)

    def phi(self, x: Tensor) -> Tensor:
        """Eq. phi-def-scalarenv with h = 1: x (B, H, n, d) -> (B, H, n, M L)."""
        u = x @ self.W.T + self.beta  # (B, H, n, M): u_i = w_i . x + beta_i
        y = self.psi(u)  # (B, H, n, M, L): psi_l(u_i)
        if self.o.ch_rms:  # channels louder than 0.1 are turned down
            rho = (y.square().mean((0, 1, 2, 3)) + 1e-6).sqrt()  # (L,)
            y = y * (0.1 / (rho + 1e-6)).clamp(max=1)
        return y.flatten(-2) / self.o.M**0.5

    def weights(self, q: Tensor, k: Tensor, mask: Mask = None) -> Tensor:
        """A_ij = phi(q_i) . phi(k_j) (B, H, n, n), 0 where token i does not see token j."""
        A = self.phi(q) @ self.phi(k).mT
        A = A if mask is None else A * mask[:, None, None, :]
        return A.tril() if self.causal else A

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask = None) -> Tensor:
        """o_i = sum_j A_ij v_j / sum_j A_ij: (B, H, n, e)."""
        A = self.weights(q, k, mask)
        c = A.sum(-1, keepdim=True)  # (B, H, n, 1)
        return A @ v / denominator(c, self.eps, signed=not self.o.nonneg)


class FourierMap(FeatureMap):
    """`rff`: the fixed kernel of the ablation, random Fourier features of the same width."""

    signed = True
    eps = 1e-2  # features have unit norm: one matching key contributes 1

    def __init__(self, slot: Slot, options: LunaOptions):
        super().__init__()
        D, phases = options.feature_dim, options.phases
        if D % 2 and not phases:
            raise LunaError(f"luna.kernel='rff' pairs its features: M L must be even, got {D}")
        frequencies = D if phases else D // 2
        self.fourier = FourierFeatures(slot.head_dim, frequencies, slot.seed, phases=phases)

    def forward(self, x: Tensor, mask: Mask, keys: bool = False) -> Tensor:
        return self.fourier(x)


KERNELS: dict[str, type[FeatureMap]] = {
    "learned": LearnedFeatures,
    "bank_coef": BankFeatures,
    "bank_coef_concat": BankFeatures,
    "rff": FourierMap,
}


@register("luna")
class Luna(KernelAttention):
    title = "LUNA"
    family = "learned kernels"
    marker = "D"
    paper = Paper(
        "LUNA: Linear Universal Neural Attention with Generalization Guarantees",
        2025,
        "https://arxiv.org/abs/2512.08061",
    )
    complexity = "O(n (M d + M L w + M L e))"
    options_class = LunaOptions

    def __init__(self, slot: Slot, **options: Any):
        o = LunaOptions(**options)
        if o.ch_rms and slot.causal:
            raise LunaError("luna.ch_rms takes statistics over the sequence: it sees the future")
        feature_map = KERNELS[o.kernel]
        first = feature_map(slot, o)
        super().__init__(slot, eps=feature_map.eps, signed=first.signed)
        self.map = first
        self.map_k = None if o.tie_qk else feature_map(slot, o)
        self.joint = o.ch_rms == "shared"
        self.options = o
        self.evaluate, self.activation = o.evaluate, o.activation
        self.fusible = o.fusible and o.evaluate in ("auto", "fused")
        self.feature_dim = o.feature_dim

    def _traits(self) -> AttentionTraits:
        facts, idle = super()._traits(), {}
        if self.options.kernel == "learned" and self.options.psi == "learned":
            maps = ("map",) if self.map_k is None else ("map", "map_k")
            off = "a unit or an output with relu may be off for all tokens"
            idle = {f"{name}.channels.*": off for name in maps}
        if self.options.envelope != "none" and self.options.envelope_squash == "exp":
            factor = "a factor that all features have in common cancels"
            idle["*.envelope.out.bias"] = factor
        facts = facts.but(idle=idle)
        # The statistic of ch_rms is that of one sequence.
        return facts.but(cross_form=False) if self.options.ch_rms else facts

    def is_fused(self, device: str) -> bool:
        if self.evaluate == "fused":
            fused.check(device)
            return True
        return self.fusible and fused.is_default(device)

    def evaluation(self, device: str) -> str:
        if self.is_fused(device) or self.evaluate == "fused":
            return "fused"
        return evaluator(self.evaluate, self.activation)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.is_fused(q.device.type):
            return self._fused(q, k, v, mask)
        return super().attend(q, k, v, mask, x)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        assert isinstance(self.map, LearnedFeatures)
        W, psi = self.map.projections, self.map.channels
        assert W.bias is not None
        # relu(s y) = s relu(y), but exp and softplus have features 1 / s times too large.
        scale, eps, left_out = self.map.scale, self.eps, 1.0
        if isinstance(psi.nonneg, str):
            scale, eps, left_out = 1.0, eps / scale**2, scale**2
        divided = self.normalise != "rms"
        out, c = fused.luna_attention(
            *(q, k, v),
            mask,
            *(W.weight, W.bias, psi.e, psi.f, psi.a * scale, psi.g * scale),
            activation=self.activation,
            nonneg=psi.nonneg,
            causal=self.causal,
            eps=eps,
            divided=divided,
            absolute=self.absolute,
            compare=self.evaluate == "auto",
        )
        if not divided:
            return self.divide(out, c, mask, left_out)
        self.watch(c, mask, eps)
        return out

    def phi_q(self, q: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self.map(q, mask)

    def phi_k(self, k: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return (self.map if self.map_k is None else self.map_k)(k, mask, keys=True)

    def features(self, q: Tensor, k: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        if not self.joint:
            return super().features(q, k, mask)
        # One statistic for both: the channels of q and k are shrunk by the same factors.
        both = None if mask is None else torch.cat([mask, mask])
        phi_q, phi_k = self.map(torch.cat([q, k]), both).chunk(2)
        return phi_q, phi_k if mask is None else phi_k * mask[:, None, :, None]
