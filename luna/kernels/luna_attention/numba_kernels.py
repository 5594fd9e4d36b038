"""The four passes over the tokens in machine code; by_numba.py has their equations and calls them.

A unit of work is a segment of one sequence and head. A kernel takes a range of units, or of parts,
each of which is some units with parameter gradients of their own.
"""

from __future__ import annotations

import numpy as np

from luna.kernels import cpu
from luna.kernels.luna_attention.numba_blocks import (
    BLOCK,
    map_backward,
    map_block,
    new_block,
)
from luna.kernels.luna_attention.numba_outputs import SIGNED
from luna.kernels.luna_attention.numba_products import (
    add_absolute_rows,
    add_product,
    add_rows,
    product,
)
from luna.kernels.rows import clear_padding, gather, real_rows, row_of, scatter
from luna.kernels.units import SEGMENT, unit_of


@cpu.jit
def denominator_of(c, eps, signed):
    if signed and c < 0:
        return -eps if c > -eps else c
    return eps if c < eps else c  # and not max(): NaN stays


@cpu.jit
def keys_kernel(first, last, k, v, mask, maps, output, absolute, S, z):
    """S (units, D, e) and z (units, D) of each unit alone."""
    e = S.shape[2]
    d = maps.W.shape[2]
    block = new_block(maps, e)
    for unit in range(first, last):
        b, h, g, _, i, end = unit_of(unit, mask, len(maps.W))
        S[unit] = 0
        z[unit] = 0
        while i < end:
            count, i = real_rows(mask[b], i, end, block.rows)
            gather(k, b, h, block.rows, count, d, block.x)
            gather(v, b, h, block.rows, count, e, block.values)
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
    d = maps.W.shape[2]
    block = new_block(maps, e)
    rows = block.rows
    phi = block.phi
    N = block.values
    signed = output == SIGNED and not absolute
    for unit in range(first, last):
        b, h, g, _, i, end = unit_of(unit, mask, len(maps.W))
        clear_padding(mask, i, end, out, b, h, e)
        c[b, h, i:end] = 0
        while i < end:
            count, i = real_rows(mask[b], i, end, rows)
            gather(q, b, h, rows, count, d, block.x)
            map_block(block, count, maps, g, output)
            product(phi, S[b, h], N, count)
            for r in range(count):
                total = maps.W.dtype.type(0)
                for p in range(phi.shape[1]):
                    size = abs(phi[r, p]) if absolute else phi[r, p]
                    total += size * z[b, h, p]
                c[b, h, rows[r]] = total
                if divided:
                    inverse = 1 / denominator_of(total, eps, signed)
                    for j in range(e):
                        N[r, j] *= inverse
            scatter(N, rows, count, e, out, b, h)


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
    e = dS.shape[2]
    block = new_block(maps, e)
    dN = block.values
    dc = np.empty(BLOCK, maps.W.dtype)
    signed = output == SIGNED and not absolute
    options = output, absolute
    for part in range(first, last):
        totals = dW[part], dbias[part], dtable[part]
        for unit in range(units * part // parts, units * (part + 1) // parts):
            b, h, g, _, i, end = unit_of(unit, mask, len(maps.W))
            dS[unit] = 0
            dz[unit] = 0
            clear_padding(mask, i, end, dq, b, h, d)
            while i < end:
                count, i = real_rows(mask[b], i, end, block.rows)
                gather(q, b, h, block.rows, count, d, block.x)
                map_block(block, count, maps, g, output)
                if divided:
                    divide_backward(grad, out, c, b, h, block.rows, count, eps, signed, dN, dc)
                else:
                    gather(grad, b, h, block.rows, count, e, dN)
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
        for j in range(np.uint64(dN.shape[1])):
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
            b, h, g, _, i, end = unit_of(unit, mask, len(maps.W))
            clear_padding(mask, i, end, dk, b, h, d)
            clear_padding(mask, i, end, dv, b, h, e)
            while i < end:
                count, i = real_rows(mask[b], i, end, block.rows)
                gather(k, b, h, block.rows, count, d, block.x)
                gather(v, b, h, block.rows, count, e, block.values)
                map_block(block, count, maps, g, output)
                product(block.phi, dS[b, h], dvalues, count)
                scatter(dvalues, block.rows, count, e, dv, b, h)
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
