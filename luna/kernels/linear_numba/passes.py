"""The four passes over the tokens in machine code; calls.py has their equations and calls them.

A kernel takes a range of units (units.py), or of parts, each of which is some units of one group
with gradients of the parameters of their own; and the buffers of a thread.
"""

from __future__ import annotations

from luna.kernels import cpu
from luna.kernels.linear_numba.borrowed import borrowed
from luna.kernels.linear_numba.feature_map import end_part, map_backward, map_rows, start_part
from luna.kernels.linear_numba.rows import clear_padding, put_rows, real_rows, rows_in, rows_out
from luna.kernels.linear_numba.sums import (
    add_rows,
    add_weights,
    clear_sums,
    divide_backward,
    dot,
    invert,
    put_sums,
    scale_rows,
    take_sums,
    transpose_sums,
)
from luna.kernels.linear_numba.tiles import add_product, product
from luna.kernels.linear_numba.units import unit_of, units_of


@cpu.jit
def keys_kernel(first, last, block, scratch, k, v, mask, maps, division, S, z):
    """S (B, H, segments, D, e) and z (B, H, segments, D) of each unit alone."""
    block, scratch, k, v, mask, maps, S, z = borrowed((block, scratch, k, v, mask, maps, S, z))
    for unit in range(first, last):
        b, h, g, segment, i, end = unit_of(unit, mask, len(maps[0]))
        clear_sums(block)
        start_part(scratch, maps, g)
        while i < end:
            count, i = real_rows(mask, b, i, end, block.rows)
            map_rows(block, scratch, k, b, h, count, maps, g)
            V, at, step = rows_in(v, b, h, block.rows, count, block.values)
            add_product(block.phi, V, at, step, block.R, count)
            add_rows(block.phi, block.ones, block.r, count, division.absolute)
        put_sums(block, S[b, h, segment], z[b, h, segment])


@cpu.jit
def queries_kernel(first, last, block, scratch, q, mask, maps, division, S, z, out, c):
    """out, or N if it is not divided (B, H, n, e), and c (B, H, n); 0 at padding."""
    block, scratch, q, mask, maps, S, z, out, c = borrowed(
        (block, scratch, q, mask, maps, S, z, out, c)
    )
    rows, phi = block.rows, block.phi
    for unit in range(first, last):
        b, h, g, _, i, end = unit_of(unit, mask, len(maps[0]))
        clear_padding(mask, i, end, out, b, h)
        for j in range(i, end):
            c[b, h, j] = 0
        start_part(scratch, maps, g)
        take_sums(block, S[b, h], z[b, h])
        while i < end:
            count, i = real_rows(mask, b, i, end, rows)
            map_rows(block, scratch, q, b, h, count, maps, g)
            for r in range(count):
                c[b, h, rows[r]] = dot(phi, r, block.z, 0, division.absolute)
            if division.divided:
                invert(c[b, h], rows, count, division, block.scale)
                scale_rows(phi, block.scale, count)
            O, at, step = rows_out(out, b, h, rows, count, block.values)
            product(phi.reshape(-1), 0, phi.shape[1], block.S, O, at, step, count)
            put_rows(out, b, h, rows, count, block.values)


@cpu.jit
def queries_backward_kernel(
    first, last, block, scratch, grad, q, mask, maps, division, S, z, c, R, r, dq, totals, parts
):
    """dq; R, r (B, H, segments, ...) of each unit; gradients of the parameters of each part."""
    block, scratch, grad, q, mask, maps, S, z, c, R, r, dq, totals = borrowed(
        (block, scratch, grad, q, mask, maps, S, z, c, R, r, dq, totals)
    )
    rows, phi, dphi = block.rows, block.phi, block.dphi
    for part in range(first, last):
        unit, stop, g = units_of(part, parts, mask, S.shape[1], len(maps[0]))
        start_part(scratch, maps, g)
        while unit < stop:
            b, h, _, segment, i, end = unit_of(unit, mask, len(maps[0]))
            unit += 1
            clear_padding(mask, i, end, dq, b, h)
            clear_sums(block)
            take_sums(block, S[b, h], z[b, h])
            transpose_sums(block)
            while i < end:
                count, i = real_rows(mask, b, i, end, rows)
                map_rows(block, scratch, q, b, h, count, maps, g)
                G, at, step = rows_in(grad, b, h, rows, count, block.values)
                product(G, at, step, block.S_T, dphi, 0, dphi.shape[1], count)
                if division.divided:
                    invert(c[b, h], rows, count, division, block.scale)
                divide_backward(block, c[b, h], count, division)
                add_rows(phi, block.weights, block.r, count, division.absolute)
                add_weights(block, count, division.absolute)
                map_backward(block, scratch, count, maps, g, totals, part, dq, b, h)
                if division.divided:
                    scale_rows(phi, block.scale, count)
                add_product(phi, G, at, step, block.R, count)
            put_sums(block, R[b, h, segment], r[b, h, segment])
        end_part(scratch, maps, totals, part)


@cpu.jit
def keys_backward_kernel(
    first, last, block, scratch, k, v, mask, maps, division, R, r, dk, dv, totals, parts
):
    """dk, dv, and gradients of the parameters added to those of each part."""
    block, scratch, k, v, mask, maps, R, r, dk, dv, totals = borrowed(
        (block, scratch, k, v, mask, maps, R, r, dk, dv, totals)
    )
    rows, phi, dphi = block.rows, block.phi, block.dphi
    for part in range(first, last):
        unit, stop, g = units_of(part, parts, mask, R.shape[1], len(maps[0]))
        start_part(scratch, maps, g)
        while unit < stop:
            b, h, _, _, i, end = unit_of(unit, mask, len(maps[0]))
            unit += 1
            clear_padding(mask, i, end, dk, b, h)
            clear_padding(mask, i, end, dv, b, h)
            take_sums(block, R[b, h], r[b, h])
            transpose_sums(block)
            while i < end:
                count, i = real_rows(mask, b, i, end, rows)
                map_rows(block, scratch, k, b, h, count, maps, g)
                V, at, step = rows_in(v, b, h, rows, count, block.values)
                product(V, at, step, block.S_T, dphi, 0, dphi.shape[1], count)
                V, at, step = rows_out(dv, b, h, rows, count, block.values)
                product(phi.reshape(-1), 0, phi.shape[1], block.S, V, at, step, count)
                put_rows(dv, b, h, rows, count, block.values)
                add_weights(block, count, division.absolute)
                map_backward(block, scratch, count, maps, g, totals, part, dk, b, h)
        end_part(scratch, maps, totals, part)
