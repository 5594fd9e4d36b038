"""What all passes have in common: a block of tokens read and written, the sums over keys that it
meets, and what divides.

A tensor (B, H, n, width) is passed as (pointer, stride of B, of H, of n). `sizes` are H, n, the
tokens of a segment, and into how many copies additions to shared results are spread. `s` is a Shape
(shape.py).
"""

from __future__ import annotations

import triton
import triton.language as tl


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
def dot(a, b, s: tl.constexpr):
    return tl.dot(a, b, input_precision=s.precision, out_dtype=s.dtype)


@triton.jit
def magnitudes(phi, s: tl.constexpr):
    """What sums of weights take of features."""
    return tl.abs(phi) if s.absolute else phi


@triton.jit
def through_magnitudes(phi, d, s: tl.constexpr):
    """The gradient of features whose magnitudes have the gradient d."""
    if s.absolute:
        d = tl.where(phi < 0, -d, tl.where(phi == 0, 0.0, d))  # and not phi > 0: NaN stays
    return d


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
    if s.signed:
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
