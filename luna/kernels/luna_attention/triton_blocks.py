"""What the Triton kernels have in common: the shape that they are compiled for, a block of tokens
read and written, its features and their gradients.

A tensor (B, H, n, width) is passed as (pointer, stride of B, of H, of n); `maps` are the pointers
of W, bias, keys and table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from luna.kernels.scalar_mlp import reference

SIGNED, RELU, SOFTPLUS, EXP = (tl.constexpr(i) for i in range(len(reference.OUTPUTS)))
CLAMP, THRESHOLD = tl.constexpr(reference.CLAMP), tl.constexpr(reference.THRESHOLD)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a kernel is compiled for. Widths are filled up to powers of two, and to 16 where a
    product sums over them; the index of a feature within a tile is m LP + l. A block's phi, slopes
    and gradient are in registers."""

    M: tl.constexpr  # projections
    L: tl.constexpr  # channels of each
    d: tl.constexpr  # width of q, k
    e: tl.constexpr  # width of v
    K: tl.constexpr  # lines of a table
    groups: tl.constexpr  # sets of parameters: 1, or one for each head
    output: tl.constexpr  # SIGNED, RELU, SOFTPLUS or EXP
    causal: tl.constexpr
    eps: tl.constexpr
    BLOCK: tl.constexpr  # tokens of a block
    MP: tl.constexpr  # M, L, M L, d and e, filled up
    LP: tl.constexpr
    D: tl.constexpr
    dP: tl.constexpr
    eP: tl.constexpr
    steps: tl.constexpr  # of the search in a table
    dtype: tl.constexpr  # of everything computed
    precision: tl.constexpr  # of the products that sum over tokens, features and values


def shape_of(v: Tensor, W: Tensor, table: Tensor, causal: bool, output: int, eps: float) -> Shape:
    G, M, d = W.shape
    _, K, columns = table.shape
    e = v.shape[3]
    L = columns // 2
    MP = triton.next_power_of_2(M)
    LP = max(triton.next_power_of_2(L), 16 // MP)
    tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return Shape(
        M=tl.constexpr(M),
        L=tl.constexpr(L),
        d=tl.constexpr(d),
        e=tl.constexpr(e),
        K=tl.constexpr(K),
        groups=tl.constexpr(G),
        output=tl.constexpr(output),
        causal=tl.constexpr(causal),
        eps=tl.constexpr(eps),
        BLOCK=tl.constexpr(64 if MP * LP <= 64 else 16),
        MP=tl.constexpr(MP),
        LP=tl.constexpr(LP),
        D=tl.constexpr(MP * LP),
        dP=tl.constexpr(max(16, triton.next_power_of_2(d))),
        eP=tl.constexpr(max(16, triton.next_power_of_2(e))),
        steps=tl.constexpr((K - 1).bit_length()),
        dtype=tl.constexpr(tl.float64 if table.dtype == torch.float64 else tl.float32),
        precision=tl.constexpr("tf32" if tf32 else "tf32x3"),
    )


@triton.jit
def program(H, n, segment, s: tl.constexpr):
    """Sequence, head, group, number of the unit in (B, H, segments), and the segment's tokens."""
    segments = tl.cdiv(n, segment)
    unit = tl.program_id(0).to(tl.int64)
    b, h = unit // segments // H, unit // segments % H
    first = (unit % segments).to(tl.int32) * segment
    return b, h, h if s.groups > 1 else h * 0, unit, first, tl.minimum(first + segment, n)


@triton.jit
def block_at(start, mask, b, last, n, s: tl.constexpr):
    """The rows of a block, and which of them are real tokens."""
    rows = start + tl.arange(0, s.BLOCK)
    return rows, tl.load(mask + b * n + rows, mask=rows < last, other=0) != 0


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
def state(S, z, index, s: tl.constexpr):
    """Pointers to S (D, eP) and z (D) of an index, and which of their places exist."""
    c, columns = tl.arange(0, s.D), tl.arange(0, s.eP)
    m, l = c // s.LP, c % s.LP
    live = (m < s.M) & (l < s.L)
    at = index * (s.M * s.L) + m * s.L + l
    S_live = live[:, None] & (columns < s.e)[None, :]
    return S + at[:, None] * s.e + columns[None, :], S_live, z + at, live


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
def features_backward(dphi, phi, slope, steep, u, j, x, real, maps, dtable, g, s: tl.constexpr):
    """dx (BLOCK, dP) and what this block adds to dW (MP, dP) and dbias (MP); the table's gradient
    is added to dtable."""
    d = tl.where(real[:, None], dphi, 0.0)
    if s.output == RELU:
        d = tl.where(phi <= 0, 0.0, d)  # and not phi > 0: NaN stays
    elif s.output != SIGNED:
        d = d * steep
    through = slope * d  # (BLOCK, D): du is its sum over l
    lines: tl.constexpr = (s.BLOCK, s.MP, s.LP)
    d = tl.reshape(d, lines)
    m, l = tl.arange(0, s.MP), tl.arange(0, s.LP)
    into = dtable + (j * (2 * s.L))[:, :, None] + l[None, None, :]
    there = ((m < s.M)[:, None] & (l < s.L)[None, :])[None, :, :] & (d != 0)
    tl.atomic_add(into, u[:, :, None] * d, mask=there)
    tl.atomic_add(into + s.L, d, mask=there)
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
def table_of(dtable, b, g, unit, n, segment, copies, s: tl.constexpr):
    """The table that a program adds to, of dtable (groups, copies, K, 2 L)."""
    segments = tl.cdiv(n, segment)
    rank = b * segments + unit % segments if s.groups > 1 else unit
    return dtable + (g * copies + rank % copies) * (s.K * 2 * s.L)
