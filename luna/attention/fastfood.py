"""FastFood features whose diagonals are learned: linear attention with a kernel that begins as the
Gaussian one. Chowdhury et al. (2022), https://arxiv.org/abs/2107.11864, after Le et al. (2013)

    x' = d^(-1/4) x     V = d^(-1/2) diag(S) H diag(G) P H diag(b) of each block
    rks   phi(x) = [D^(-1/2) cos V x', D^(-1/2) sin V x', s]
          phi(x) . phi(y) = mean of cos V (x' - y') + s^2, never below 0 where s >= 1
    prf   phi(x) = D^(-1/2) exp(V x' - |x'|^2)

H is the Hadamard matrix of +1 and -1, P a permutation; D = d rows of V for each block, 3 d numbers.
V x' takes 2 d log2(d) additions a token. As d is small, V is made once a forward pass, by the same
additions, and multiplied: products of matrices are faster than butterflies.

Rows of V begin as Gaussian vectors (b = +1 or -1, G normal, S of their lengths). In the authors'
code, cs1160701/OnLearningTheKernel, S, G and b are N(0, 1 / d) (`init=authors`, preset
`published`): a number of V x' is then d^(-3/2) |x'|, and all weights begin equal, so that is not
the default. Their P is drawn anew in every forward; here it is drawn once, and saved. s enters
squared, there too.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from luna.base import LunaError, Mask, Paper, Slot, at_least, register
from luna.weighted import TINY, WeightedKernelAttention


def hadamard(x: Tensor) -> Tensor:
    """H x over the last axis, whose length is a power of two, by butterflies."""
    n, half = x.shape[-1], 1
    while half < n:
        a, b = x.unflatten(-1, (-1, 2, half)).unbind(-2)
        x = torch.stack([a + b, a - b], -2).flatten(-3)
        half *= 2
    return x


@register("fastfood")
class FastFood(WeightedKernelAttention):
    title = "FastFood features"
    family = "learned kernels"
    marker = "P"
    paper = Paper(
        "Learning the Transformer Kernel",
        2022,
        "https://arxiv.org/abs/2107.11864",
    )
    complexity = "O(n D (log(d) + e))"

    order: Tensor  # (groups, blocks, d), as S, G and b
    S: Tensor
    G: Tensor
    b: Tensor

    def __init__(
        self,
        slot: Slot,
        *,
        features: Literal["rks", "prf"] = "rks",
        blocks: int = 1,
        smoothing: float = 1.0,
        init: Literal["fastfood", "authors"] = "fastfood",
        projections: Literal["learned", "frozen"] = "learned",
        share: Literal["layer", "head"] = "layer",
    ):
        positive = features == "prf" or smoothing >= 1
        eps = TINY if features == "prf" else 1e-6 if positive else 1e-2  # as of rff
        super().__init__(slot, eps=eps, signed=not positive)
        at_least("fastfood", 1, blocks=blocks)
        at_least("fastfood", 0, smoothing=smoothing)
        d = slot.head_dim
        if d & (d - 1):
            raise LunaError(
                f"fastfood needs heads whose width is a power of 2, for its Hadamard matrix; got "
                f"head_dim={d}"
            )
        self.features_of, self.blocks, self.smoothing = features, blocks, smoothing
        self.weighted, self.tokenwise = features == "prf", features == "rks"
        self.feature_dim = blocks * d if self.weighted else 2 * blocks * d + (smoothing > 0)
        shape = (1 if share == "layer" else slot.n_heads, blocks, d)
        order = torch.rand(shape, generator=torch.Generator().manual_seed(slot.seed), device="cpu")
        self.register_buffer("order", order.argsort(-1))
        for name, drawn in zip("SGb", _drawn(shape, init), strict=True):
            if projections == "learned":
                self.register_parameter(name, nn.Parameter(drawn))
            else:
                self.register_buffer(name, drawn)

    def transform(self, x: Tensor) -> Tensor:
        """V x' of x (..., groups, n, d) by its definition: (..., groups, n, D)."""
        S, G, b = (t.to(x.dtype).unsqueeze(-2) for t in (self.S, self.G, self.b))
        mixed = hadamard(
            b * (x * self.head_dim**-0.25).unsqueeze(-3)
        )  # (..., groups, blocks, n, d)
        order = self.order.unsqueeze(-2).expand_as(mixed)
        out = S * hadamard(G * mixed.gather(-1, order)) * self.head_dim**-0.5
        return out.transpose(-3, -2).flatten(-2)

    def project(self, x: Tensor) -> Tensor:
        """The same (B, H, n, D) for x (B, H, n, d) as a product with V."""
        groups, d = self.S.shape[0], self.head_dim
        eye = torch.eye(d, dtype=x.dtype, device=x.device).expand(groups, d, d)
        return x @ self.transform(eye)

    def phi_q(self, q: Tensor, mask: Mask, start: int = 0) -> Tensor:
        u = self.project(q)
        if self.weighted:  # |q'|^2 is the same for all features and leaves with the maximum
            return (u - u.amax(-1, keepdim=True)).exp()
        return self._waves(u)

    def phi_k(self, k: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().phi_k(k, mask, start) if self.weighted else self._waves(self.project(k))

    def _waves(self, u: Tensor) -> Tensor:
        parts = [t * u.shape[-1] ** -0.5 for t in (u.cos(), u.sin())]
        if self.smoothing:
            parts.append(torch.full_like(u[..., :1], self.smoothing))
        return torch.cat(parts, -1)

    def weigh(self, k: Tensor) -> tuple[Tensor, Tensor]:
        u = self.project(k)
        top = u.amax(-1)
        square = k.square().sum(-1) * self.head_dim**-0.5  # |k'|^2
        return (u - top.unsqueeze(-1)).exp(), top - square

    def flops(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
        """By the definition: additions of the butterflies and products with diagonals for queries
        and keys, then the sums and the divisors of linear attention."""
        B, H, n, d = q.shape
        maps = (n + k.shape[2]) * self.blocks * (2 * d * int(math.log2(d)) + 4 * d)
        sums = 2 * (n + k.shape[2]) * self.feature_dim * v.shape[-1] + 2 * n * self.feature_dim
        return B * H * (maps + sums)


def _drawn(shape: tuple[int, int, int], init: str) -> list[Tensor]:
    """S, G and b."""
    d = shape[-1]
    if init == "authors":
        return [torch.randn(shape) * d**-0.5 for _ in range(3)]
    G = torch.randn(shape)
    b = torch.randint(2, shape).float() * 2 - 1
    lengths = torch.randn(*shape, d).norm(dim=-1)  # of Gaussian vectors
    return [lengths / G.norm(dim=-1, keepdim=True), G, b]
