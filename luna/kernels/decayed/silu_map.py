"""phi(x) = u / |u| with u = silu(x) + 1/2, the map of `lion`: D = d and no parameters."""

from __future__ import annotations

import triton
import triton.language as tl

from luna.kernels.linear_triton.shape import FeatureMap


@triton.jit
def features(x, real, maps, g, s: tl.constexpr):
    """phi (BLOCK, D), 0 at padding; the gate, which gives the slope of silu, and 1 / |u|."""
    columns = tl.arange(0, s.dP)
    live = real[:, None] & (columns < s.d)[None, :]
    gate = 1 / (1 + tl.exp(-x))
    u = tl.where(live, x * gate + 0.5, 0.0)
    square = tl.sum(u * u, 1)
    inverse = 1 / tl.sqrt(tl.where(real, square, 1.0))
    return u * inverse[:, None], (gate, inverse)


@triton.jit
def begin(results, b, g, unit, sizes, s: tl.constexpr):
    return results, (0,)


@triton.jit
def backward(dphi, phi, kept, x, real, maps, results, sums, g, s: tl.constexpr):
    gate, inverse = kept
    du = (dphi - phi * tl.sum(phi * dphi, 1)[:, None]) * inverse[:, None]
    return tl.where(real[:, None], du * gate * (1 + x * (1 - gate)), 0.0), sums


@triton.jit
def end(results, unit, sums, s: tl.constexpr):
    pass


MAP = FeatureMap(features, begin, backward, end)
