"""The four passes over the tokens in machine code; calls.py has their equations and calls them.

A kernel takes a range of units (units.py), or of parts, each of which is some units of one group
with gradients of the parameters of their own.
"""

from __future__ import annotations

from typing import NamedTuple

from luna.kernels import cpu
from luna.kernels.linear_numba.borrowed import borrowed, keep
from luna.kernels.linear_numba.feature_map import (
    end_part,
    inputs_of,
    map_backward,
    map_rows,
    new_block,
    new_scratch,
    start_part,
)
from luna.kernels.linear_numba.rows import clear_padding, put_rows, real_rows, rows_in, rows_out
from luna.kernels.linear_numba.tiles import add_product, product
from luna.kernels.linear_numba.units import segments_of_mask, unit_of
from luna.kernels.linear_numba.vectors import (
    lanes,
    load,
    magnitude,
    same,
    store,
    total,
    with_sign,
)


class Rule(NamedTuple):
    """What divides the sums of values."""

    eps: float
    divided: bool  # by the sum of weights; else the sums of values are returned
    signed: bool  # sums of weights may be negative
    absolute: bool  # they are sums of |phi(q)| . |phi(k)|


@cpu.jit
def keys_kernel(first, last, k, v, mask, maps, rule, S, z):
    """S (B, H, segments, D, e) and z (B, H, segments, D) of each unit alone."""
    k, v, mask, maps, S, z = borrowed((k, v, mask, maps, S, z))
    D, e = S.shape[3:]
    buffers = new_block(z, D, e), new_scratch(maps)
    block, scratch = borrowed(buffers)
    for unit in range(first, last):
        b, h, g, segment, i, end = unit_of(unit, mask, len(maps[0]))
        block.R[:] = 0
        block.r[:] = 0
        start_part(scratch, maps, g)
        while i < end:
            count, i = real_rows(mask[b], i, end, block.rows)
            map_rows(block, scratch, k, b, h, count, maps, g)
            V, at, step = rows_in(v, b, h, block.rows, count, e, block.values)
            add_product(block.phi, V, at, step, block.R, count)
            add_rows(block.phi, block.ones, block.r, count, rule.absolute)
        S[b, h, segment] = block.R[:D, :e]
        z[b, h, segment] = block.r[:D]
    keep(buffers)


@cpu.jit
def queries_kernel(first, last, q, mask, maps, rule, S, z, out, c):
    """out, or N if it is not divided (B, H, n, e), and c (B, H, n); 0 at padding."""
    q, mask, maps, S, z, out, c = borrowed((q, mask, maps, S, z, out, c))
    D, e = S.shape[2:]
    buffers = new_block(z, D, e), new_scratch(maps)
    block, scratch = borrowed(buffers)
    rows, phi = block.rows, block.phi
    for unit in range(first, last):
        b, h, g, _, i, end = unit_of(unit, mask, len(maps[0]))
        clear_padding(mask, i, end, out, b, h, e)
        c[b, h, i:end] = 0
        start_part(scratch, maps, g)
        take_sums(block, S[b, h], z[b, h])
        while i < end:
            count, i = real_rows(mask[b], i, end, rows)
            map_rows(block, scratch, q, b, h, count, maps, g)
            for r in range(count):
                c[b, h, rows[r]] = dot(phi, r, block.z, 0, rule.absolute)
            if rule.divided:
                invert(c[b, h], rows, count, rule, block.scale)
                scale_rows(phi, block.scale, count)
            O, at, step = rows_out(out, b, h, rows, count, e, block.values)
            product(phi.reshape(-1), 0, phi.shape[1], block.S, O, at, step, count)
            put_rows(out, b, h, rows, count, e, block.values)
    keep(buffers)


@cpu.jit
def queries_backward_kernel(
    first, last, grad, q, mask, maps, rule, S, z, c, R, r, dq, totals, parts
):
    """dq; R, r (B, H, segments, ...) of each unit; gradients of the parameters of each part."""
    grad, q, mask, maps, S, z, c, R, r, dq, totals = borrowed(
        (grad, q, mask, maps, S, z, c, R, r, dq, totals)
    )
    B, H, segments, D, e = R.shape
    units, d = B * H * segments, inputs_of(maps)
    buffers = new_block(z, D, e), new_scratch(maps)
    block, scratch = borrowed(buffers)
    rows, phi, dphi = block.rows, block.phi, block.dphi
    for part in range(first, last):
        start_part(scratch, maps, unit_of(units * part // parts, mask, len(maps[0]))[2])
        for unit in range(units * part // parts, units * (part + 1) // parts):
            b, h, g, segment, i, end = unit_of(unit, mask, len(maps[0]))
            clear_padding(mask, i, end, dq, b, h, d)
            block.R[:] = 0
            block.r[:] = 0
            take_sums(block, S[b, h], z[b, h])
            transpose_sums(block)
            while i < end:
                count, i = real_rows(mask[b], i, end, rows)
                map_rows(block, scratch, q, b, h, count, maps, g)
                G, at, step = rows_in(grad, b, h, rows, count, e, block.values)
                product(G, at, step, block.S_T, dphi, 0, dphi.shape[1], count)
                block.weights[:] = 0
                if rule.divided:
                    invert(c[b, h], rows, count, rule, block.scale)
                    divide_backward(block, c[b, h], count, rule)
                add_rows(phi, block.weights, block.r, count, rule.absolute)
                add_weights(block, count, rule.absolute)
                map_backward(block, scratch, count, maps, g, totals, part, dq, b, h)
                if rule.divided:
                    scale_rows(phi, block.scale, count)
                add_product(phi, G, at, step, block.R, count)
            R[b, h, segment] = block.R[:D, :e]
            r[b, h, segment] = block.r[:D]
        end_part(scratch, maps, totals, part)
    keep(buffers)


@cpu.jit
def keys_backward_kernel(first, last, k, v, mask, maps, rule, R, r, dk, dv, totals, parts):
    """dk, dv, and gradients of the parameters added to those of each part."""
    k, v, mask, maps, R, r, dk, dv, totals = borrowed((k, v, mask, maps, R, r, dk, dv, totals))
    B, H, D, e = R.shape
    d, units = inputs_of(maps), B * H * segments_of_mask(mask)
    buffers = new_block(r, D, e), new_scratch(maps)
    block, scratch = borrowed(buffers)
    rows, phi, dphi = block.rows, block.phi, block.dphi
    for part in range(first, last):
        start_part(scratch, maps, unit_of(units * part // parts, mask, len(maps[0]))[2])
        for unit in range(units * part // parts, units * (part + 1) // parts):
            b, h, g, _, i, end = unit_of(unit, mask, len(maps[0]))
            clear_padding(mask, i, end, dk, b, h, d)
            clear_padding(mask, i, end, dv, b, h, e)
            take_sums(block, R[b, h], r[b, h])
            transpose_sums(block)
            while i < end:
                count, i = real_rows(mask[b], i, end, rows)
                map_rows(block, scratch, k, b, h, count, maps, g)
                V, at, step = rows_in(v, b, h, rows, count, e, block.values)
                product(V, at, step, block.S_T, dphi, 0, dphi.shape[1], count)
                V, at, step = rows_out(dv, b, h, rows, count, e, block.values)
                product(phi.reshape(-1), 0, phi.shape[1], block.S, V, at, step, count)
                put_rows(dv, b, h, rows, count, e, block.values)
                block.weights[:] = 1
                add_weights(block, count, rule.absolute)
                map_backward(block, scratch, count, maps, g, totals, part, dk, b, h)
        end_part(scratch, maps, totals, part)
    keep(buffers)


# ---------------------------------------------------------------------- steps of a pass


@cpu.jit
def take_sums(block, S, z):
    """S (D, e) and z of one head into a block; its factors at 1."""
    block.scale[:] = 1
    for p in range(S.shape[0]):
        block.z[p] = z[p]
        for j in range(S.shape[1]):
            block.S[p, j] = S[p, j]


@cpu.jit
def transpose_sums(block):
    """S of a block, which backward needs in its other order."""
    D, e = block.S.shape
    for j in range(e):
        for p in range(D):
            block.S_T[j, p] = block.S[p, j]


@cpu.jit
def add_rows(A, scale, c, rows, absolute):
    """c += sum of scale[i] A[i] of a padded block, or of |A[i]|, two sums at a time."""
    width = A.shape[1]
    for j in range(0, width, lanes(A)):
        even = same(A, A.dtype.type(0))
        odd = even
        for i in range(0, rows, 2):
            row = load(A, i * width + j)
            even = even + same(A, scale[i]) * (magnitude(row) if absolute else row)
            if i + 1 < rows:
                row = load(A, (i + 1) * width + j)
                odd = odd + same(A, scale[i + 1]) * (magnitude(row) if absolute else row)
        store(c, j, load(c, j) + (even + odd))


@cpu.jit
def dot(A, i, B, j, absolute):
    """The product of two rows of padded blocks, or of |A[i]| and B[j]."""
    width = A.shape[1]
    sums = same(A, A.dtype.type(0))
    for p in range(0, width, lanes(A)):
        row = load(A, i * width + p)
        sums = sums + (magnitude(row) if absolute else row) * load(B, j * width + p)
    return total(sums)


@cpu.jit
def scale_rows(A, scale, rows):
    width = A.shape[1]
    for i in range(rows):
        factor = same(A, scale[i])
        for p in range(0, width, lanes(A)):
            store(A, i * width + p, factor * load(A, i * width + p))


@cpu.jit
def invert(c, rows, count, rule, scale):
    """1 / den of the queries of a block: c kept away from 0; not by max(), so that NaN stays."""
    eps = rule.eps
    for r in range(count):
        at = c[rows[r]]
        if rule.signed and at < 0:
            at = -eps if at > -eps else at
        else:
            at = eps if at < eps else at
        scale[r] = 1 / at


@cpu.jit
def divide_backward(block, c, count, rule):
    """The block's `weights` become dc = -(dN . N) / den where c is not kept at eps, else 0: dN . N
    is phi . (S do) / den, the product of two rows that are there, so N is not read again."""
    for r in range(count):
        inverse = block.scale[r]
        dc = -(inverse * inverse) * dot(block.phi, r, block.dphi, r, False)
        at = c[block.rows[r]]
        size = abs(at) if rule.signed else at
        block.weights[r] = dc if size >= rule.eps else 0


@cpu.jit
def add_weights(block, count, absolute):
    """dphi = scale dphi + weights z, or, of absolute weights, + weights z sign(phi)."""
    phi, dphi, z = block.phi, block.dphi, block.z
    width = phi.shape[1]
    for i in range(count):
        scale, weight = same(phi, block.scale[i]), same(phi, block.weights[i])
        for p in range(0, width, lanes(phi)):
            of_z = weight * load(z, p)
            if absolute:
                of_z = with_sign(of_z, load(phi, i * width + p))
            store(dphi, i * width + p, scale * load(dphi, i * width + p) + of_z)
