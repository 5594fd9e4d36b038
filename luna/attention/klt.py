"""KL-Transformer: linear attention with random features of a learned spectral distribution.
Chowdhury et al. (2022), https://arxiv.org/abs/2107.11864

    x' = d^(-1/4) x     omega_r ~ N(0, I), r = 1 ... m, new ones in every training step
    gmm_prf   w_r = e^(lambda / 2) omega_r + mu     mu, lambda in R^d of each head
              phi(x) = m^(-1/2) exp(w_r . x' - |x'|^2)
    gmm_rks   w_r = Sigma^T omega_r + mu, w'_r = Sigma^T omega_r - mu     Sigma (d, d) of each head
              phi(x) = m^(-1/2) [cos w_r . x', sin w_r . x', cos w'_r . x', sin w'_r . x'], s

With lambda = mu = 0 the first is the Gaussian kernel e^(-|x' - y'|^2 / 2) in the mean. What the
paper calls a mixture is one Gaussian for each head, or a symmetric pair of them. The second may be
negative unless s^2 >= 2. Exponentials are those of the Performer's form: their largest exponent is
taken out.

The authors (cs1160701/OnLearningTheKernel) draw omega anew in evaluations too; here all evaluations
of a model have one draw, its own. Left out: a network that makes w of omega (GRKS, GPRF).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from luna.base import Mask, Paper, Redrawn, Slot, at_least, register, uncompiled
from luna.weighted import TINY, WeightedKernelAttention


@register("klt")
class KLT(Redrawn, WeightedKernelAttention):
    title = "KL-Transformer"
    family = "learned kernels"
    marker = "X"
    paper = Paper("Learning the Transformer Kernel", 2022, "https://arxiv.org/abs/2107.11864")
    complexity = "O(n m (d + e))"
    declared = WeightedKernelAttention.declared.but(draws=True)

    samples: Tensor | None = None  # omega (d, m), in place of what would be drawn

    def __init__(
        self,
        slot: Slot,
        *,
        kind: Literal["gmm_prf", "gmm_rks"] = "gmm_prf",
        m: int = 128,
        smoothing: float = 0.36,
    ):
        positive = kind == "gmm_prf" or smoothing**2 >= 2
        eps = TINY if kind == "gmm_prf" else 1e-6 if positive else 1e-2  # as of rff
        super().__init__(slot, eps=eps, signed=not positive)
        at_least("klt", 1, m=m)
        at_least("klt", 0, smoothing=smoothing)
        self.m, self.smoothing, self.weighted = m, smoothing, kind == "gmm_prf"
        self.feature_dim = m if self.weighted else 4 * m + (smoothing > 0)
        H, d = slot.n_heads, slot.head_dim
        shape = (H, d) if self.weighted else (H, d, d)
        # lambda, the logarithm of variances, or Sigma. The authors' draws, with torch's fan-in of d
        # for the one and d^2 for the other.
        self.spread = nn.Parameter(torch.empty(shape))
        nn.init.xavier_uniform_(self.spread)
        bound = d**-0.5 if self.weighted else 1 / d
        self.mu = nn.Parameter(torch.empty(H, d).uniform_(-bound, bound))
        self._omega: Tensor | None = None  # of the call that runs

    # ------------------------------------------------------------------ the draw

    def _enter(self, q: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """One draw for the queries and the keys of a call."""
        self._omega = self._draw()
        return super()._enter(q, *others)

    @uncompiled  # generators do not compile
    def _draw(self) -> Tensor:
        """omega (d, m)."""
        if self.samples is not None:
            return self.samples
        stream = self.stream()
        return torch.randn(self.head_dim, self.m, generator=stream, dtype=torch.float64)

    # ------------------------------------------------------------------ the feature map

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """w_r . x', and w'_r . x' where there is such: each (B, H, n, m)."""
        assert self._omega is not None
        omega, spread = self._omega.to(x), self.spread.to(x.dtype)
        mu = self.mu.to(x.dtype).unsqueeze(-1)  # (H, d, 1)
        x = x * self.head_dim**-0.25
        if self.weighted:
            return (x @ ((spread / 2).exp().unsqueeze(-1) * omega + mu),)
        turned = spread.mT @ omega  # (H, d, m)
        return x @ (turned + mu), x @ (turned - mu)

    def phi_q(self, q: Tensor, mask: Mask, start: int = 0) -> Tensor:
        u = self.project(q)
        if not self.weighted:
            return self._waves(u)
        # |q'|^2 is the same for all features and leaves with the maximum.
        return (u[0] - u[0].amax(-1, keepdim=True)).exp()

    def phi_k(self, k: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().phi_k(k, mask, start) if self.weighted else self._waves(self.project(k))

    def _waves(self, both: tuple[Tensor, ...]) -> Tensor:
        parts = [t * self.m**-0.5 for u in both for t in (u.cos(), u.sin())]
        if self.smoothing:
            parts.append(torch.full_like(both[0][..., :1], self.smoothing))
        return torch.cat(parts, -1)

    def weigh(self, k: Tensor) -> tuple[Tensor, Tensor]:
        (u,) = self.project(k)
        top = u.amax(-1)
        square = k.square().sum(-1) * self.head_dim**-0.5  # |k'|^2
        return (u - top.unsqueeze(-1)).exp(), top - square
