"""LUNA: linear attention whose kernel feature map is learned.

    phi_{iL+l}(x) = h(x) M^(-1/2) psi_l(w_i . x + beta_i)     o_i = S^T phi(q_i) / (z . phi(q_i))

w_i, beta_i are M learned projections, psi_1..psi_L learned scalar MLPs, h an optional envelope
(off, as in the paper's listing). The defaults are the listing's; M = L = 8 and the kernels besides
`learned` are the ablation's. Causal attention and streaming are the engine's (luna/linear.py).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from luna.base import LunaError, Paper, Slot, register
from luna.feature_maps import envelope as env
from luna.feature_maps.bank import BankConcat, BankSum
from luna.feature_maps.learned import Design, FeatureMap, LearnedFeatures, Nonneg
from luna.feature_maps.rff import FourierFeatures
from luna.kernels import luna_attention as fused
from luna.kernels.scalar_mlp import SLOPES, Activation, check, evaluator
from luna.linear import KernelAttention, count_dead

Kernel = Literal["learned", "bank_coef", "bank_coef_concat", "rff"]
Evaluate = Literal["auto", "dense", "piecewise", "compiled", "triton", "fused"]


class FourierMap(FeatureMap):
    """`rff`: the fixed kernel of the ablation, random Fourier features of the same width."""

    signed = True
    eps = 1e-2  # features have unit norm: one matching key contributes 1

    def __init__(self, design: Design):
        super().__init__(design)
        self.feature_dim = design.M * design.L
        if self.feature_dim % 2:
            raise LunaError(
                f"luna.kernel='rff' pairs its features: M L must be even, got {self.feature_dim}"
            )
        self.fourier = FourierFeatures(design.head_dim, self.feature_dim // 2, design.seed)

    def forward(self, x: Tensor, mask: Tensor | None, keys: bool = False) -> Tensor:
        return self.fourier(x)

    def flops(self, n: int) -> int:
        return self.fourier.flops(n)


KERNELS: dict[str, type[FeatureMap]] = {
    "learned": LearnedFeatures,
    "bank_coef": BankSum,
    "bank_coef_concat": BankConcat,
    "rff": FourierMap,
}


@register("luna")
class Luna(KernelAttention):
    """Options:

    M, L             projections and channels; feature width D = M L
    hidden           width of the scalar MLPs
    activation       of their hidden layer
    nonneg           final relu of the MLPs, or softplus or exp; false: features are signed
    shared_channels  one MLP 1 -> hidden -> L instead of L MLPs 1 -> hidden -> 1
    share            parameters of the feature map: one set per `layer`, or per `head`
    tie_qk           the same feature map for queries and keys
    envelope         h(x): none, scalar (sigmoid or softplus), or vector (one gate per channel)
    envelope_hidden  width of the envelope's hidden relu layer, 0 = linear
    kernel           learned, or the ablation's bank_coef, bank_coef_concat, rff
    bank             functions of the bank kernels: trainable mlp, or fixed
    ch_rms           shrink channels whose RMS exceeds 0.1: of q and of k, each by its own (true, as
                     in the listing), or of both by one (shared)
    chunk            scalars per MLP call; bounds transient memory, changes no result
    evaluate         of the MLPs: dense; piecewise, compiled (CPU) or triton (GPU): exact, relu and
                     leaky_relu only; fused: self-attention as a whole; auto: the fastest of those
                     that have been measured on the device (on a GPU piecewise or dense)
    """

    paper = Paper(
        title="LUNA: Linear Universal Neural Attention with Generalization Guarantees",
        year=2025,
        url="https://arxiv.org/abs/2512.08061",
    )
    complexity = "O(n (M d + M L w + M L e))"

    def __init__(
        self,
        slot: Slot,
        *,
        M: int = 8,
        L: int = 8,
        hidden: int = 64,
        activation: Activation = "relu",
        nonneg: Nonneg = True,
        shared_channels: bool = False,
        share: Literal["layer", "head"] = "layer",
        tie_qk: bool = True,
        envelope: env.Kind = "none",
        envelope_hidden: int = 0,
        envelope_squash: env.Squash = "sigmoid",
        kernel: Kernel = "learned",
        bank: Literal["mlp", "fixed"] = "mlp",
        ch_rms: bool | Literal["shared"] = False,
        chunk: int = 1_000_000,
        evaluate: Evaluate = "auto",
    ):
        for option, value in {"M": M, "L": L, "hidden": hidden, "chunk": chunk}.items():
            if value < 1:
                raise LunaError(f"luna.{option} must be at least 1, got {value}")
        if kernel != "learned" and (envelope != "none" or ch_rms):
            raise LunaError(f"luna.envelope and luna.ch_rms need kernel='learned', not {kernel!r}")
        if bank != "mlp" and not kernel.startswith("bank"):
            raise LunaError(f"luna.bank='{bank}' needs a bank kernel, not kernel={kernel!r}")
        check("piecewise" if evaluate == "fused" else evaluate, activation)
        plain = kernel == "learned" and envelope == "none" and not ch_rms and tie_qk
        plain = plain and isinstance(nonneg, bool)
        if evaluate == "fused" and not plain:
            raise LunaError(
                "luna.evaluate='fused' needs kernel='learned', envelope='none', ch_rms=false, "
                "tie_qk=true, and nonneg true or false: use evaluate='auto'"
            )
        if ch_rms == "shared" and not tie_qk:
            raise LunaError(
                "luna.ch_rms='shared' is one statistic of one map: it needs tie_qk=true"
            )
        if ch_rms and slot.causal:
            raise LunaError("luna.ch_rms takes statistics over the sequence: it sees the future")
        design = Design(
            head_dim=slot.head_dim,
            groups=slot.n_heads if share == "head" else 1,
            M=M,
            L=L,
            hidden=hidden,
            activation=activation,
            nonneg=nonneg,
            shared_channels=shared_channels,
            envelope=envelope,
            envelope_hidden=envelope_hidden,
            envelope_squash=envelope_squash,
            bank=bank,
            statistics=2 if ch_rms is True and tie_qk else 1 if ch_rms else 0,
            chunk=chunk,
            evaluate="auto" if evaluate == "fused" else evaluate,  # where features are asked for
            seed=slot.seed,
        )
        super().__init__(slot, eps=KERNELS[kernel].eps)
        self.map = KERNELS[kernel](design)
        self.map_k = None if tie_qk else KERNELS[kernel](design)
        self.joint = ch_rms == "shared"
        self.cross_form = not ch_rms  # type: ignore[misc]  # its statistic is that of one sequence
        self.evaluate, self.activation = evaluate, activation
        self.fusible = plain and activation in SLOPES and evaluate in ("auto", "fused")
        self.feature_dim = self.map.feature_dim
        self.signed = self.map.signed  # type: ignore[misc]  # here an option decides
        self.convex = not self.signed  # type: ignore[misc]

    def evaluation(self, device: str) -> str:
        """What `evaluate` comes to on a type of device, e.g. fused on `cpu`."""
        if self.evaluate == "fused":
            fused.check(device)
            return "fused"
        if self.fusible and fused.on_cpu(device):  # on GPUs nothing has been measured
            return "fused"
        return evaluator(self.evaluate, self.activation, device)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, x: Tensor | None
    ) -> Tensor:
        if self.evaluation(q.device.type) != "fused":
            return super().attend(q, k, v, mask, x)
        assert isinstance(self.map, LearnedFeatures)
        W, psi = self.map.projections, self.map.channels
        assert W.bias is not None
        out, c = fused.luna_attention(
            *(q, k, v),
            mask,
            *(W.weight, W.bias, psi.e, psi.f, psi.a * self.map.scale, psi.g * self.map.scale),
            activation=self.activation,
            nonneg=psi.nonneg,
            causal=self.causal,
            eps=self.eps,
        )
        if not self.training:
            self.dead_fraction = count_dead(c, mask, self.eps)
        return out

    def phi_q(self, q: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
        return self.map(q, mask)

    def phi_k(self, k: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
        return (self.map if self.map_k is None else self.map_k)(k, mask, keys=True)

    def features(self, q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if not self.joint:
            return super().features(q, k, mask)
        # One statistic for both: the channels of q and k are shrunk by the same factors.
        both = None if mask is None else torch.cat([mask, mask])
        phi_q, phi_k = self.map(torch.cat([q, k]), both).chunk(2)
        return phi_q, phi_k if mask is None else phi_k * mask[:, None, :, None]

    def feature_flops(self, n: int) -> int:
        return self.map.flops(n)
