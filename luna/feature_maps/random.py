"""Gaussian projections, and random Fourier features of the Gaussian kernel (Rahimi & Recht, 2007).

    x' = d^(-1/4) x     omega_p ~ N(0, I)
    phi(x) = P^(-1/2) [cos(omega_1 . x'), .., cos(omega_P . x'), sin(omega_1 . x'), ..]

    E[phi(x) . phi(y)] = exp(-|x - y|^2 / (2 sqrt(d)))     phi(x) . phi(x) = 1 exactly

With random phases b_p ~ U(0, 2 pi) instead, phi(x) = (2 / P)^(1/2) [cos(omega_p . x' + b_p)]: the
same mean, phi(x) . phi(x) = 1 in the mean only, and a larger variance at the same width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def gaussian_projection(
    m: int, d: int, generator: torch.Generator, *, orthogonal: bool = False
) -> Tensor:
    """Omega (m, d) in float64, drawn on the CPU: a seed means the same numbers on every machine.

    `orthogonal`: ceil(m / d) blocks with orthogonal rows (Performer), the last one truncated, of
    the lengths of independent Gaussian vectors: every row is then N(0, I).
    """
    if not orthogonal:
        return _gaussian(m, d, generator)
    blocks = -(-m // d)
    Q, R = torch.linalg.qr(_gaussian(blocks * d, d, generator).view(blocks, d, d))
    # Without the signs Q is not uniform (Mezzadri, 2007).
    rows = (Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).mT.flatten(0, 1)[:m]
    return rows * _gaussian(m, d, generator).norm(dim=-1, keepdim=True)


def _gaussian(m: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.randn(m, d, generator=generator, dtype=torch.float64, device="cpu")


class FourierFeatures(nn.Module):
    """Fixed features (..., d) -> (..., 2P), or with phases P, one draw of frequencies for all
    heads."""

    Omega: Tensor  # (P, d)
    b: Tensor | None  # (P)

    def __init__(self, head_dim: int, n_frequencies: int, seed: int, *, phases: bool = False):
        super().__init__()
        self.head_dim, self.n_frequencies = head_dim, n_frequencies
        generator = torch.Generator().manual_seed(seed)
        Omega = gaussian_projection(n_frequencies, head_dim, generator)
        self.register_buffer("Omega", Omega.to(torch.get_default_dtype()))
        self.register_buffer("b", None)
        if phases:
            b = torch.empty(n_frequencies, dtype=torch.float64, device="cpu")
            b.uniform_(0, 2 * math.pi, generator=generator)
            self.b = b.to(torch.get_default_dtype())

    def forward(self, x: Tensor) -> Tensor:
        u = (x * self.head_dim**-0.25) @ self.Omega.to(x.dtype).mT  # (..., P)
        if self.b is not None:
            return (u + self.b.to(x.dtype)).cos() * (2 / self.n_frequencies) ** 0.5
        return torch.cat([u.cos(), u.sin()], dim=-1) * self.n_frequencies**-0.5
