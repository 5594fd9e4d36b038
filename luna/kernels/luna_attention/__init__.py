"""LUNA's attention in one operator that never stores features (n x M L).

    q, k (B, H, n, d)   v (B, H, n, e)   mask (B, n) bool or None
    W (G, M, d), bias (G, M)             projections; G = 1, or H with parameters per head
    e, f, a, g                           the scalar MLPs, as in luna/kernels/scalar_mlp

Returns o (B, H, n, e), 0 at padding, and the sums of weights c (B, H, n), which carry no gradient.
README.md beside this file tells how; the definition is `scalar_mlp` and `linear_sums`.
"""

from __future__ import annotations

from torch import Tensor

from luna.kernels import cpu
from luna.kernels.scalar_mlp.piecewise import SLOPES, tables


def available(device: str, activation: str) -> bool:
    return device == "cpu" and cpu.AVAILABLE and activation in SLOPES


def luna_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    W: Tensor,
    bias: Tensor,
    e: Tensor,
    f: Tensor,
    a: Tensor,
    g: Tensor,
    *,
    activation: str = "relu",
    nonneg: bool = True,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """Every query sees every real key. q, k, v in one dtype, float32 or float64."""
    from luna.kernels.luna_attention.operator import attention  # imports numba

    keys, table = tables(e, f, a, g, SLOPES[activation], q.dtype)
    W, bias = W.to(q.dtype), bias.to(q.dtype)
    return attention(q, k, v, mask, W, bias, keys, table, nonneg=nonneg, eps=eps)
