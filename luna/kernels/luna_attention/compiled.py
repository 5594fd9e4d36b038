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
"""

from __future__ import annotations

import numpy as np

from luna.kernels import cpu
from luna.kernels.luna_attention.outputs import RELU, SIGNED, put_outputs
from luna.kernels.scalar_mlp.compiled import find_intervals

BLOCK = 128  # tokens at a time: 32 KB of features at D = 64
SEGMENT = 1024  # tokens of a unit


# ---------------------------------------------------------------------- small matrix products


@cpu.jit
def product(A, B, C, rows):
    """C[:rows] = A[:rows] B, for a B that fits the first cache; two rows at a time, so that what
    is loaded of B is used twice."""
    K, N = B.shape
    C[:rows] = 0
    for i in range(0, rows - rows % 2, 2):
        c, d = C[i], C[i + 1]
        for k in range(0, K - K % 4, 4):
            a0, a1, a2, a3 = A[i, k], A[i, k + 1], A[i, k + 2], A[i, k + 3]
            e0, e1, e2, e3 = A[i + 1, k], A[i + 1, k + 1], A[i + 1, k + 2], A[i + 1, k + 3]
            for j in range(N):
                b0, b1, b2, b3 = B[k, j], B[k + 1, j], B[k + 2, j], B[k + 3, j]
                c[j] += a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3
                d[j] += e0 * b0 + e1 * b1 + e2 * b2 + e3 * b3
        for k in range(K - K % 4, K):
            for j in range(N):
                c[j] += A[i, k] * B[k, j]
                d[j] += A[i + 1, k] * B[k, j]
    if rows % 2:
        for k in range(K):
            for j in range(N):
                C[rows - 1, j] += A[rows - 1, k] * B[k, j]


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
def gather(x, rows, count, block):
    for i in range(count):
        for j in range(block.shape[1]):
            block[i, j] = x[rows[i], j]


@cpu.jit
def project(x, W, bias, columns, u, count):
    """u (M, block) = W x^T + bias; `columns` (d, block) holds x^T, so that inner loops are long."""
    d, M = x.shape[1], len(bias)
    for i in range(count):
        for j in range(d):
            columns[j, i] = x[i, j]
    product(W, columns, u, M)
    for m in range(M):
        for i in range(count):
            u[m, i] += bias[m]


@cpu.jit
def features(u, keys, table, span, start, output, phi, slope, interval, count):
    """phi (block, M L) of the projections u (M, block); softplus and exp have a `slope` each."""
    M, L = len(u), table.shape[1] // 2
    zero, relu = phi.dtype.type(0), output == RELU
    for m in range(M):
        find_intervals(u[m], keys, span[0], span[1], start, interval[m], count)
    for i in range(count):
        for m in range(M):
            x, row, out = u[m, i], table[interval[m, i]], phi[i, m * L : (m + 1) * L]
            for l in range(L):
                value = row[l] * x + row[L + l]
                out[l] = zero if relu and value < 0 else value
    if output > RELU:
        put_outputs(phi[:count].reshape(-1), slope[:count].reshape(-1), output)


@cpu.jit
def map_block(x, maps, g, output, block, count):
    """A block's projections and features, by the maps of group g."""
    W, bias, table, keys, span, start = maps
    columns, u, phi, slope, interval = block
    project(x, W[g], bias[g], columns, u, count)
    features(u, keys[g], table[g], span[g], start[g], output, phi, slope, interval, count)


@cpu.jit
def features_backward(dphi, block, table, output, du, dtable, count):
    """du (block, M), and the table's gradient added to dtable."""
    _, u, phi, slope, interval = block
    M, L = len(u), table.shape[1] // 2
    zero, relu = phi.dtype.type(0), output == RELU
    if output > RELU:
        for i in range(count):
            for j in range(M * L):
                dphi[i, j] *= slope[i, j]
    for i in range(count):
        for m in range(M):
            j, at = interval[m, i], slice(m * L, (m + 1) * L)
            x, row, into, y, dy = u[m, i], table[j], dtable[j], phi[i, at], dphi[i, at]
            total = zero
            for l in range(L):
                d = zero if relu and y[l] <= 0 else dy[l]  # and not y > 0: NaN stays
                total += row[l] * d
                into[l] += x * d
                into[L + l] += d
            du[i, m] = total


@cpu.jit
def input_backward(x, du, W, dW, dbias, ones, dx, out, rows, count):
    """Through u = W x + bias: dx scattered to its rows, dW and dbias added."""
    product(du, W, dx, count)
    add_product(du, x, dW, count)
    add_rows(du, ones, dbias, count)
    for i in range(count):
        for j in range(dx.shape[1]):
            out[rows[i], j] = dx[i, j]


@cpu.jit
def scratch(maps, e):
    """Buffers: rows, x, values, and a block's x^T, u, phi, slopes of its outputs, intervals."""
    W, table = maps[0], maps[2]
    _, M, d = W.shape
    D = M * (table.shape[2] // 2)
    block = (
        np.zeros((d, BLOCK), W.dtype),
        np.empty((M, BLOCK), W.dtype),
        np.empty((BLOCK, D), W.dtype),
        np.empty((BLOCK, D), W.dtype),
        np.empty((M, BLOCK), np.int32),
    )
    values = np.empty((BLOCK, e), W.dtype)
    return np.empty(BLOCK, np.int64), np.empty((BLOCK, d), W.dtype), values, block


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
def unit_of(unit, B, n):
    """The sequence, head and first token of a unit; heads outermost, so that those which share
    parameters are neighbours."""
    segments = (n + SEGMENT - 1) // SEGMENT
    h, rest = unit // (B * segments), unit % (B * segments)
    return rest // segments, h, rest % segments * SEGMENT


@cpu.jit
def keys_kernel(first, last, k, v, mask, maps, output, S, z):
    """S (units, D, e) and z (units, D) of each unit alone."""
    W = maps[0]
    rows, x, values, block = scratch(maps, v.shape[3])
    phi = block[2]
    ones = np.ones(BLOCK, W.dtype)
    for unit in range(first, last):
        b, h, i = unit_of(unit, len(k), k.shape[2])
        g = h if len(W) > 1 else 0
        end = min(k.shape[2], i + SEGMENT)
        S[unit] = 0
        z[unit] = 0
        while i < end:
            count, i = real_rows(mask[b], i, end, rows)
            gather(k[b, h], rows, count, x)
            gather(v[b, h], rows, count, values)
            map_block(x, maps, g, output, block, count)
            add_product(phi, values, S[unit], count)
            add_rows(phi, ones, z[unit], count)


@cpu.jit
def denominator(c, eps, signed):
    if signed and c < 0:
        return -eps if c > -eps else c
    return eps if c < eps else c  # and not max(): NaN stays


@cpu.jit
def queries_kernel(first, last, q, mask, maps, output, S, z, eps, out, c):
    """out (B, H, n, e) and c (B, H, n); 0 at padding."""
    W = maps[0]
    rows, x, N, block = scratch(maps, S.shape[3])
    phi = block[2]
    for unit in range(first, last):
        b, h, i = unit_of(unit, len(q), q.shape[2])
        g = h if len(W) > 1 else 0
        end = min(q.shape[2], i + SEGMENT)
        for j in range(i, end):
            if not mask[b, j]:
                out[b, h, j] = 0
                c[b, h, j] = 0
        while i < end:
            count, i = real_rows(mask[b], i, end, rows)
            gather(q[b, h], rows, count, x)
            map_block(x, maps, g, output, block, count)
            product(phi, S[b, h], N, count)
            for r in range(count):
                total = W.dtype.type(0)
                for d in range(phi.shape[1]):
                    total += phi[r, d] * z[b, h, d]
                c[b, h, rows[r]] = total
                inverse = 1 / denominator(total, eps, output == SIGNED)
                for j in range(N.shape[1]):
                    out[b, h, rows[r], j] = N[r, j] * inverse


@cpu.jit
def queries_backward_kernel(
    first, last, grad, q, mask, maps, output, S_T, z, eps, out, c, dS, dz, dq, dW, dbias, dtable
):
    """dq; dS, dz of each unit; gradients of the parameters added to those of the part."""
    W, table = maps[0], maps[2]
    D, e = dS.shape[1:]
    rows, x, dN, block = scratch(maps, e)
    phi = block[2]
    dphi, dx, dc = np.empty_like(phi), np.empty_like(x), np.empty(BLOCK, W.dtype)
    du = np.empty((BLOCK, W.shape[1]), W.dtype)
    ones = np.ones(BLOCK, W.dtype)
    units = len(dS)
    for part in range(first, last):
        for unit in range(units * part // len(dW), units * (part + 1) // len(dW)):
            b, h, i = unit_of(unit, len(q), q.shape[2])
            g = h if len(W) > 1 else 0
            end = min(q.shape[2], i + SEGMENT)
            dS[unit] = 0
            dz[unit] = 0
            for j in range(i, end):
                if not mask[b, j]:
                    dq[b, h, j] = 0
            while i < end:
                count, i = real_rows(mask[b], i, end, rows)
                gather(q[b, h], rows, count, x)
                map_block(x, maps, g, output, block, count)
                for r in range(count):
                    at = c[b, h, rows[r]]
                    inverse = 1 / denominator(at, eps, output == SIGNED)
                    total = W.dtype.type(0)
                    for j in range(e):
                        d = grad[b, h, rows[r], j] * inverse
                        total += d * out[b, h, rows[r], j]
                        dN[r, j] = d
                    dc[r] = -total if abs(at) > eps else 0
                product(dN, S_T[b, h], dphi, count)
                for r in range(count):
                    for d in range(D):
                        dphi[r, d] += dc[r] * z[b, h, d]
                add_product(phi, dN, dS[unit], count)
                add_rows(phi, dc, dz[unit], count)
                features_backward(dphi, block, table[g], output, du, dtable[part], count)
                input_backward(x, du, W[g], dW[part], dbias[part], ones, dx, dq[b, h], rows, count)


@cpu.jit
def keys_backward_kernel(
    first, last, k, v, mask, maps, output, dS, dS_T, dz, dk, dv, dW, dbias, dtable
):
    """dk, dv; gradients of the parameters added to those of the part."""
    W, table = maps[0], maps[2]
    D, e = dS.shape[2:]
    rows, x, values, block = scratch(maps, e)
    phi = block[2]
    dphi, dx, dvalues = np.empty_like(phi), np.empty_like(x), np.empty_like(values)
    du = np.empty((BLOCK, W.shape[1]), W.dtype)
    ones = np.ones(BLOCK, W.dtype)
    units = len(k) * k.shape[1] * ((k.shape[2] + SEGMENT - 1) // SEGMENT)
    for part in range(first, last):
        for unit in range(units * part // len(dW), units * (part + 1) // len(dW)):
            b, h, i = unit_of(unit, len(k), k.shape[2])
            g = h if len(W) > 1 else 0
            end = min(k.shape[2], i + SEGMENT)
            for j in range(i, end):
                if not mask[b, j]:
                    dk[b, h, j] = 0
                    dv[b, h, j] = 0
            while i < end:
                count, i = real_rows(mask[b], i, end, rows)
                gather(k[b, h], rows, count, x)
                gather(v[b, h], rows, count, values)
                map_block(x, maps, g, output, block, count)
                product(phi, dS[b, h], dvalues, count)
                for r in range(count):
                    for j in range(e):
                        dv[b, h, rows[r], j] = dvalues[r, j]
                product(values, dS_T[b, h], dphi, count)
                for r in range(count):
                    for d in range(D):
                        dphi[r, d] += dz[b, h, d]
                features_backward(dphi, block, table[g], output, du, dtable[part], count)
                input_backward(x, du, W[g], dW[part], dbias[part], ones, dx, dk[b, h], rows, count)
