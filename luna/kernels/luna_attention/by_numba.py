"""LUNA's attention in machine code, on the CPU: blocks of tokens, features never stored.

Forward goes over the keys once, phi(K)^T V and phi(K)^T 1 growing, and over the queries once.
Backward does the same with features computed anew: over the queries for dS, dz, over the keys for
dk, dv. A block's features live in cache; what is kept between the passes is the output, the
denominators, and S and z of each head.

    N_i = S^T phi(q_i)   c_i = z . phi(q_i)   o_i = N_i / den(c_i)
    dN_i = do_i / den    dc_i = -(do_i . o_i) / den where |c_i| > eps, else 0
    dphi(q_i) = S dN_i + z dc_i      dS = sum_i phi(q_i) dN_i^T      dz = sum_i phi(q_i) dc_i
    dphi(k_j) = dS v_j + dz          dv_j = dS^T phi(k_j)

Padded tokens are not loaded at all. A unit of work is a segment of one sequence and head; sums
over units are taken in an order that does not depend on the number of threads.

Causal attention has no kernel of its own here: linear_blocks.py computes it in blocks, with
features by look-up.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from torch import Tensor

from luna.base import zero_padding
from luna.kernels import cpu
from luna.kernels.linear_blocks import Maps, Parameters, blocked_sums
from luna.kernels.scalar_mlp import OUTPUTS, Nonneg
from luna.kernels.scalar_mlp.by_numba import find_intervals, grid
from luna.kernels.scalar_mlp.operator import look_up
from luna.kernels.scalar_mlp.reference import CLAMP, THRESHOLD
from luna.sums import denominator

BLOCK = 128  # tokens at a time: 32 KB of features at D = 64
SEGMENT = 1024  # tokens of a unit
PARTS = 32  # at most, of the units, with parameter gradients of their own
SIGNED, RELU, SOFTPLUS, EXP = range(len(OUTPUTS))  # as numbers: their places in OUTPUTS


# ---------------------------------------------------------------------- calls


def forward(arguments: tuple, results: tuple[Tensor, ...], _: int) -> None:
    q, k, v, mask, W, bias, keys, table, causal, output, eps = arguments
    assert not causal
    out, c, S, z = results
    units, maps = _units(q), _maps(W, bias, keys, table)
    of_units = S.new_empty(units, *S.shape[2:]), z.new_empty(units, z.shape[2])
    mask, sums = mask.numpy(), cpu.arrays(*of_units)
    cpu.run(keys_kernel, units, _rows(k), _rows(v), mask, maps, output, *sums)
    for parts, total in zip(of_units, (S, z), strict=True):
        total.copy_(_per_head(parts, q))
    arrays = *cpu.arrays(S, z), eps, _rows(out), c.numpy()
    cpu.run(queries_kernel, units, _rows(q), mask, maps, output, *arrays)


def backward(arguments: tuple, gradients: tuple[Tensor, ...], _: int) -> None:
    grad, q, k, v, mask, W, bias, keys, table, out, c, S, z, _, output, eps = arguments
    *dqkv, dW, dbias, dtable = gradients
    G, units, maps = len(W), _units(q), _maps(W, bias, keys, table)
    parts = G * min(units // G, max(1, PARTS // G))
    dS, dz = S.new_empty(units, *S.shape[2:]), z.new_empty(units, z.shape[2])
    shared = [t.new_zeros(parts, *t.shape[1:]) for t in (W, bias, table)]
    dq, *dkv = map(_rows, dqkv)
    mask = mask.numpy()
    cpu.run(
        queries_backward_kernel,
        parts,
        _rows(grad),
        _rows(q),
        mask,
        maps,
        output,
        *cpu.arrays(S.mT.contiguous(), z),
        eps,
        _rows(out),
        *cpu.arrays(c, dS, dz),
        dq,
        *cpu.arrays(*shared),
    )
    dS, dz = _per_head(dS, q).contiguous(), _per_head(dz, q).contiguous()
    cpu.run(
        keys_backward_kernel,
        parts,
        _rows(k),
        _rows(v),
        mask,
        maps,
        output,
        *cpu.arrays(dS, dS.mT.contiguous(), dz),
        *dkv,
        *cpu.arrays(*shared),
    )
    for parts_of, total in zip(shared, (dW, dbias, dtable), strict=True):
        sum_parts(*cpu.arrays(parts_of.view(G, parts // G, -1), total.view(G, -1)))


def _rows(t: Tensor) -> tuple[Any, ...]:
    """The memory of t (B, H, n, width) with the steps of B, H, n: a kernel reads whole rows at
    once, wherever they lie, because it knows that a row has no gaps."""
    t = t.detach() if t.stride(-1) == 1 else t.detach().contiguous()
    size = 1 + sum((length - 1) * step for length, step in zip(t.shape, t.stride(), strict=True))
    return t.as_strided((size,), (1,)).numpy(), *t.stride()[:3]


def _units(q: Tensor) -> int:
    B, H, n, _ = q.shape
    return B * H * -(-n // SEGMENT)


def _per_head(parts: Tensor, q: Tensor) -> Tensor:
    """Sums of units (units, ...) as sums of heads (B, H, ...)."""
    B, H = q.shape[:2]
    totals = parts.new_empty(H, B, *parts.shape[1:])
    sum_parts(*cpu.arrays(parts.view(B * H, len(parts) // (B * H), -1), totals.view(B * H, -1)))
    return totals.transpose(0, 1)


def _maps(W: Tensor, bias: Tensor, keys: Tensor, table: Tensor) -> tuple[np.ndarray, ...]:
    return tuple(cpu.arrays(W.contiguous(), bias.contiguous(), table, *grid(keys)))


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
) -> tuple[Tensor, Tensor]:
    """o (B, H, n, e) and the denominators' c (B, H, n); 0 at padding."""
    from luna.kernels.luna_attention.reference import features

    q, k, v = (zero_padding(t, mask) for t in (q, k, v))
    keys, *cells = grid(keys)
    relu = nonneg is True  # relu is part of the look-up
    output = OUTPUTS[False if relu else nonneg]

    def phi(x: Tensor, at: slice, parameters: Parameters) -> Tensor:
        W, bias, table = parameters

        def channels(u: Tensor) -> Tensor:
            return look_up(u.contiguous(), keys, table, relu, *cells)[0]

        return output(features(x, W, bias, channels))

    N, c = blocked_sums(q, k, v, Maps(phi, phi, (W, bias, table)), mask, mask, causal=True)
    return N / denominator(c, eps, not nonneg).unsqueeze(-1), c.detach()


# ---------------------------------------------------------------------- softplus and exp
#
# A function of the C library is called for one number at a time, which in single precision would
# cost more than the rest of the attention. So there both are short series, whose loops the compiler
# puts into vector registers; their errors are a few units in the last place:
#
#     e^x        = 2^k e^r                      k = round(x / ln 2), |r| <= ln(2) / 2, Taylor to r^7
#     log(1 + t) = 2 artanh(s), s = t / (2 + t)     0 <= t <= 1, so s <= 1/3, Taylor to s^13

F = np.float32
ROUND = F(1.5 * 2**23)  # x + ROUND has no place for fractions
LOG2_E = F(1 / math.log(2))
LN2_HIGH = F(22713 / 2**15)  # few digits: its products with k are exact
LN2_LOW = F(math.log(2) - 22713 / 2**15)
LOWEST = F(-88)  # where e^x becomes 0: k = -127
TAYLOR = tuple(F(1 / math.factorial(i)) for i in range(7, -1, -1))
ARTANH = tuple(F(2 / i) for i in range(13, 0, -2))

exact = functools.partial(cpu.jit, reorder=False)  # rounding errors must stay where they are


@exact
def exponential(x, single):
    """e^x, in single precision for x <= 88."""
    if not single:
        return math.exp(x)
    x = LOWEST if x < LOWEST else x
    shifted = x * LOG2_E + ROUND
    k = shifted - ROUND
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    power = TAYLOR[0]
    for coefficient in TAYLOR[1:]:
        power = power * r + coefficient
    bits = F(shifted).view(np.int32)  # which end with k
    exponent = (bits + np.int32(127)) << np.int32(23)
    return power * np.int32(exponent).view(np.float32)


@exact
def log1p(t, single):
    """log(1 + t) for 0 <= t <= 1."""
    if not single:
        return math.log1p(t)
    s = t / (F(2) + t)
    square, total = s * s, ARTANH[0]
    for coefficient in ARTANH[1:]:
        total = total * square + coefficient
    return total * s


@exact
def put_outputs(y, slope, output):
    """Replace MLP outputs y by exp or softplus of them, and write the derivatives to `slope`."""
    one, zero = y.dtype.type(1), y.dtype.type(0)
    single = one + y.dtype.type(2**-30) == one  # known to the compiler
    if output == EXP:
        top = y.dtype.type(CLAMP)
        for i in range(len(y)):
            x = y[i]
            value = exponential(top if x > top else x, single)
            y[i] = value
            slope[i] = zero if x > top else value
    else:
        top = y.dtype.type(THRESHOLD)
        for i in range(len(y)):
            x = y[i]
            t = exponential(-abs(x), single)
            value = (x if x > zero else zero) + log1p(t, single)
            y[i] = x if x > top else value
            slope[i] = one if x > top else (t if x < zero else one) / (one + t)


# ---------------------------------------------------------------------- small matrix products


@cpu.jit
def add_product(A, B, C, rows):
    """C += A[:rows]^T B[:rows], two rows of C at a time."""
    D, N = C.shape
    for i in range(0, rows - rows % 4, 4):
        for p in range(0, D - D % 2, 2):
            c, d = C[p], C[p + 1]
            a0, a1, a2, a3 = A[i, p], A[i + 1, p], A[i + 2, p], A[i + 3, p]
            e0, e1, e2, e3 = A[i, p + 1], A[i + 1, p + 1], A[i + 2, p + 1], A[i + 3, p + 1]
            for j in range(N):
                b0, b1, b2, b3 = B[i, j], B[i + 1, j], B[i + 2, j], B[i + 3, j]
                c[j] += a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3
                d[j] += e0 * b0 + e1 * b1 + e2 * b2 + e3 * b3
        if D % 2:
            for j in range(N):
                for r in range(i, i + 4):
                    C[D - 1, j] += A[r, D - 1] * B[r, j]
    for i in range(rows - rows % 4, rows):
        for p in range(D):
            for j in range(N):
                C[p, j] += A[i, p] * B[i, j]


@cpu.jit
def product(A, B, C, rows):
    """C[:rows] = A[:rows] B."""
    C[:rows] = 0
    add_product(A[:rows].T, B, C[:rows], len(B))


@cpu.jit
def add_rows(A, scale, c, rows):
    """c += sum of scale[i] A[i] over the first rows."""
    for i in range(rows):
        for d in range(len(c)):
            c[d] += scale[i] * A[i, d]


# ---------------------------------------------------------------------- a block of tokens


@cpu.jit
def real_rows(mask, i, end, rows):
    """Write the indices of the real tokens from i to end into `rows`, at most len(rows) of them;
    return their count and where to continue."""
    count = 0
    while i < end and count < len(rows):
        if mask[i]:
            rows[count] = i
            count += 1
        i += 1
    return count, i


@cpu.jit
def row_of(x, b, h, i):
    """Where a row begins in the memory of x, see `_rows`."""
    return b * x[1] + h * x[2] + i * x[3]


@cpu.jit
def gather(x, b, h, rows, count, block):
    for i in range(count):
        at = row_of(x, b, h, rows[i])
        for j in range(block.shape[1]):
            block[i, j] = x[0][at + j]


@cpu.jit
def scatter(block, rows, count, x, b, h):
    for i in range(count):
        at = row_of(x, b, h, rows[i])
        for j in range(block.shape[1]):
            x[0][at + j] = block[i, j]


@cpu.jit
def map_block(x, maps, g, output, block, count):
    """A block's projections u (M, block) and features phi (block, M L), by the maps of group g;
    softplus and exp have a `slope` each. x^T is copied, so that inner loops are long."""
    W, bias, table, keys, span, start = maps
    columns, u, phi, slope, interval = block[:5]
    M, L = len(u), table.shape[2] // 2
    zero, relu = phi.dtype.type(0), output == RELU
    columns[:, :count] = x[:count].T
    product(W[g], columns, u, M)
    for m in range(M):
        for i in range(count):
            u[m, i] += bias[g, m]
        find_intervals(u[m], keys[g], span[g, 0], span[g, 1], start[g], interval[m], count)
    for i in range(count):
        for m in range(M):
            v, row, out = u[m, i], table[g, interval[m, i]], phi[i, m * L : (m + 1) * L]
            for l in range(L):
                value = row[l] * v + row[L + l]
                out[l] = zero if relu and value < 0 else value
    if output > RELU:
        put_outputs(phi[:count].reshape(-1), slope[:count].reshape(-1), output)


@cpu.jit
def map_backward(x, A, weights, B, z, maps, g, output, block, totals, dx, b, h, rows, count):
    """Through a block's map, whose features have the gradient A B + weights z: dx scattered to its
    rows, the gradients of W, bias and table added to the totals."""
    _, u, phi, slope, interval, dphi, du, dtokens, ones = block
    (M, _), L, table = u.shape, maps[2].shape[2] // 2, maps[2][g]
    dW, dbias, dtable = totals
    zero, relu = phi.dtype.type(0), output == RELU
    product(A, B, dphi, count)
    for i in range(count):
        for j in range(M * L):
            d = dphi[i, j] + weights[i] * z[j]
            dphi[i, j] = d * slope[i, j] if output > RELU else d
    for i in range(count):
        for m in range(M):
            j, at = interval[m, i], slice(m * L, (m + 1) * L)
            v, row, into, y, dy = u[m, i], table[j], dtable[j], phi[i, at], dphi[i, at]
            total = zero
            for l in range(L):
                d = zero if relu and y[l] <= 0 else dy[l]  # and not y > 0: NaN stays
                total += row[l] * d
                into[l] += v * d
                into[L + l] += d
            du[i, m] = total
    product(du, maps[0][g], dtokens, count)
    add_product(du, x, dW, count)
    add_rows(du, ones, dbias, count)
    scatter(dtokens, rows, count, dx, b, h)


@cpu.jit
def scratch(maps, e):
    """Buffers: rows, x, values, ones, and a block's x^T, u, phi, slopes of its outputs, intervals
    and, for backward, the gradients of phi, u and x."""
    W, table = maps[0], maps[2]
    _, M, d = W.shape
    D, ones = M * (table.shape[2] // 2), np.ones(BLOCK, W.dtype)
    block = (
        np.zeros((d, BLOCK), W.dtype),
        np.empty((M, BLOCK), W.dtype),
        np.empty((BLOCK, D), W.dtype),
        np.empty((BLOCK, D), W.dtype),
        np.empty((M, BLOCK), np.int32),
        np.empty((BLOCK, D), W.dtype),
        np.empty((BLOCK, M), W.dtype),
        np.empty((BLOCK, d), W.dtype),
        ones,
    )
    values = np.empty((BLOCK, e), W.dtype)
    return np.empty(BLOCK, np.int64), np.empty((BLOCK, d), W.dtype), values, block, ones


# ---------------------------------------------------------------------- kernels


@cpu.jit
def sum_parts(parts, total):
    """total (G, N) of parts (G, P, N), added in order and in float64."""
    G, P, N = parts.shape
    sums = np.empty(N, np.float64)
    for g in range(G):
        sums[:] = 0
        for p in range(P):
            for i in range(N):
                sums[i] += parts[g, p, i]
        total[g] = sums


@cpu.jit
def unit_of(unit, mask, groups):
    """Sequence, head, group, and the tokens of a unit; heads outermost, so that those which share
    parameters are neighbours."""
    B, n = mask.shape
    segments = (n + SEGMENT - 1) // SEGMENT
    h, rest = unit // (B * segments), unit % (B * segments)
    first = rest % segments * SEGMENT
    return rest // segments, h, h if groups > 1 else 0, first, min(n, first + SEGMENT)


@cpu.jit
def clear_padding(mask, first, end, x, b, h, width):
    for i in range(first, end):
        if not mask[b, i]:
            at = row_of(x, b, h, i)
            x[0][at : at + width] = 0


@cpu.jit
def keys_kernel(first, last, k, v, mask, maps, output, S, z):
    """S (units, D, e) and z (units, D) of each unit alone."""
    W = maps[0]
    rows, x, values, block, ones = scratch(maps, S.shape[2])
    phi = block[2]
    for unit in range(first, last):
        b, h, g, i, end = unit_of(unit, mask, len(W))
        S[unit] = 0
        z[unit] = 0
        while i < end:
            count, i = real_rows(mask[b], i, end, rows)
            gather(k, b, h, rows, count, x)
            gather(v, b, h, rows, count, values)
            map_block(x, maps, g, output, block, count)
            add_product(phi, values, S[unit], count)
            add_rows(phi, ones, z[unit], count)


@cpu.jit
def denominator_of(c, eps, signed):
    if signed and c < 0:
        return -eps if c > -eps else c
    return eps if c < eps else c  # and not max(): NaN stays


@cpu.jit
def queries_kernel(first, last, q, mask, maps, output, S, z, eps, out, c):
    """out (B, H, n, e) and c (B, H, n); 0 at padding."""
    W = maps[0]
    rows, x, N, block, _ = scratch(maps, S.shape[3])
    phi = block[2]
    for unit in range(first, last):
        b, h, g, i, end = unit_of(unit, mask, len(W))
        clear_padding(mask, i, end, out, b, h, S.shape[3])
        c[b, h, i:end] = 0
        while i < end:
            count, i = real_rows(mask[b], i, end, rows)
            gather(q, b, h, rows, count, x)
            map_block(x, maps, g, output, block, count)
            product(phi, S[b, h], N, count)
            for r in range(count):
                total = W.dtype.type(0)
                for d in range(phi.shape[1]):
                    total += phi[r, d] * z[b, h, d]
                c[b, h, rows[r]] = total
                inverse = 1 / denominator_of(total, eps, output == SIGNED)
                for j in range(N.shape[1]):
                    N[r, j] *= inverse
            scatter(N, rows, count, out, b, h)


@cpu.jit
def queries_backward_kernel(
    first, last, grad, q, mask, maps, output, S_T, z, eps, out, c, dS, dz, dq, dW, dbias, dtable
):
    """dq; dS, dz of each unit; gradients of the parameters added to those of the part."""
    W, units, e = maps[0], len(dS), dS.shape[2]
    rows, x, dN, block, _ = scratch(maps, e)
    phi, dc = block[2], np.empty(BLOCK, W.dtype)
    for part in range(first, last):
        totals = dW[part], dbias[part], dtable[part]
        for unit in range(units * part // len(dW), units * (part + 1) // len(dW)):
            b, h, g, i, end = unit_of(unit, mask, len(W))
            dS[unit] = 0
            dz[unit] = 0
            clear_padding(mask, i, end, dq, b, h, x.shape[1])
            while i < end:
                count, i = real_rows(mask[b], i, end, rows)
                gather(q, b, h, rows, count, x)
                map_block(x, maps, g, output, block, count)
                for r in range(count):
                    at = c[b, h, rows[r]]
                    inverse = 1 / denominator_of(at, eps, output == SIGNED)
                    total = W.dtype.type(0)
                    of_grad, of_out = row_of(grad, b, h, rows[r]), row_of(out, b, h, rows[r])
                    for j in range(e):
                        d = grad[0][of_grad + j] * inverse
                        total += d * out[0][of_out + j]
                        dN[r, j] = d
                    dc[r] = -total if abs(at) > eps else 0
                add_product(phi, dN, dS[unit], count)
                add_rows(phi, dc, dz[unit], count)
                map_backward(
                    x,
                    dN,
                    dc,
                    S_T[b, h],
                    z[b, h],
                    maps,
                    g,
                    output,
                    block,
                    totals,
                    dq,
                    b,
                    h,
                    rows,
                    count,
                )


@cpu.jit
def keys_backward_kernel(
    first, last, k, v, mask, maps, output, dS, dS_T, dz, dk, dv, dW, dbias, dtable
):
    """dk, dv; gradients of the parameters added to those of the part."""
    W, e = maps[0], dS.shape[3]
    rows, x, values, block, ones = scratch(maps, e)
    phi, dvalues = block[2], np.empty_like(values)
    units = len(dS) * dS.shape[1] * ((mask.shape[1] + SEGMENT - 1) // SEGMENT)
    for part in range(first, last):
        totals = dW[part], dbias[part], dtable[part]
        for unit in range(units * part // len(dW), units * (part + 1) // len(dW)):
            b, h, g, i, end = unit_of(unit, mask, len(W))
            clear_padding(mask, i, end, dk, b, h, x.shape[1])
            clear_padding(mask, i, end, dv, b, h, e)
            while i < end:
                count, i = real_rows(mask[b], i, end, rows)
                gather(k, b, h, rows, count, x)
                gather(v, b, h, rows, count, values)
                map_block(x, maps, g, output, block, count)
                product(phi, dS[b, h], dvalues, count)
                scatter(dvalues, rows, count, dv, b, h)
                map_backward(
                    x,
                    values,
                    ones,
                    dS_T[b, h],
                    dz[b, h],
                    maps,
                    g,
                    output,
                    block,
                    totals,
                    dk,
                    b,
                    h,
                    rows,
                    count,
                )
