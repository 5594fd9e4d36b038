"""The kernels of LUNA's ablation: weighted banks of scalar functions, at the same width D = M L.

    bank_coef         phi_i(x) = D^(-1/2) sum_l c_l psi_l(w_i . x + beta_i)     i = 1..D
    bank_coef_concat  phi_{iL+l}(x) = M^(-1/2) c_l psi_l(w_i . x + beta_i)      i = 1..M

The first is the paper's formula read as a sum, the second as a concatenation; with trainable psi
the c_l of the second are absorbed by the last layer, so that its function class is plain LUNA's.
The coefficients may turn negative, so both maps are signed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luna.base import Mask, Slot
from luna.feature_maps.learned import Channels, FeatureMap, Projections
from luna.feature_maps.options import LunaOptions


class BankFeatures(FeatureMap):
    signed = True

    def __init__(self, slot: Slot, options: LunaOptions, n_projections: int):
        super().__init__(slot, options)
        G, L = options.groups(slot), options.L
        self.projections = Projections(options, G, slot.head_dim, n_projections)
        self.channels = Channels(slot, options)
        self.coef = nn.Parameter(torch.full((G, L), 1 / L))
        self.scale = n_projections**-0.5

    def weighted(self, x: Tensor) -> Tensor:
        """The scaled c_l psi_l(u_i) (B, H, n, projections, L)."""
        coef = self.coef[:, None, None, :].to(x.dtype) * self.scale  # (G, 1, 1, L)
        return self.channels(self.projections(x)) * coef


class BankSum(BankFeatures):
    """`bank_coef`: D projections, one weighted sum of the bank for each."""

    def __init__(self, slot: Slot, options: LunaOptions):
        super().__init__(slot, options, options.feature_dim)

    def forward(self, x: Tensor, mask: Mask, keys: bool = False) -> Tensor:
        return self.weighted(x).sum(-1)


class BankConcat(BankFeatures):
    """`bank_coef_concat`: M projections, each passed through the weighted bank."""

    def __init__(self, slot: Slot, options: LunaOptions):
        super().__init__(slot, options, options.M)

    def forward(self, x: Tensor, mask: Mask, keys: bool = False) -> Tensor:
        return self.weighted(x).flatten(-2)
