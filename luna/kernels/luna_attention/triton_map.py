"""LUNA's feature map in Triton, for the passes of `linear_triton`: projections, the line of each
scalar, what its output goes through, and their gradients.

`maps` are the pointers of W, bias, keys and table; `results` those of [dW, dbias] of each unit and
of the tables that programs add to.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from luna.kernels.linear_triton.shape import FeatureMap, Shape, precisions, sizes_of
from luna.kernels.scalar_mlp import reference

SIGNED, RELU, SOFTPLUS, EXP = (tl.constexpr(i) for i in range(len(reference.OUTPUTS)))
CLAMP, THRESHOLD = tl.constexpr(reference.CLAMP), tl.constexpr(reference.THRESHOLD)


@dataclass(frozen=True, kw_only=True, eq=False)
class LunaShape(Shape):
    K: tl.constexpr  # lines of a table
    output: tl.constexpr  # SIGNED, RELU, SOFTPLUS or EXP
    steps: tl.constexpr  # of the search in a table


def shape_of(
    v: Tensor,
    W: Tensor,
    table: Tensor,
    causal: bool,
    output: int,
    eps: float,
    divided: bool,
    absolute: bool,
) -> LunaShape:
    G, M, d = W.shape
    _, K, columns = table.shape
    double = table.dtype == torch.float64
    sizes = M, columns // 2, d, v.shape[3], K, G
    return _shape(*sizes, causal, output, eps, divided, absolute, double, **precisions(v))


@functools.cache
def _shape(
    M: int,
    L: int,
    d: int,
    e: int,
    K: int,
    groups: int,
    causal: bool,
    output: int,
    eps: float,
    divided: bool,
    absolute: bool,
    double: bool,
    *,
    rounded: bool,
    ordered: bool,
    **precision: str,
) -> LunaShape:
    widths = sizes_of(M, L, d, e, ordered=ordered, causal_in_half=causal and rounded)
    options: dict[str, Any] = {"groups": groups, "causal": causal, "eps": eps, "divided": divided}
    options |= {"rounded": rounded, "ordered": ordered, **precision}
    options |= {"signed": output == SIGNED.value and not absolute, "absolute": absolute}
    options |= {"dtype": tl.float64 if double else tl.float32}
    options |= {"K": K, "output": output, "steps": (K - 1).bit_length()}
    given = {name: tl.constexpr(value) for name, value in options.items()}
    return LunaShape(map=MAP, **widths, **given)


@triton.jit
def search(u, keys_ptr, n_keys, STEPS: tl.constexpr):
    """The number of keys smaller than u: halving steps to the largest j with keys[j - 1] < u."""
    j = tl.zeros(u.shape, tl.int32)
    for step in range(STEPS):
        ahead = j + (2**STEPS >> (step + 1))
        real = ahead <= n_keys
        key = tl.load(keys_ptr + ahead - 1, mask=real, other=float("inf"))
        j = tl.where(real & (key < u), ahead, j)
    return j


@triton.jit
def features(x, real, maps, g, s: tl.constexpr):
    """phi (BLOCK, D) of tokens x (BLOCK, dP), 0 at padding; for backward the slopes of the lines
    and of the outputs (BLOCK, D), the projections and their intervals (BLOCK, MP)."""
    W, bias, keys, table = maps
    m, l, at = tl.arange(0, s.MP), tl.arange(0, s.LP), tl.arange(0, s.dP)
    weights = tl.load(
        W + (g * s.M + m)[None, :] * s.d + at[:, None],
        mask=(m < s.M)[None, :] & (at < s.d)[:, None],
        other=0.0,
    )  # (dP, MP)
    u = tl.dot(x, weights, input_precision="ieee", out_dtype=s.dtype)
    u += tl.load(bias + g * s.M + m, mask=m < s.M, other=0.0)[None, :]
    j = search(u, keys + g * (s.K - 1), s.K - 1, s.steps)

    live = real[:, None, None] & ((m < s.M)[:, None] & (l < s.L)[None, :])[None, :, :]
    line = table + ((g * s.K + j) * (2 * s.L))[:, :, None] + l[None, None, :]
    slope = tl.load(line, mask=live, other=0.0)
    y = slope * u[:, :, None] + tl.load(line + s.L, mask=live, other=0.0)
    phi, steep = outputs(y, live, s)
    tokens: tl.constexpr = (s.BLOCK, s.D)
    kept = tl.reshape(slope, tokens), tl.reshape(steep, tokens), u, j
    return tl.reshape(phi, tokens), kept


@triton.jit
def outputs(y, live, s: tl.constexpr):
    """What the scalar MLPs' outputs y go through, 0 where there is no feature; and the derivative,
    of softplus and exp."""
    if s.output == SOFTPLUS:
        t = tl.exp(-tl.abs(y))
        w = 1 + t
        log1p = tl.log(w) - ((w - 1) - t) / w  # with what the rounding of w takes away
        phi = tl.where(y > THRESHOLD, y, tl.where(y > 0, y, 0.0) + log1p)
        steep = tl.where(y > THRESHOLD, 1.0, tl.where(y < 0, t, 1.0) / w)
    elif s.output == EXP:
        phi = tl.exp(tl.where(y > CLAMP, CLAMP, y))
        steep = tl.where(y > CLAMP, 0.0, phi)
    else:
        phi = y
        if s.output == RELU:
            phi = tl.where(y < 0, 0.0, y)  # and not maximum(): NaN stays
        steep = phi  # not needed
    return tl.where(live, phi, 0.0), steep


@triton.jit
def begin(results, b, g, unit, sizes, s: tl.constexpr):
    """The results of a program, with its own table of dtable (groups, copies, K, 2 L), and dW and
    dbias at 0."""
    dW, dtable = results
    _, n, segment, copies = sizes
    segments = tl.cdiv(n, segment)
    rank = b * segments + unit % segments if s.groups > 1 else unit
    dtable += (g * copies + rank % copies) * (s.K * 2 * s.L)
    return (dW, dtable), (tl.zeros([s.MP, s.dP], s.dtype), tl.zeros([s.MP], s.dtype))


@triton.jit
def add_to_table(d, u, j, dtable, s: tl.constexpr):
    """Add a block's gradients of lines d and their scalars u, on intervals j, to a table that other
    programs add to.

    Relaxed: nobody reads before the kernel ends, and the usual order would put a fence of the whole
    GPU before each addition. Zeros are added too, for a mask would forbid vectors; the product is
    selected, because an infinite u makes 0 NaN."""
    m, l = tl.arange(0, s.MP), tl.arange(0, s.LP)
    into = dtable + (j * (2 * s.L))[:, :, None] + l[None, None, :]
    there = ((m < s.M)[:, None] & (l < s.L)[None, :])[None, :, :]
    tl.atomic_add(into, tl.where(d != 0, u[:, :, None] * d, 0.0), mask=there, sem="relaxed")
    tl.atomic_add(into + s.L, d, mask=there, sem="relaxed")


@triton.jit
def add_in_order(d, u, j, dtable, s: tl.constexpr):
    """The same to a table of this program alone: a product of one-hot rows with d, in a fixed
    order. The ones are exact in bfloat16, and three parts of a gradient are exact together."""
    scalars: tl.constexpr = s.BLOCK * s.MP
    pairs = tl.join(tl.where(d != 0, u[:, :, None] * d, 0.0), d)  # (BLOCK, MP, LP, 2)
    whole = tl.reshape(pairs, (scalars, 2 * s.LP))
    high = whole.to(tl.bfloat16)
    rest = whole - high.to(s.dtype)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(s.dtype)).to(tl.bfloat16)
    intervals = tl.reshape(j, (scalars,))
    c = tl.arange(0, 2 * s.LP)
    place = (c % 2) * s.L + c // 2  # slopes, then intercepts
    for first in range(0, s.K, 64):
        rows = first + tl.arange(0, 64)
        hot = rows[:, None] == intervals[None, :]
        if s.dtype == tl.float64:
            total = tl.dot(hot.to(s.dtype), whole, input_precision="ieee", out_dtype=s.dtype)
        else:
            total = tl.dot(hot.to(tl.bfloat16), low)
            total = tl.dot(hot.to(tl.bfloat16), middle, total)
            total = tl.dot(hot.to(tl.bfloat16), high, total)
        at = dtable + rows[:, None] * (2 * s.L) + place[None, :]
        there = (rows < s.K)[:, None] & (c // 2 < s.L)[None, :]
        tl.store(at, tl.load(at, mask=there, other=0.0) + total, mask=there)


@triton.jit
def backward(dphi, phi, kept, x, real, maps, results, sums, g, s: tl.constexpr):
    """dx (BLOCK, dP); dW (MP, dP) and dbias (MP) with what this block adds to them. The table's
    gradient is added to its table."""
    slope, steep, u, j = kept
    _, dtable = results
    dW, dbias = sums
    d = tl.where(real[:, None], dphi, 0.0)
    if s.output == RELU:
        d = tl.where(phi <= 0, 0.0, d)  # and not phi > 0: NaN stays
    elif s.output != SIGNED:
        d = d * steep
    through = slope * d  # (BLOCK, D): du is its sum over l
    lines: tl.constexpr = (s.BLOCK, s.MP, s.LP)
    if s.ordered:
        add_in_order(tl.reshape(d, lines), u, j, dtable, s)
    else:
        add_to_table(tl.reshape(d, lines), u, j, dtable, s)
    du = tl.sum(tl.reshape(through, lines), 2)  # (BLOCK, MP)

    # W with every row L times in place of a product that sums over the few projections.
    m, at = tl.arange(0, s.D) // s.LP, tl.arange(0, s.dP)
    weights = tl.load(
        maps[0] + (g * s.M + m)[:, None] * s.d + at[None, :],
        mask=(m < s.M)[:, None] & (at < s.d)[None, :],
        other=0.0,
    )  # (D, dP)
    dx = tl.dot(through, weights, input_precision=s.precise, out_dtype=s.dtype)
    dW += tl.dot(tl.trans(du), x, input_precision="ieee", out_dtype=s.dtype)
    return dx, (dW, dbias + tl.sum(du, 0))


@triton.jit
def end(results, unit, sums, s: tl.constexpr):
    """Write rows [dW, dbias] (M, d + 1) of a unit."""
    dW, _ = results
    dW_value, dbias_value = sums
    m, at = tl.arange(0, s.MP), tl.arange(0, s.dP)
    row = dW + (unit * s.M + m) * (s.d + 1)
    inside = (m < s.M)[:, None] & (at < s.d)[None, :]
    tl.store(row[:, None] + at[None, :], dW_value, mask=inside)
    tl.store(row + s.d, dbias_value, mask=m < s.M)


MAP = FeatureMap(features, begin, backward, end)
