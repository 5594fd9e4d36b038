"""LUNA's options: their names, types, defaults and limits. Everything else reads them here.

configs/attention/luna.yaml repeats the names, defaults and comments for the command line; a test
holds it to this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from luna.base import LunaError, Slot, at_least
from luna.kernels.scalar_mlp import SLOPES, Activation, Nonneg, evaluator

Kernel = Literal["learned", "bank_coef", "bank_coef_concat", "rff"]
Evaluate = Literal["auto", "dense", "piecewise", "fused"]
Squash = Literal["sigmoid", "softplus", "exp", "none"]


@dataclass(frozen=True, kw_only=True)
class LunaOptions:
    """The defaults are those of the paper's listing; M = L = 8 is its ablation's."""

    M: int = 8  # projections of a token
    L: int = 8  # scalar functions (channels); feature width D = M L
    hidden: int = 64  # width of the scalar MLPs
    activation: Activation = "relu"  # of their hidden layer
    nonneg: Nonneg = True  # final relu of the MLPs, or softplus, exp (clamped at 15); false: signed
    shared_channels: bool = False  # one MLP 1 -> hidden -> L instead of L MLPs 1 -> hidden -> 1
    share: Literal["layer", "head"] = "layer"  # one feature map per layer, or one per head
    tie_qk: bool = True  # the same feature map for queries and keys
    envelope: Literal["none", "scalar", "vector", "norm"] = "none"  # h(x): none, one gate (scalar)
    envelope_hidden: int = 0  # width of the envelope's hidden relu layer; 0: linear
    envelope_squash: Squash = "sigmoid"  # output of h: sigmoid
    kernel: Kernel = "learned"  # learned, or the ablation's bank_coef, bank_coef_concat, rff
    phases: bool = False  # of kernel=rff: cos(w.x + b), b ~ U(0, 2 pi), in place of pairs cos, sin
    projections: Literal["learned", "frozen", "gaussian"] = "learned"  # w_i and beta_i: learned
    psi: Literal["learned", "frozen"] = "learned"  # scalar MLPs: learned, or frozen as drawn
    ch_rms: bool | Literal["shared"] = False  # shrink channels whose root mean square exceeds 0.1
    chunk: int = 1_000_000  # scalars per MLP call; bounds transient memory, changes no result
    evaluate: Evaluate = "auto"  # how the MLPs are computed, the result is the same

    def __post_init__(self) -> None:
        at_least("luna", 1, M=self.M, L=self.L, hidden=self.hidden, chunk=self.chunk)
        if self.kernel != "learned" and (self.envelope != "none" or self.ch_rms):
            raise LunaError(
                f"luna.envelope and luna.ch_rms need kernel='learned', not {self.kernel!r}"
            )
        at_least("luna", 0, envelope_hidden=self.envelope_hidden)
        if self.phases and self.kernel != "rff":
            raise LunaError(f"luna.phases=true needs kernel='rff', not {self.kernel!r}")
        if self.kernel == "rff" and (self.projections, self.psi) != ("learned", "learned"):
            raise LunaError(
                "luna.kernel='rff' never trains its frequencies: leave projections and psi out"
            )
        if self.envelope == "vector" and self.envelope_squash != "sigmoid":
            raise LunaError(
                "a vector envelope lies in [0, 1]: luna.envelope_squash must be sigmoid"
            )
        evaluator("piecewise" if self.evaluate == "fused" else self.evaluate, self.activation)
        if self.evaluate == "fused" and not self.fusible:
            raise LunaError(
                "luna.evaluate='fused' needs kernel='learned', envelope='none', ch_rms=false and "
                "tie_qk=true: use evaluate='auto'"
            )
        if self.ch_rms == "shared" and not self.tie_qk:
            raise LunaError(
                "luna.ch_rms='shared' is one statistic of one map: it needs tie_qk=true"
            )

    @property
    def fusible(self) -> bool:
        """The fused kernels (luna/kernels/luna_attention) compute this feature map."""
        plain = self.kernel == "learned" and self.envelope == "none" and not self.ch_rms
        return plain and self.tie_qk and self.activation in SLOPES

    @property
    def feature_dim(self) -> int:
        return self.M * self.L

    def groups(self, slot: Slot) -> int:
        """How many sets of parameters the slot's feature map has."""
        return slot.n_heads if self.share == "head" else 1
