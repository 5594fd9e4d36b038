"""What the Triton kernels have in common: the shape that they are compiled for, a block of tokens
read and written, its features and their gradients.

A tensor (B, H, n, width) is passed as (pointer, stride of B, of H, of n); `maps` are the pointers
of W, bias, keys and table, `sizes` are H, n, the tokens of a segment, and into how many tables
additions are spread.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from luna.kernels.checked import INTERPRETED
from luna.kernels.scalar_mlp import reference
from luna.tensors import HALF

SIGNED, RELU, SOFTPLUS, EXP = (tl.constexpr(i) for i in range(len(reference.OUTPUTS)))
CLAMP, THRESHOLD = tl.constexpr(reference.CLAMP), tl.constexpr(reference.THRESHOLD)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shape:
    """What a kernel is compiled for. Widths are filled up to powers of two, and to 16 where a
    product sums over them; the index of a feature within a tile is m LP + l. A block's phi, slopes
    and gradient are in registers.

    `shape_of` makes one object for each shape: Triton hashes and compares it at every launch, which
    takes longer than the launch where 20 numbers are compared."""

    M: tl.constexpr  # projections
    L: tl.constexpr  # channels of each
    d: tl.constexpr  # width of q, k
    e: tl.constexpr  # width of v
    K: tl.constexpr  # lines of a table
    groups: tl.constexpr  # sets of parameters: 1, or one for each head
    output: tl.constexpr  # SIGNED, RELU, SOFTPLUS or EXP
    causal: tl.constexpr
    eps: tl.constexpr
    divided: tl.constexpr  # by the sum of weights; else the weighted sum of values is returned
    BLOCK: tl.constexpr  # tokens of a block
    MP: tl.constexpr  # M, L, M L, d and e, filled up
    LP: tl.constexpr
    D: tl.constexpr
    dP: tl.constexpr
    eP: tl.constexpr
    steps: tl.constexpr  # of the search in a table
    dtype: tl.constexpr  # of everything computed
    precision: tl.constexpr  # of the products that sum over tokens, features and values
    precise: tl.constexpr  # of one with W, which stays whole where TF32 is asked for
    rounded: tl.constexpr  # outputs are in half precision
    ordered: tl.constexpr  # the table's gradient is summed in a fixed order
    warps: int = 4


def shape_of(
    v: Tensor, W: Tensor, table: Tensor, causal: bool, output: int, eps: float, divided: bool
) -> Shape:
    G, M, d = W.shape
    _, K, columns = table.shape
    double = table.dtype == torch.float64
    # Half precision is exact in bfloat16 or two of them, so its products need no TF32.
    half = v.dtype in HALF and not INTERPRETED  # the interpreter knows no bf16x3
    precise = "bf16x3" if half else "tf32x3"
    tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    precision = "tf32" if tf32 else precise
    sizes = M, columns // 2, d, v.shape[3], K, G
    ordered = torch.are_deterministic_algorithms_enabled()
    kinds = precision, precise, v.dtype in HALF, ordered
    return _shape(*sizes, causal, output, eps, divided, double, *kinds)


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
    double: bool,
    precision: str,
    precise: str,
    rounded: bool,
    ordered: bool,
) -> Shape:
    MP = triton.next_power_of_2(M)
    LP = max(triton.next_power_of_2(L), 16 // MP)
    D = MP * LP
    return Shape(
        M=tl.constexpr(M),
        L=tl.constexpr(L),
        d=tl.constexpr(d),
        e=tl.constexpr(e),
        K=tl.constexpr(K),
        groups=tl.constexpr(groups),
        output=tl.constexpr(output),
        causal=tl.constexpr(causal),
        eps=tl.constexpr(eps),
        divided=tl.constexpr(divided),
        BLOCK=tl.constexpr(_block(D, ordered, causal and rounded)),
        MP=tl.constexpr(MP),
        LP=tl.constexpr(LP),
        D=tl.constexpr(D),
        dP=tl.constexpr(max(16, triton.next_power_of_2(d))),
        eP=tl.constexpr(max(16, triton.next_power_of_2(e))),
        steps=tl.constexpr((K - 1).bit_length()),
        dtype=tl.constexpr(tl.float64 if double else tl.float32),
        precision=tl.constexpr(precision),
        precise=tl.constexpr(precise),
        rounded=tl.constexpr(rounded),
        ordered=tl.constexpr(ordered),
        warps=4 if D <= 128 else 8,
    )


def _block(D: int, ordered: bool, causal_in_half: bool) -> int:
    """Tokens of a block, as measured on an H100."""
    if D > 64:
        return 16  # registers would spill by the kilobyte
    # Triton 3.6 compiles the causal kernels wrongly with bf16x3 and 64 tokens: addresses outside.
    return 32 if ordered or causal_in_half else 64


@triton.jit
def program(sizes, s: tl.constexpr):
    """Sequence, head, group, number of the unit in (B, H, segments), and the segment's tokens."""
    H, n, segment, _ = sizes
    segments = tl.cdiv(n, segment)
    unit = tl.program_id(0).to(tl.int64)
    b, h = unit // segments // H, unit // segments % H
    first = (unit % segments).to(tl.int32) * segment
    return b, h, h if s.groups > 1 else h * 0, unit, first, tl.minimum(first + segment, n)


@triton.jit
def block_at(start, mask, b, last, sizes, s: tl.constexpr):
    """The rows of a block, and which of them are real tokens."""
    rows = start + tl.arange(0, s.BLOCK)
    return rows, tl.load(mask + b * sizes[1] + rows, mask=rows < last, other=0) != 0


@triton.jit
def tile(x, b, h, start, width: tl.constexpr, padded: tl.constexpr, s: tl.constexpr):
    """Pointers to a block's rows of a tensor (BLOCK, padded), and which of the columns exist. Only
    the place of the block needs 64 bits: inside it offsets are small."""
    base, of_b, of_h, of_n = x
    columns = tl.arange(0, padded)
    first = base + b * of_b + h * of_h + tl.full([], start, tl.int64) * of_n
    at = first + (tl.arange(0, s.BLOCK)[:, None] * of_n + columns[None, :])
    return at, (columns < width)[None, :]


@triton.jit
def load(x, b, h, start, real, width: tl.constexpr, padded: tl.constexpr, s: tl.constexpr):
    """Rows of a block, 0 at padding."""
    at, inside = tile(x, b, h, start, width, padded, s)
    return tl.load(at, mask=real[:, None] & inside, other=0.0).to(s.dtype)


@triton.jit
def store(x, b, h, start, last, value, width: tl.constexpr, padded: tl.constexpr, s: tl.constexpr):
    at, inside = tile(x, b, h, start, width, padded, s)
    rows = start + tl.arange(0, s.BLOCK)
    tl.store(at, value, mask=(rows < last)[:, None] & inside)


@triton.jit
def state(S, z, s: tl.constexpr):
    """Pointers to S (D, eP) and z (D), and which of their places exist."""
    c, columns = tl.arange(0, s.D), tl.arange(0, s.eP)
    m, l = c // s.LP, c % s.LP
    live = (m < s.M) & (l < s.L)
    at = m * s.L + l
    S_live = live[:, None] & (columns < s.e)[None, :]
    return S + at[:, None] * s.e + columns[None, :], S_live, z + at, live


@triton.jit
def load_state(S, z, index, s: tl.constexpr):
    features: tl.constexpr = s.M * s.L
    first = index * features
    S_at, S_live, z_at, z_live = state(S + first * s.e, z + first, s)
    return tl.load(S_at, mask=S_live, other=0.0), tl.load(z_at, mask=z_live, other=0.0)


@triton.jit
def store_unit(units, index, S_value, z_value, s: tl.constexpr):
    """The sums of one unit, z behind S, so that one kernel adds both up."""
    features: tl.constexpr = s.M * s.L
    S = units + index * (features * (s.e + 1))
    S_at, S_live, z_at, z_live = state(S, S + features * s.e, s)
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
def per_token(x, b, h, rows, sizes):
    """Pointers to one number for each token of a block, of x (B, H, n)."""
    return x + (b * sizes[0] + h) * sizes[1] + rows


@triton.jit
def sums_gradient(grad, c, b, h, start, rows, real, sizes, s: tl.constexpr):
    """dN (BLOCK, eP) = do / den; den and c (BLOCK)."""
    dN = load(grad, b, h, start, real, s.e, s.eP, s)
    weight = tl.load(per_token(c, b, h, rows, sizes), mask=real, other=0.0)
    den = denominator(weight, s)
    if s.divided:
        dN = dN / den[:, None]
    return dN, den, weight


@triton.jit
def weight_gradient(dN, o, weight, s: tl.constexpr):
    """dc (BLOCK) = -dN . o, 0 where the divisor is at its limit or is not c."""
    if not s.divided:
        return tl.zeros([s.BLOCK], s.dtype)
    dc = -tl.sum(dN * o, 1)
    return tl.where(tl.abs(weight) > smallest(s), dc, 0.0)


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
    dW = tl.dot(tl.trans(du), x, input_precision="ieee", out_dtype=s.dtype)
    return dx, dW, tl.sum(du, 0)


@triton.jit
def store_map_gradient(dW, unit, dW_value, dbias_value, s: tl.constexpr):
    """Rows [dW, dbias] (M, d + 1) of a unit."""
    m, at = tl.arange(0, s.MP), tl.arange(0, s.dP)
    row = dW + (unit * s.M + m) * (s.d + 1)
    inside = (m < s.M)[:, None] & (at < s.d)[None, :]
    tl.store(row[:, None] + at[None, :], dW_value, mask=inside)
    tl.store(row + s.d, dbias_value, mask=m < s.M)


@triton.jit
def table_of(dtable, b, g, unit, sizes, s: tl.constexpr):
    """The table that a program adds to, of dtable (groups, copies, K, 2 L)."""
    _, n, segment, copies = sizes
    segments = tl.cdiv(n, segment)
    rank = b * segments + unit % segments if s.groups > 1 else unit
    return dtable + (g * copies + rank % copies) * (s.K * 2 * s.L)
