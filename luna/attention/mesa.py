"""The mesa layer: the linear map from keys to values that fits all tokens best, read by queries.
von Oswald et al. (2025), https://arxiv.org/abs/2506.05233

    W = argmin sum_j |W k_j - v_j|^2 + r |W|^2 = (sum_j v_j k_j^T) (sum_j k_j k_j^T + r I)^-1
    o_i = W q_i
    q, k = silu of the projections, of length 1     r = 1/4 + softplus(r_h) of each head

With `features` k and q are phi(k) and phi(q) (luna/feature_maps/unit.py): kernel ridge regression.

Linear attention reads the first factor alone, where keys that resemble each other disturb each
other. The delta rule takes one step of gradient descent to W for each token; here W is exact.

The paper's layer is causal, and fits W anew for each token by 30 steps of conjugate gradients. Both
ways one W serves all tokens: one Cholesky factor of each head, so the method costs little more than
its sums. The causal form is as exact (luna/ridge.py). Left out are the paper's decay, which has no
direction here, and its input gate, which would make the method one more function of the tokens; its
ridge of each channel is one of each head. The norm of each head stays, and a short convolution and
a gate on the output can be put around it (luna/around.py).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import AttentionTraits, Mask, Paper, Rate, Slot, register, zero_padding
from luna.feature_maps.unit import Features, UnitFeatures
from luna.kernels.scalar_mlp import Nonneg
from luna.ridge import prefix_regressions, regression
from luna.surround import HeadNorm, NormedHeads

EPS = 1e-5  # of the norm, as in the authors' code
LEAST, START = 0.25, 1.0  # ridges: the smallest, and where they begin, as in the authors' code


class MesaState(NamedTuple):
    S: Tensor  # (B, H, D, e)
    gram: Tensor  # (B, H, D, D)


@register("mesa")
class Mesa(NormedHeads):
    title = "Mesa"
    family = "delta rule"
    marker = "X"
    paper = Paper(
        "MesaNet: Sequence Modeling by Locally Optimal Test-Time Training",
        2025,
        "https://arxiv.org/abs/2506.05233",
    )
    complexity = "O(n D (D + e) + D³)"
    declared = NormedHeads.declared.but(
        cross_form=True,
        row_stochastic=False,
        convex=False,
    )
    chunk = 32
    rates: ClassVar[dict[str, Rate]] = {"raw_ridge": Rate(decay=False)}

    def __init__(
        self,
        slot: Slot,
        *,
        features: Features = "none",
        M: int = 8,
        L: int = 8,
        nonneg: Nonneg = True,
        frozen: bool = False,
        norm: bool = True,
    ):
        super().__init__(slot)
        learned: dict[str, Any] = {"nonneg": nonneg, "frozen": frozen}
        self.features = UnitFeatures(self.name, slot, features, M=M, L=L, **learned)
        start = math.log(math.expm1(START - LEAST))  # whose softplus is START - LEAST
        self.raw_ridge = nn.Parameter(torch.full((slot.n_heads,), start))
        self.norm = HeadNorm(slot.n_heads, slot.head_dim, EPS) if norm else None

    def _traits(self) -> AttentionTraits:
        return self._with_norm(self.declared.but(idle=self.features.idle("features")))

    def ridge(self, like: Tensor) -> Tensor:
        """r (H), above 0, in the dtype of `like`."""
        return LEAST + F.softplus(self.raw_ridge.to(like.dtype))

    def phi(self, t: Tensor, mask: Mask = None) -> Tensor:
        """What is regressed on, (B, H, n, D), 0 at padding."""
        return zero_padding(self.features(t), mask)

    def cross(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Mask) -> Tensor:
        q, k = self.phi(q), self.phi(k, key_mask)
        return self._normed(regression(q, k, v, self.ridge(k)))

    def causal_from(
        self, state: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask
    ) -> tuple[MesaState, Tensor]:
        q, k = self.phi(q), self.phi(k, mask)
        sums, out = prefix_regressions(q, k, v, self.ridge(k), state, self.chunk)
        return MesaState(*sums), self._normed(out)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        """A_ij = k_j . H^-1 q_i; causal, with the H of each query's own past."""
        q, k = self.phi(q), self.phi(k, mask)
        products = k.unsqueeze(-1) * k.unsqueeze(-2)  # (B, H, m, D, D)
        gram = products.cumsum(2) if self.causal else products.sum(2, keepdim=True)
        eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
        H = gram + self.ridge(k).view(-1, 1, 1, 1) * eye
        A = torch.linalg.solve(H, q.unsqueeze(-1)).squeeze(-1) @ k.mT
        return A.tril() if self.causal else A

    def flops(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """Sums of k k^T and k v^T, a Cholesky factor, its two solves for each channel of v, and the
        product with each query. Causal, by the recurrence: the inverse is corrected by each key,
        2 D^2 each to read it, to write, and to read it for the query."""
        B, H, n = q.shape[:3]
        D = self.features.width
        m, e = k.shape[2], v.shape[-1]
        work = 2 * m * D * e + 2 * n * D * e + self.features.cost(n + m)
        work += 6 * n * D * D if self.causal else 2 * m * D * D + D**3 // 3 + 2 * D * D * e
        return B * H * work
