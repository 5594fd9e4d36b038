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

    def __init__(self, slot: Slot, options: LunaOptions):
        super().__init__()
        self.summed = options.kernel == "bank_coef"
        n_projections = options.feature_dim if self.summed else options.M
        G, L = options.groups(slot), options.L
        self.projections = Projections(options, G, slot.head_dim, n_projections)
        self.channels = Channels(slot, options)
        self.coef = nn.Parameter(torch.full((G, L), 1 / L))
        self.scale = n_projections**-0.5

    def forward(self, x: Tensor, mask: Mask, keys: bool = False) -> Tensor:
        coef = self.coef[:, None, None, :].to(x.dtype) * self.scale  # (G, 1, 1, L)
        y = self.channels(self.projections(x)) * coef  # (B, H, n, projections, L)
        return y.sum(-1) if self.summed else y.flatten(-2)
