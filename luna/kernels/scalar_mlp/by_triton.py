"""The tables of `operator.tables` on a GPU, in two kernels and one for the gradient.

Torch needs some 64 operations for them, which take longer to start than to run. Here the keys are
sorted by counting: the rank of a key is the number of smaller ones. A line of the table is a sum
over hidden units, each on the side of its key that the interval has:

    slope_jl = sum_r s_jr a_lr e_r     intercept_jl = sum_r s_jr a_lr f_r + g_l

with s_jr = 1 where unit r is on in interval j, and the activation's slope where it is off. A unit
with e >= 0 is on right of its key, rank_r < j, the others left of it. Sums are taken in float64 and
in one order, so the same parameters give the same table, and the same gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from luna.kernels.compiled import TABLES

KEYS = 32  # whose ranks one program counts
ROWS = 16  # of the table, or hidden units of its gradient, for one program
OTHERS = 128  # that these meet at a time


@triton.jit
def key_of(e, f):
    """The largest number at which a unit does not yet count as exceeded; see `_sorted_keys`."""
    if e.dtype == tl.float32:
        key = tl.div_rn(-f, e)  # rounded as torch does it; `/` is not, in single precision
    else:
        key = -f / e
    # The number before it: one less as an integer above 0, one more below.
    bits = key.to(tl.int64 if key.dtype == tl.float64 else tl.int32, bitcast=True)
    before = tl.where(key > 0, bits - 1, bits + 1).to(key.dtype, bitcast=True)
    if key.dtype == tl.float64:
        smallest = tl.full(key.shape, 1, tl.int64).to(tl.float64, bitcast=True)
    else:
        smallest = tl.full(key.shape, 1, tl.int32).to(tl.float32, bitcast=True)
    before = tl.where(key == 0, -smallest, before)
    stays = (e >= 0) | (key != key) | (key == -float("inf"))
    key = tl.where(stays, key, before)
    nowhere = tl.where(f > 0, -float("inf"), float("inf"))
    return tl.where(e == 0, nowhere.to(key.dtype), key)


@triton.jit
def keys_kernel(e, f, keys, ranks, N, KEYS: tl.constexpr, OTHERS: tl.constexpr):
    """Sorted keys (G, N) and the place of each unit (G, N) among them, NaN last."""
    g = tl.program_id(1).to(tl.int64) * N
    mine = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    inside = mine < N
    key = key_of(
        tl.load(e + g + mine, mask=inside, other=1.0),
        tl.load(f + g + mine, mask=inside, other=0.0),
    )
    rank = tl.zeros([KEYS], tl.int32)
    for first in range(0, N, OTHERS):
        theirs = first + tl.arange(0, OTHERS)
        there = theirs < N
        other = key_of(
            tl.load(e + g + theirs, mask=there, other=1.0),
            tl.load(f + g + theirs, mask=there, other=0.0),
        )
        a, b = other[None, :], key[:, None]
        less = (a < b) | ((b != b) & (a == a))
        same = (a == b) | ((b != b) & (a != a))
        less = less | (same & (theirs[None, :] < mine[:, None]))  # equal keys in their own order
        rank += tl.sum((less & there[None, :]).to(tl.int32), 1)
    tl.store(keys + g + rank, key, mask=inside)
    tl.store(ranks + g + mine, rank, mask=inside)


@triton.jit
def sides(j, rank, e, SLOPE: tl.constexpr):
    """s (intervals, units) in float64: 1 where the unit is on, SLOPE where it is off."""
    exceeded = rank[None, :] < j[:, None]
    on = exceeded == (e >= 0)[None, :]
    return tl.where(on, tl.full(on.shape, 1.0, tl.float64), tl.full(on.shape, SLOPE, tl.float64))


@triton.jit
def units(e, f, ranks, first, r, inside):
    """A channel's first layer and ranks, those of units that do not exist being 0."""
    return (
        tl.load(e + first + r, mask=inside, other=0.0).to(tl.float64),
        tl.load(f + first + r, mask=inside, other=0.0).to(tl.float64),
        tl.load(ranks + first + r, mask=inside, other=0),
    )


@triton.jit
def table_kernel(
    e,
    f,
    a,
    g,
    ranks,
    table,
    K,
    L,
    w,
    SHARED: tl.constexpr,
    SLOPE: tl.constexpr,
    ROWS: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """Rows of one channel: table (G, K, 2 L)."""
    channel = tl.program_id(1)  # of all groups
    group, l = (channel // L).to(tl.int64), channel % L
    first = (group if SHARED else channel.to(tl.int64)) * w
    j = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slope, intercept = tl.zeros([ROWS], tl.float64), tl.zeros([ROWS], tl.float64)
    intercept += tl.load(g + channel).to(tl.float64)
    for start in range(0, w, OTHERS):
        r = start + tl.arange(0, OTHERS)
        e_r, f_r, rank = units(e, f, ranks, first, r, r < w)
        s = sides(j, rank, e_r, SLOPE)
        a_r = tl.load(a + channel.to(tl.int64) * w + r, mask=r < w, other=0.0).to(tl.float64)
        slope += tl.sum(s * (a_r * e_r)[None, :], 1)
        intercept += tl.sum(s * (a_r * f_r)[None, :], 1)
    at = table + (group * K + j) * (2 * L) + l
    tl.store(at, slope, mask=j < K)
    tl.store(at + L, intercept, mask=j < K)


@triton.jit
def table_backward_kernel(
    dtable,
    e,
    f,
    a,
    ranks,
    de,
    df,
    da,
    dg,
    K,
    L,
    w,
    SHARED: tl.constexpr,
    SLOPE: tl.constexpr,
    ROWS: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """Gradients of ROWS hidden units of one first layer, and of g."""
    layer = tl.program_id(1)  # of all groups: one for each channel, or one for all
    group = (layer if SHARED else layer // L).to(tl.int64)
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = r < w
    first = layer.to(tl.int64) * w
    e_r, f_r, rank = units(e, f, ranks, first, r, inside)
    de_r, df_r = tl.zeros([ROWS], tl.float64), tl.zeros([ROWS], tl.float64)
    for i in range(L if SHARED else 1):
        l = i if SHARED else layer % L
        by_slope, by_intercept = tl.zeros([ROWS], tl.float64), tl.zeros([ROWS], tl.float64)
        all_intercepts = tl.zeros([OTHERS], tl.float64)
        for start in range(0, K, OTHERS):
            j = start + tl.arange(0, OTHERS)
            at = dtable + (group * K + j) * (2 * L) + l
            d_slope = tl.load(at, mask=j < K, other=0.0).to(tl.float64)
            d_intercept = tl.load(at + L, mask=j < K, other=0.0).to(tl.float64)
            s = sides(j, rank, e_r, SLOPE)
            by_slope += tl.sum(s * d_slope[:, None], 0)
            by_intercept += tl.sum(s * d_intercept[:, None], 0)
            all_intercepts += d_intercept
        channel = group * L + l
        a_r = tl.load(a + channel * w + r, mask=inside, other=0.0).to(tl.float64)
        tl.store(da + channel * w + r, by_slope * e_r + by_intercept * f_r, mask=inside)
        de_r += by_slope * a_r
        df_r += by_intercept * a_r
        if tl.program_id(0) == 0:
            tl.store(dg + channel, tl.sum(all_intercepts, 0))
    tl.store(de + first + r, de_r, mask=inside)
    tl.store(df + first + r, df_r, mask=inside)


def tables(e: Tensor, f: Tensor, a: Tensor, g: Tensor, slope: float) -> tuple[Tensor, ...]:
    """keys (G, K-1), table (G, K, 2 L) and the ranks of the units (G, K-1)."""
    (G, C, w), L = e.shape, g.shape[1]
    N = C * w
    keys, table = e.new_empty(G, N), e.new_empty(G, N + 1, 2 * L)
    ranks = torch.empty_like(keys, dtype=torch.int32)
    blocks = triton.cdiv(N, KEYS), G
    with torch.cuda.device_of(e):
        keys_kernel[blocks](e, f, keys, ranks, N, KEYS=KEYS, OTHERS=OTHERS, **TABLES)
        blocks = triton.cdiv(N + 1, ROWS), G * L
        sizes = _sizes(slope)
        table_kernel[blocks](e, f, a, g, ranks, table, N + 1, L, w, C < L, **sizes, **TABLES)
    return keys, table, ranks


def tables_backward(
    dtable: Tensor, e: Tensor, f: Tensor, a: Tensor, ranks: Tensor, slope: float
) -> tuple[Tensor, ...]:
    """Gradients of e, f, a and g."""
    (G, C, w), L = e.shape, a.shape[1]
    de, df, da, dg = (torch.empty_like(t) for t in (e, f, a, a[:, :, 0]))
    blocks, sizes = (triton.cdiv(w, ROWS), G * C), _sizes(slope)
    arguments = dtable, e, f, a, ranks, de, df, da, dg, C * w + 1, L, w, C < L
    with torch.cuda.device_of(e):
        table_backward_kernel[blocks](*arguments, **sizes, **TABLES)
    return de, df, da, dg


def _sizes(slope: float) -> dict[str, Any]:
    return {"SLOPE": slope, "ROWS": ROWS, "OTHERS": OTHERS}
