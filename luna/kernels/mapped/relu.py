"""phi(x) = relu(W x + b), W (G, D, d) and b (G, D) for all heads or for each: the map of `t2r`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from luna.kernels.linear_triton.calls import Call
from luna.kernels.linear_triton.shape import FeatureMap, Shape, precisions, sizes_of


@triton.jit
def weights(W, g, s: tl.constexpr):
    """W (D, dP) of a group, which luna.kernels.checked gives in half precision."""
    c, at = tl.arange(0, s.D), tl.arange(0, s.dP)
    inside = (c < s.L)[:, None] & (at < s.d)[None, :]
    rows = W + (g * s.L + c)[:, None] * s.d + at[None, :]
    return tl.load(rows, mask=inside, other=0.0).to(s.dtype)


@triton.jit
def features(x, real, maps, g, s: tl.constexpr):
    """phi (BLOCK, D), 0 at padding."""
    W, bias = maps
    c = tl.arange(0, s.D)
    u = tl.dot(x, tl.trans(weights(W, g, s)), input_precision=s.precise, out_dtype=s.dtype)
    u += tl.load(bias + g * s.L + c, mask=c < s.L, other=0.0)[None, :]
    phi = tl.where(u < 0, 0.0, u)  # and not maximum(): NaN stays
    live = real[:, None] & (c < s.L)[None, :]
    return tl.where(live, phi, 0.0), (0,)


@triton.jit
def begin(results, b, g, unit, sizes, s: tl.constexpr):
    return results, (tl.zeros([s.D, s.dP], s.dtype), tl.zeros([s.D], s.dtype))


@triton.jit
def backward(dphi, phi, kept, x, real, maps, results, sums, g, s: tl.constexpr):
    """dx (BLOCK, dP); dW (D, dP) and db (D) with what this block adds to them."""
    dW, dbias = sums
    du = tl.where(real[:, None], dphi, 0.0)
    du = tl.where(phi <= 0, 0.0, du)  # and not phi > 0: NaN stays
    dx = tl.dot(du, weights(maps[0], g, s), input_precision=s.precise, out_dtype=s.dtype)
    dW += tl.dot(tl.trans(du), x, input_precision=s.precise, out_dtype=s.dtype)
    return dx, (dW, dbias + tl.sum(du, 0))


@triton.jit
def end(results, unit, sums, s: tl.constexpr):
    """Write rows [dW, db] (D, d + 1) of a unit."""
    dW, dbias = sums
    c, at = tl.arange(0, s.D), tl.arange(0, s.dP)
    row = results[0] + (unit * s.L + c) * (s.d + 1)
    inside = (c < s.L)[:, None] & (at < s.d)[None, :]
    tl.store(row[:, None] + at[None, :], dW, mask=inside)
    tl.store(row + s.d, dbias, mask=c < s.L)


MAP = FeatureMap(features, begin, backward, end)


@functools.cache
def _shape(
    D: int,
    d: int,
    e: int,
    groups: int,
    causal: bool,
    eps: float,
    divided: bool,
    double: bool,
    **precision: Any,
) -> Shape:
    half = causal and precision["rounded"]
    widths = sizes_of(1, D, d, e, ordered=False, causal_in_half=half)
    options = {"groups": groups, "signed": False, "absolute": False, "causal": causal, "eps": eps}
    options |= {"divided": divided, "dtype": tl.float64 if double else tl.float32, **precision}
    given = {name: tl.constexpr(value) for name, value in options.items()}
    return Shape(map=MAP, **widths, **given)


def call(
    q: Tensor,
    v: Tensor,
    parameters: Sequence[Tensor],
    causal: bool,
    eps: float,
    divided: bool,
    segment: int,
) -> Call:
    groups, D, d = parameters[0].shape
    double = v.dtype == torch.float64
    options = groups, causal, eps, divided, double
    shape = _shape(D, d, v.shape[3], *options, **precisions(v))
    return Call(shape, q, v, tuple(parameters), segment)


def gradients(
    call: Call, parameters: Sequence[Tensor]
) -> tuple[tuple[tuple[Tensor, ...], ...], Callable[[], list[Tensor]]]:
    """What both passes leave of W and b, [dW, db] for each unit, and how it is added up."""
    W, _ = parameters
    G, D, d = W.shape
    units = W.new_empty(2, call.B, call.H, call.segments, D, d + 1)

    def totals() -> list[Tensor]:
        """Sums in order; with parameters per head those of a head alone."""
        over = (0, 1, 3) if G > 1 else (0, 1, 2, 3)
        total = units.sum(over, dtype=torch.float64).view(G, D, d + 1).to(W.dtype)
        return [total[..., :-1].contiguous(), total[..., -1].contiguous()]

    return ((units[0],), (units[1],)), totals
