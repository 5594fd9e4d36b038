"""The four passes over the tokens in machine code; by_numba.py has their equations and calls them.

A unit of work is a segment of one sequence and head. A kernel takes a range of units, or of parts,
each of which is some units with parameter gradients of their own.
"""

from __future__ import annotations

import numpy as np

from luna.kernels import cpu
from luna.kernels.luna_attention.numba_blocks import (
    BLOCK,
    clear_padding,
    gather,
    map_backward,
    map_block,
    new_block,
    real_rows,
    scatter,
)
from luna.kernels.luna_attention.numba_outputs import SIGNED
from luna.kernels.luna_attention.numba_products import (
    add_absolute_rows,
    add_product,
    add_rows,
    product,
)
from luna.kernels.rows import row_of

SEGMENT = 1024  # tokens of a unit


@cpu.jit
def unit_of(unit, mask, groups):
    """Sequence, head, group, and the tokens of a unit; heads outermost, so that those which share
    parameters are neighbours."""
    B, n = mask.shape
    segments = (n + SEGMENT - 1) // SEGMENT
    h = unit // (B * segments)
    rest = unit % (B * segments)
    b = rest // segments
    g = h if groups > 1 else 0
    first = rest % segments * SEGMENT
    return b, h, g, first, min(n, first + SEGMENT)


@cpu.jit
def denominator_of(c, eps, signed):
    if signed and c < 0:
        return -eps if c > -eps else c
    return eps if c < eps else c  # and not max(): NaN stays


@cpu.jit
def keys_kernel(first, last, k, v, mask, maps, output, absolute, S, z):
    """S (units, D, e) and z (units, D) of each unit alone."""
    block = new_block(maps, S.shape[2])
    for unit in range(first, last):
        b, h, g, i, end = unit_of(unit, mask, len(maps.W))
        S[unit] = 0
        z[unit] = 0
        while i < end:
            count, i = real_rows(mask[b], i, end, block.rows)
            gather(k, b, h, block.rows, count, block.x)
            gather(v, b, h, block.rows, count, block.values)
            map_block(block, count, maps, g, output)
            add_product(block.phi, block.values, S[unit], count)
            if absolute:
                add_absolute_rows(block.phi, block.ones, z[unit], count)
            else:
                add_rows(block.phi, block.ones, z[unit], count)


@cpu.jit
def queries_kernel(first, last, q, mask, maps, output, S, z, eps, divided, absolute, out, c):
    """out, or N if it is not divided (B, H, n, e), and c (B, H, n); 0 at padding."""
    e = S.shape[3]
    block = new_block(maps, e)
    rows = block.rows
    phi = block.phi
    N = block.values
    signed = output == SIGNED and not absolute
    for unit in range(first, last):
        b, h, g, i, end = unit_of(unit, mask, len(maps.W))
        clear_padding(mask, i, end, out, b, h, e)
        c[b, h, i:end] = 0
        while i < end:
            count, i = real_rows(mask[b], i, end, rows)
            gather(q, b, h, rows, count, block.x)
            map_block(block, count, maps, g, output)
            product(phi, S[b, h], N, count)
            for r in range(count):
                total = maps.W.dtype.type(0)
                for d in range(phi.shape[1]):
                    size = abs(phi[r, d]) if absolute else phi[r, d]
                    total += size * z[b, h, d]
                c[b, h, rows[r]] = total
                if divided:
                    inverse = 1 / denominator_of(total, eps, signed)
                    for j in range(e):
                        N[r, j] *= inverse
            scatter(N, rows, count, out, b, h)


@cpu.jit
def queries_backward_kernel(
    first,
    last,
    grad,
    q,
    mask,
    maps,
    output,
    S_T,
    z,
    eps,
    divided,
    absolute,
    out,
    c,
    dS,
    dz,
    dq,
    dW,
    dbias,
    dtable,
):
    """dq; dS, dz of each unit; gradients of the parameters added to those of the part."""
    units = len(dS)
    parts = len(dW)
    d = maps.W.shape[2]
    block = new_block(maps, dS.shape[2])
    dN = block.values
    dc = np.empty(BLOCK, maps.W.dtype)
    signed = output == SIGNED and not absolute
    options = output, absolute
    for part in range(first, last):
        totals = dW[part], dbias[part], dtable[part]
        for unit in range(units * part // parts, units * (part + 1) // parts):
            b, h, g, i, end = unit_of(unit, mask, len(maps.W))
            dS[unit] = 0
            dz[unit] = 0
            clear_padding(mask, i, end, dq, b, h, d)
            while i < end:
                count, i = real_rows(mask[b], i, end, block.rows)
                gather(q, b, h, block.rows, count, block.x)
                map_block(block, count, maps, g, output)
                if divided:
                    divide_backward(grad, out, c, b, h, block.rows, count, eps, signed, dN, dc)
                else:
                    gather(grad, b, h, block.rows, count, dN)
                    dc[:count] = 0
                add_product(block.phi, dN, dS[unit], count)
                if absolute:
                    add_absolute_rows(block.phi, dc, dz[unit], count)
                else:
                    add_rows(block.phi, dc, dz[unit], count)
                map_backward(
                    block, count, dN, dc, S_T[b, h], z[b, h], maps, g, options, totals, dq, b, h
                )


@cpu.jit
def divide_backward(grad, out, c, b, h, rows, count, eps, signed, dN, dc):
    """dN (block, e) and dc (block) of the numerators and denominators of a block's queries."""
    for r in range(count):
        at = c[b, h, rows[r]]
        inverse = 1 / denominator_of(at, eps, signed)
        total = dN.dtype.type(0)
        of_grad = row_of(grad, b, h, rows[r])
        of_out = row_of(out, b, h, rows[r])
        for j in range(dN.shape[1]):
            d = grad.memory[of_grad + j] * inverse
            total += d * out.memory[of_out + j]
            dN[r, j] = d
        dc[r] = -total if abs(at) > eps else 0


@cpu.jit
def keys_backward_kernel(
    first, last, k, v, mask, maps, output, absolute, dS, dS_T, dz, dk, dv, dW, dbias, dtable
):
    """dk, dv; gradients of the parameters added to those of the part."""
    B, H, _, e = dS.shape
    units = B * H * ((mask.shape[1] + SEGMENT - 1) // SEGMENT)
    parts = len(dW)
    d = maps.W.shape[2]
    block = new_block(maps, e)
    dvalues = np.empty_like(block.values)
    options = output, absolute
    for part in range(first, last):
        totals = dW[part], dbias[part], dtable[part]
        for unit in range(units * part // parts, units * (part + 1) // parts):
            b, h, g, i, end = unit_of(unit, mask, len(maps.W))
            clear_padding(mask, i, end, dk, b, h, d)
            clear_padding(mask, i, end, dv, b, h, e)
            while i < end:
                count, i = real_rows(mask[b], i, end, block.rows)
                gather(k, b, h, block.rows, count, block.x)
                gather(v, b, h, block.rows, count, block.values)
                map_block(block, count, maps, g, output)
                product(block.phi, dS[b, h], dvalues, count)
                scatter(dvalues, block.rows, count, dv, b, h)
                map_backward(
                    block,
                    count,
                    block.values,
                    block.ones,
                    dS_T[b, h],
                    dz[b, h],
                    maps,
                    g,
                    options,
                    totals,
                    dk,
                    b,
                    h,
                )
