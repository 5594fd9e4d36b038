"""The four passes over the tokens in machine code; by_numba.py has their equations and calls them.

A kernel takes a range of units (luna/kernels/units.py).
"""

from __future__ import annotations

from luna.kernels import cpu
from luna.kernels.mapped.numba_maps import (
    RELU,
    map_backward,
    map_rows,
    new_block,
    take_group,
    take_sums,
    width_of,
)
from luna.kernels.rows import clear_padding, put_rows, real_rows, rows_in, rows_out
from luna.kernels.tiles import add_product, add_rows, product
from luna.kernels.units import unit_of
from luna.kernels.vectors import lanes, load, same, store, total


@cpu.jit
def keys_kernel(first, last, k, v, mask, maps, S, z):
    """S (B, H, segments, D, e) and z (B, H, segments, D) of each unit alone."""
    D, e = S.shape[3:]
    block = new_block(maps, e)
    for unit in range(first, last):
        b, h, g, segment, i, end = unit_of(unit, mask, len(maps.W))
        block.S[:] = 0
        block.z[:] = 0
        take_group(block, maps, g)
        while i < end:
            count, i = real_rows(mask[b], i, end, block.rows)
            map_rows(block, k, b, h, count, maps, g)
            V, at, step = rows_in(v, b, h, block.rows, count, e, block.values)
            add_product(block.phi, V, at, step, block.S, count)
            add_rows(block.phi, block.ones, block.z, count)
        S[b, h, segment] = block.S[:D, :e]
        z[b, h, segment] = block.z[:D]


@cpu.jit
def queries_kernel(first, last, q, mask, maps, S, z, eps, divided, out, c):
    """out, or N if it is not divided (B, H, n, e), and c (B, H, n); 0 at padding."""
    e = S.shape[3]
    block = new_block(maps, e)
    rows, phi = block.rows, block.phi
    for unit in range(first, last):
        b, h, g, _, i, end = unit_of(unit, mask, len(maps.W))
        clear_padding(mask, i, end, out, b, h, e)
        c[b, h, i:end] = 0
        take_group(block, maps, g)
        take_sums(block, S[b, h], z[b, h])
        while i < end:
            count, i = real_rows(mask[b], i, end, rows)
            map_rows(block, q, b, h, count, maps, g)
            for r in range(count):
                c[b, h, rows[r]] = dot(phi, r, block.z, 0)
            if divided:
                invert(c[b, h], rows, count, eps, block.scale)
                scale_rows(phi, block.scale, count)
            O, at, step = rows_out(out, b, h, rows, count, e, block.values)
            product(phi.reshape(-1), 0, phi.shape[1], block.S, O, at, step, count)
            put_rows(out, b, h, rows, count, e, block.values)


@cpu.jit
def queries_backward_kernel(
    first, last, grad, q, mask, maps, S, z, c, eps, divided, R, r, dq, dW, dbias
):
    """dq; R, r and the parameters' gradients (B, H, segments, ...) of each unit."""
    D, e = R.shape[3:]
    d = width_of(maps)
    block = new_block(maps, e)
    sums = new_block(maps, e)  # whose S and z grow
    rows, phi, dphi = block.rows, block.phi, block.dphi
    for unit in range(first, last):
        b, h, g, segment, i, end = unit_of(unit, mask, len(maps.W))
        clear_padding(mask, i, end, dq, b, h, d)
        sums.S[:] = 0
        sums.z[:] = 0
        take_group(block, maps, g)
        take_sums(block, S[b, h], z[b, h])
        while i < end:
            count, i = real_rows(mask[b], i, end, rows)
            map_rows(block, q, b, h, count, maps, g)
            G, at, step = rows_in(grad, b, h, rows, count, e, block.values)
            product(G, at, step, block.S_T, dphi, 0, dphi.shape[1], count)
            block.weights[:] = 0
            if divided:
                invert(c[b, h], rows, count, eps, block.scale)
                divide_backward(block, c[b, h], count, eps)
            add_rows(phi, block.weights, sums.z, count)
            map_backward(block, count, maps, dq, b, h)
            if divided:
                scale_rows(phi, block.scale, count)
            add_product(phi, G, at, step, sums.S, count)
        R[b, h, segment] = sums.S[:D, :e]
        r[b, h, segment] = sums.z[:D]
        if maps.kind == RELU:
            dW[b, h, segment] = block.dW[:D, :d]
            dbias[b, h, segment] = block.dbias[:D]


@cpu.jit
def keys_backward_kernel(first, last, k, v, mask, maps, R, r, dk, dv, dW, dbias):
    """dk, dv, and the parameters' gradients (B, H, segments, ...) of each unit."""
    D, e = R.shape[2:]
    d = width_of(maps)
    block = new_block(maps, e)
    rows, phi, dphi = block.rows, block.phi, block.dphi
    for unit in range(first, last):
        b, h, g, segment, i, end = unit_of(unit, mask, len(maps.W))
        clear_padding(mask, i, end, dk, b, h, d)
        clear_padding(mask, i, end, dv, b, h, e)
        take_group(block, maps, g)
        take_sums(block, R[b, h], r[b, h])
        while i < end:
            count, i = real_rows(mask[b], i, end, rows)
            map_rows(block, k, b, h, count, maps, g)
            V, at, step = rows_in(v, b, h, rows, count, e, block.values)
            product(V, at, step, block.S_T, dphi, 0, dphi.shape[1], count)
            V, at, step = rows_out(dv, b, h, rows, count, e, block.values)
            product(phi.reshape(-1), 0, phi.shape[1], block.S, V, at, step, count)
            put_rows(dv, b, h, rows, count, e, block.values)
            map_backward(block, count, maps, dk, b, h)
        if maps.kind == RELU:
            dW[b, h, segment] = block.dW[:D, :d]
            dbias[b, h, segment] = block.dbias[:D]


@cpu.jit
def dot(A, i, B, j):
    """The product of two rows of padded blocks."""
    width = A.shape[1]
    sums = same(A, A.dtype.type(0))
    for p in range(0, width, lanes(A)):
        sums = sums + load(A, i * width + p) * load(B, j * width + p)
    return total(sums)


@cpu.jit
def scale_rows(A, scale, rows):
    width = A.shape[1]
    for i in range(rows):
        factor = same(A, scale[i])
        for p in range(0, width, lanes(A)):
            store(A, i * width + p, factor * load(A, i * width + p))


@cpu.jit
def invert(c, rows, count, eps, scale):
    """1 / max(c, eps) of the queries of a block."""
    for r in range(count):
        at = c[rows[r]]
        scale[r] = 1 / (eps if at < eps else at)  # and not max(): NaN stays


@cpu.jit
def divide_backward(block, c, count, eps):
    """The block's `weights` become dc = -(dN . N) / den where c is not kept at eps, else 0: dN . N
    is phi . (S do) / den, the product of two rows that are there, so N is not read again."""
    for r in range(count):
        inverse = block.scale[r]
        dc = -(inverse * inverse) * dot(block.phi, r, block.dphi, r)
        block.weights[r] = dc if c[block.rows[r]] >= eps else 0
