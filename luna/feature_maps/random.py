"""Gaussian projections: independent rows, or rows orthogonal within blocks (Performer)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Scaling = Literal["norm", "sqrt_d"]


def gaussian_projection(
    m: int,
    d: int,
    generator: torch.Generator,
    *,
    orthogonal: bool = False,
    scaling: Scaling = "norm",
) -> Tensor:
    """Omega (m, d) in float64, drawn on the CPU: a seed means the same numbers on every machine.

    `orthogonal`: ceil(m / d) blocks with orthogonal rows, the last one truncated; row lengths are
    those of independent Gaussian vectors (`norm`, every row is then N(0, I)) or sqrt(d) (`sqrt_d`).
    """
    if not orthogonal:
        return _gaussian(m, d, generator)
    rows = _orthonormal(-(-m // d), d, generator).flatten(0, 1)[:m]
    if scaling == "sqrt_d":
        return rows * d**0.5
    return rows * _gaussian(m, d, generator).norm(dim=-1, keepdim=True)


def _orthonormal(blocks: int, d: int, generator: torch.Generator) -> Tensor:
    Q, R = torch.linalg.qr(_gaussian(blocks * d, d, generator).view(blocks, d, d))
    # Without the signs Q is not uniform (Mezzadri, 2007).
    return (Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).mT


def _gaussian(m: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.randn(m, d, generator=generator, dtype=torch.float64, device="cpu")
