"""LUNA's causal attention on the CPU: the sums of luna/kernels/linear_blocks.py, with features by
the look-up of scalar_mlp. What is machine code here is the look-up; the rest is torch."""

from __future__ import annotations

from torch import Tensor

from luna.base import zero_padding
from luna.kernels.linear_blocks import Maps, Parameters, blocked_sums
from luna.kernels.luna_attention.reference import features
from luna.kernels.scalar_mlp import OUTPUTS, Nonneg
from luna.kernels.scalar_mlp.by_numba import grid
from luna.kernels.scalar_mlp.operator import look_up
from luna.sums import denominator


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    W: Tensor,
    bias: Tensor,
    keys: Tensor,
    table: Tensor,
    *,
    nonneg: Nonneg,
    eps: float,
    divided: bool,
    absolute: bool,
) -> tuple[Tensor, Tensor]:
    """o, or N if it is not divided (B, H, n, e), and c (B, H, n); 0 at padding."""
    q, k, v = (zero_padding(t, mask) for t in (q, k, v))
    keys, *cells = grid(keys)
    relu = nonneg is True  # relu is part of the look-up
    output = OUTPUTS[False if relu else nonneg]

    def phi(x: Tensor, at: slice, parameters: Parameters) -> Tensor:
        W, bias, table = parameters

        def channels(u: Tensor) -> Tensor:
            return look_up(u.contiguous(), keys, table, relu, *cells)[0]

        return output(features(x, W, bias, channels))

    def sizes(x: Tensor, at: slice, parameters: Parameters) -> Tensor:
        return phi(x, at, parameters).abs()

    maps = Maps(phi, phi, (W, bias, table))
    N, c = blocked_sums(q, k, v, maps, mask, mask, causal=True)
    if absolute:
        maps = Maps(sizes, sizes, maps.parameters)
        _, c = blocked_sums(q, k, v[..., :0], maps, mask, mask, causal=True)
    if not divided:
        return N, c.detach()
    return N / denominator(c, eps, not (nonneg or absolute)).unsqueeze(-1), c.detach()
