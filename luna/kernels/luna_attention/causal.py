"""LUNA's causal attention on a CPU: in the blocks of linear_blocks.py, features by look-up."""

from __future__ import annotations

from torch import Tensor

from luna.kernels.linear_blocks import Maps, Parameters, blocked_sums
from luna.kernels.luna_attention.reference import features
from luna.kernels.scalar_mlp import OUTPUTS, Nonneg
from luna.kernels.scalar_mlp.compiled import grid, lookup
from luna.linear import denominator


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
    W: Tensor, bias: Tensor, keys: Tensor, table: Tensor, *, nonneg: Nonneg, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o (B, H, n, e) and the denominators' c (B, H, n); 0 at padding."""
    real = None if mask is None else mask[:, None, :, None]
    if real is not None:
        q, k, v = (t.masked_fill(~real, 0) for t in (q, k, v))

    cells, relu = grid(keys), nonneg is True
    output = OUTPUTS[False if relu else nonneg]  # relu is part of the look-up

    def phi(x: Tensor, at: slice, parameters: Parameters) -> Tensor:
        W, bias, table = parameters
        phi = output(features(x, W, bias, lambda u: lookup(u.contiguous(), *cells, table, relu)[0]))
        return phi if real is None else phi * real[:, :, at].to(phi.dtype)

    N, c = blocked_sums(q, k, v, Maps(phi, phi, (W, bias, table)), causal=True)
    return N / denominator(c, eps, not nonneg).unsqueeze(-1), c.detach()
