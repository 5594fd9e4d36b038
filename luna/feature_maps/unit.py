"""Features of length 1, on which the delta rule writes and a ridge regression solves.

    none    silu of the projection, as the papers have it: D = d
    luna    LUNA's learned map (learned.py), trained or frozen as drawn: D = M L
    rff     random Fourier features of the Gaussian kernel (random.py), never trained: D = M L

With features the state holds a function of phi(k), and so of the kernel phi(q) . phi(k), where the
papers' holds one that is linear in k. Each is divided by its length: a step of the delta rule
overshoots on longer ones, and a ridge means the same for all of them.

    B batch   H heads   n tokens   d width of a head   D features
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import LunaError, Slot, at_least
from luna.feature_maps.learned import LearnedFeatures
from luna.feature_maps.options import LunaOptions
from luna.feature_maps.random import FourierFeatures
from luna.kernels.scalar_mlp import Nonneg
from luna.tensors import unit

Features = Literal["none", "luna", "rff"]
# What the options of features are where there are none.
USUAL = {"features": "none", "M": 8, "L": 8, "nonneg": True, "frozen": False}


class UnitFeatures(nn.Module):
    """phi: (B, H, n, d) -> (B, H, n, D), one map for queries and keys."""

    def __init__(
        self, name: str, slot: Slot, kind: Features, *, M: int, L: int, nonneg: Nonneg, frozen: bool
    ):
        super().__init__()
        self.head_dim, self.width = slot.head_dim, slot.head_dim
        self.map: LearnedFeatures | FourierFeatures | None = None
        at_least(name, 1, M=M, L=L)
        learned = {"nonneg": nonneg, "frozen": frozen}
        given = learned if kind == "rff" else {} if kind == "luna" else learned | {"M": M, "L": L}
        if unused := [option for option, value in given.items() if value != USUAL[option]]:
            raise LunaError(f"{name}.features='{kind}' has no {unused[0]}: leave it out")
        if kind == "luna":
            drawn: Literal["learned", "frozen"] = "frozen" if frozen else "learned"
            options = LunaOptions(M=M, L=L, nonneg=nonneg, projections=drawn, psi=drawn)
            self.map, self.width = LearnedFeatures(slot, options), M * L
        elif kind == "rff":
            if M * L % 2:
                raise LunaError(
                    f"{name}.features='rff' pairs its features: M L must be even, got {M * L}"
                )
            self.map, self.width = FourierFeatures(slot.head_dim, M * L // 2, slot.seed), M * L

    def forward(self, t: Tensor) -> Tensor:
        if isinstance(self.map, LearnedFeatures):
            return unit(self.map(t, None))
        return unit(F.silu(t) if self.map is None else self.map(t))

    def idle(self, name: str) -> dict[str, str]:
        """Parameters that may idle, of a map that its owner calls by this name."""
        if not isinstance(self.map, LearnedFeatures) or not [*self.map.parameters()]:
            return {}
        return {f"{name}.map.channels.*": "a unit or an output with relu may be off for all tokens"}

    def cost(self, rows: int) -> int:
        """FLOPs of the maps of so many rows; LUNA's networks as dense layers."""
        if isinstance(self.map, LearnedFeatures):
            channels, M = self.map.channels, self.map.projections.d_out
            networks, hidden = channels.e.shape[1:]
            return rows * M * 2 * (self.head_dim + hidden * (networks + channels.g.shape[1]))
        return 0 if self.map is None else rows * self.head_dim * self.width
