"""Parts of the Triton kernels of LUNA's attention: tiles of tokens, features and sums.

A tensor (B, H, n, width) is passed as (pointer, stride of B, of H, of n); `maps` are the pointers
of W, bias, keys and table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from luna.kernels.luna_attention.segments import block_of, padded
from luna.kernels.scalar_mlp import reference
from luna.kernels.scalar_mlp.gpu import search

SIGNED, RELU, SOFTPLUS, EXP = (tl.constexpr(i) for i in range(len(reference.OUTPUTS)))
CLAMP, THRESHOLD = tl.constexpr(reference.CLAMP), tl.constexpr(reference.THRESHOLD)


@dataclass(frozen=True)
class Shape:
    """The sizes that a kernel is compiled for. Widths are filled up to powers of two, and to 16
    where a product sums over them; the index of a feature within a tile is m LP + l."""

    M: tl.constexpr
    L: tl.constexpr
    d: tl.constexpr
    e: tl.constexpr
    K: tl.constexpr  # rows of the table
    groups: tl.constexpr
    output: tl.constexpr  # place in OUTPUTS
    causal: tl.constexpr
    eps: tl.constexpr
    BLOCK: tl.constexpr  # tokens
    MP: tl.constexpr
    LP: tl.constexpr
    D: tl.constexpr  # MP LP
    dP: tl.constexpr
    eP: tl.constexpr
    steps: tl.constexpr  # of the search
    dtype: tl.constexpr  # of everything computed
    precision: tl.constexpr  # of the products that sum over tokens, features and values

    @staticmethod
    def of(v: Tensor, W: Tensor, table: Tensor, causal: bool, output: int, eps: float) -> Shape:
        (G, M, d), (_, K, columns), e = W.shape, table.shape, v.shape[3]
        L = columns // 2
        MP = padded(M)
        LP = max(padded(L), 16 // MP)
        tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
        values = {
            "M": M, "L": L, "d": d, "e": e, "K": K, "groups": G,
            "output": output, "causal": causal, "eps": eps, "BLOCK": block_of(M, L),
            "MP": MP, "LP": LP, "D": MP * LP, "dP": max(16, padded(d)), "eP": max(16, padded(e)),
            "steps": (K - 1).bit_length(),
            "dtype": tl.float64 if table.dtype == torch.float64 else tl.float32,
            "precision": "tf32" if tf32 else "tf32x3",
        }  # fmt: skip
        return Shape(**{name: tl.constexpr(value) for name, value in values.items()})


@triton.jit
def program(H, n, segment):
    """Sequence, head, number of the unit in (B, H, segments), and the segment's tokens."""
    segments = tl.cdiv(n, segment)
    unit = tl.program_id(0).to(tl.int64)
    first = (unit % segments).to(tl.int32) * segment
    return unit // segments // H, unit // segments % H, unit, first, tl.minimum(first + segment, n)


@triton.jit
def real_rows(mask, b, rows, last, n):
    return tl.load(mask + b * n + rows, mask=rows < last, other=0) != 0


@triton.jit
def tile(x, b, h, rows, width: tl.constexpr, padded: tl.constexpr):
    """Pointers to rows of a tensor (BLOCK, padded), and which of the columns exist."""
    base, of_b, of_h, of_n = x
    columns = tl.arange(0, padded)
    at = base + b * of_b + h * of_h + rows.to(tl.int64)[:, None] * of_n + columns[None, :]
    return at, (columns < width)[None, :]


@triton.jit
def load(x, b, h, rows, real, width: tl.constexpr, padded: tl.constexpr, dtype: tl.constexpr):
    """Rows of a tensor, 0 at padding."""
    at, inside = tile(x, b, h, rows, width, padded)
    return tl.load(at, mask=real[:, None] & inside, other=0.0).to(dtype)


@triton.jit
def store(x, b, h, rows, last, value, width: tl.constexpr, padded: tl.constexpr):
    at, inside = tile(x, b, h, rows, width, padded)
    tl.store(at, value, mask=(rows < last)[:, None] & inside)


@triton.jit
def feature_rows(s: tl.constexpr):
    """Index m L + l of each feature in a tile, and whether it exists."""
    c = tl.arange(0, s.D)
    m, l = c // s.LP, c % s.LP
    return m * s.L + l, (m < s.M) & (l < s.L)


@triton.jit
def state(S, z, index, s: tl.constexpr):
    """Pointers to S (D, eP) and z (D) of an index, and which of their places exist."""
    row, live = feature_rows(s)
    at = index * (s.M * s.L) + row
    columns = tl.arange(0, s.eP)
    return (
        S + at[:, None] * s.e + columns[None, :],
        live[:, None] & (columns < s.e)[None, :],
        z + at,
        live,
    )


@triton.jit
def load_state(S, z, index, s: tl.constexpr):
    S_at, S_live, z_at, z_live = state(S, z, index, s)
    return tl.load(S_at, mask=S_live, other=0.0), tl.load(z_at, mask=z_live, other=0.0)


@triton.jit
def store_state(S, z, index, S_value, z_value, s: tl.constexpr):
    S_at, S_live, z_at, z_live = state(S, z, index, s)
    tl.store(S_at, S_value, mask=S_live)
    tl.store(z_at, z_value, mask=z_live)


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
    return tl.reshape(phi, tokens), tl.reshape(slope, tokens), tl.reshape(steep, tokens), u, j


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
def dot(a, b, s: tl.constexpr):
    return tl.dot(a, b, input_precision=s.precision, out_dtype=s.dtype)


@triton.jit
def earlier(rows, A):
    return tl.where(rows[:, None] >= rows[None, :], A, 0.0)


@triton.jit
def smallest(s: tl.constexpr):
    return tl.full([1], s.eps, s.dtype)  # a bare number would pass through float32


@triton.jit
def denominator(c, s: tl.constexpr):
    eps = smallest(s)
    positive = tl.where(c < eps, eps, c)  # and not maximum(): NaN stays
    if s.output == SIGNED:
        return tl.where(c < 0, tl.where(c > -eps, -eps, c), positive)
    return positive


@triton.jit
def output_gradient(grad, out, c, b, h, H, n, rows, real, s: tl.constexpr):
    """dN (BLOCK, eP) and dc (BLOCK)."""
    weight = tl.load(c + (b * H + h) * n + rows, mask=real, other=0.0)
    dN = load(grad, b, h, rows, real, s.e, s.eP, s.dtype) / denominator(weight, s)[:, None]
    dc = -tl.sum(dN * load(out, b, h, rows, real, s.e, s.eP, s.dtype), 1)
    return dN, tl.where(tl.abs(weight) > smallest(s), dc, 0.0)


@triton.jit
def add_to_table(dtable, j, u, d, s: tl.constexpr, exact: tl.constexpr):
    """Into row j of a table (K, 2 L): u d for the slopes, d for the intercepts (BLOCK, MP, LP)."""
    m, l = tl.arange(0, s.MP), tl.arange(0, s.LP)
    ud = u[:, :, None] * d
    if exact:
        T: tl.constexpr = s.BLOCK * s.MP
        j, d, ud = tl.reshape(j, (T,)), tl.reshape(d, (T, s.LP)), tl.reshape(ud, (T, s.LP))
        for first in range(0, s.K, 16):
            rows = first + tl.arange(0, 16)
            hot = tl.where(rows[:, None] == j[None, :], 1.0, 0.0).to(s.dtype)
            into = dtable + rows[:, None] * (2 * s.L) + l[None, :]
            there = (rows < s.K)[:, None] & (l < s.L)[None, :]
            slopes = tl.dot(hot, ud, input_precision="tf32x3", out_dtype=s.dtype)
            intercepts = tl.dot(hot, d, input_precision="tf32x3", out_dtype=s.dtype)
            tl.atomic_add(into, slopes, mask=there)
            tl.atomic_add(into + s.L, intercepts, mask=there)
        tl.debug_barrier()  # the next block adds to the same places: in this order
    else:
        into = dtable + (j * (2 * s.L))[:, :, None] + l[None, None, :]
        there = ((m < s.M)[:, None] & (l < s.L)[None, :])[None, :, :] & (d != 0)
        tl.atomic_add(into, ud, mask=there)
        tl.atomic_add(into + s.L, d, mask=there)


@triton.jit
def features_backward(
    dphi, phi, slope, steep, u, j, x, real, maps, dtable, g, s: tl.constexpr, exact: tl.constexpr
):
    """dx (BLOCK, dP) and what this block adds to dW (MP, dP) and dbias (MP); the table's gradient
    is added to dtable."""
    d = tl.where(real[:, None], dphi, 0.0)
    if s.output == RELU:
        d = tl.where(phi <= 0, 0.0, d)  # and not phi > 0: NaN stays
    elif s.output != SIGNED:
        d = d * steep
    through = slope * d  # (BLOCK, D): du is its sum over l
    lines: tl.constexpr = (s.BLOCK, s.MP, s.LP)
    add_to_table(dtable, j, u, tl.reshape(d, lines), s, exact)
    du = tl.sum(tl.reshape(through, lines), 2)  # (BLOCK, MP)

    # W with every row L times in place of a product that sums over the few projections.
    m, at = tl.arange(0, s.D) // s.LP, tl.arange(0, s.dP)
    weights = tl.load(
        maps[0] + (g * s.M + m)[:, None] * s.d + at[None, :],
        mask=(m < s.M)[:, None] & (at < s.d)[None, :],
        other=0.0,
    )  # (D, dP)
    dx = tl.dot(through, weights, input_precision="tf32x3", out_dtype=s.dtype)
    dW = tl.dot(tl.trans(du), x, input_precision="ieee", out_dtype=s.dtype)
    return dx, dW, tl.sum(du, 0)


@triton.jit
def store_map_gradient(dW, dbias, unit, dW_value, dbias_value, s: tl.constexpr):
    m, at = tl.arange(0, s.MP), tl.arange(0, s.dP)
    row = unit * s.M + m
    inside = (m < s.M)[:, None] & (at < s.d)[None, :]
    tl.store(dW + row[:, None] * s.d + at[None, :], dW_value, mask=inside)
    tl.store(dbias + row, dbias_value, mask=m < s.M)


@triton.jit
def table_of(dtable, b, h, unit, H, n, segment, copies, s: tl.constexpr):
    """The table that a program adds to, of dtable (groups, copies, K, 2 L), and its group."""
    if s.groups > 1:
        segments = tl.cdiv(n, segment)
        g, rank = h, b * segments + unit % segments
    else:
        g, rank = h * 0, unit
    return dtable + (g * copies + rank % copies) * (s.K * 2 * s.L), g
