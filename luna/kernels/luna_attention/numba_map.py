"""LUNA's feature map in machine code, for the passes of `linear_numba`: projections, the line of
each scalar, what its output goes through, and their gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from luna.kernels import cpu
from luna.kernels.linear_numba.affine import (
    end_affine,
    new_buffers,
    project,
    project_backward,
    start_affine,
)
from luna.kernels.linear_numba.buffers import padded, zeros
from luna.kernels.linear_numba.feature_map import BLOCK, clear_columns, provide
from luna.kernels.linear_numba.vectors import (
    load_eight,
    same_eight,
    store,
    total,
    where_positive,
)
from luna.kernels.luna_attention.numba_outputs import RELU, put_outputs
from luna.kernels.scalar_mlp.by_numba import find_intervals


class Scratch(NamedTuple):
    """Buffers of a thread; M, d and D = M L are filled up except in u and interval."""

    x: np.ndarray  # (BLOCK, d) queries or keys
    W: np.ndarray  # (M, d)
    W_T: np.ndarray  # (d, M)
    dW: np.ndarray  # (M, d)
    dbias: np.ndarray  # (M)
    projected: np.ndarray  # (BLOCK, M), and their gradient
    slope: np.ndarray  # (BLOCK, D) of the outputs softplus and exp
    u: np.ndarray  # (BLOCK M)
    interval: np.ndarray  # (BLOCK M) the line of each


class Lines(NamedTuple):
    """Projections, and the scalar MLPs as lines and a grid to find them."""

    W: np.ndarray  # (G, M, d)
    bias: np.ndarray  # (G, M)
    table: np.ndarray  # (G, K, 2 L): slopes and intercepts of K lines
    keys: np.ndarray  # these and the next two: scalar_mlp/by_numba.grid
    span: np.ndarray
    start: np.ndarray
    output: int  # SIGNED, RELU, SOFTPLUS or EXP

    def new_scratch(self) -> Scratch:
        M, L = self.W.shape[1], self.table.shape[2] // 2
        kind = self.W.dtype
        shapes = (BLOCK, padded(kind, M)), (BLOCK, padded(kind, M * L)), (BLOCK * M,)
        interval = np.empty(BLOCK * M, np.int32)
        return Scratch(*(*new_buffers(self.W), *zeros(kind, *shapes), interval))


def start_part(scratch, maps, g):
    start_affine(scratch, maps, g)


def map_rows(block, scratch, x, b, h, count, maps, g):
    projected, u, interval = scratch.projected, scratch.u, scratch.interval
    M, L = maps.W.shape[1], maps.table.shape[2] // 2
    project(block, scratch, x, b, h, count, projected)
    for i in range(count):
        for m in range(M):
            u[i * M + m] = projected[i, m] + maps.bias[g, m]
    low, per_unit = maps.span[g, 0], maps.span[g, 1]
    find_intervals(u, maps.keys[g], low, per_unit, maps.start[g], interval, count * M)
    relu = maps.output == RELU
    if L == 8:
        eight_lines(u, interval, maps.table[g], relu, block.phi, count, M)
    else:
        lines(u, interval, maps.table[g], relu, block.phi, count, M, L)
    if maps.output > RELU:
        flat = count * block.phi.shape[1]
        phi, slope = block.phi.reshape(-1), scratch.slope.reshape(-1)
        put_outputs(phi[:flat], slope[:flat], maps.output)
    clear_columns(block.phi, M * L, count)


@cpu.inner
def lines(u, interval, table, relu, phi, count, M, L):
    """phi of a block's scalars, by their lines."""
    zero = phi.dtype.type(0)
    for i in range(count):
        for m in range(M):
            x = u[i * M + m]
            row = table[np.uint32(interval[i * M + m])]
            out = phi[i, m * L :]
            for l in range(L):
                value = row[l] * x + row[L + l]
                out[l] = zero if relu and value < 0 else value  # and not max(): NaN stays


@cpu.inner
def eight_lines(u, interval, table, relu, phi, count, M):
    """The same for eight channels, the usual number, which are a vector."""
    width = phi.shape[1]
    for i in range(count):
        for m in range(M):
            at = 16 * np.int64(interval[i * M + m])
            slopes, intercepts = load_eight(table, at), load_eight(table, at + 8)
            y = same_eight(phi, u[i * M + m]) * slopes + intercepts
            store(phi, i * width + 8 * m, where_positive(y, y) if relu else y)


def map_backward(block, scratch, count, maps, g, totals, part, dx, b, h):
    M, L = maps.W.shape[1], maps.table.shape[2] // 2
    if maps.output > RELU:
        for i in range(count):
            for p in range(M * L):
                block.dphi[i, p] *= scratch.slope[i, p]
    tables = maps.table[g], totals[2][part]
    if L == 8:
        eight_lines_backward(block, scratch, tables, maps.output == RELU, count, M)
    else:
        lines_backward(block, scratch, tables, maps.output == RELU, count, M, L)
    project_backward(block, scratch, scratch.projected, count, dx, b, h)


@cpu.inner
def lines_backward(block, scratch, tables, relu, count, M, L):
    """The gradient of a block's scalars takes the place of the projections; that of the lines is
    added to a table."""
    table, dtable = tables
    zero = block.phi.dtype.type(0)
    for i in range(count):
        for m in range(M):
            x = scratch.u[i * M + m]
            j = np.uint32(scratch.interval[i * M + m])
            row, into = table[j], dtable[j]
            y, dy = block.phi[i, m * L :], block.dphi[i, m * L :]
            du = zero
            for l in range(L):
                d = zero if relu and y[l] <= 0 else dy[l]  # and not y > 0: NaN stays
                du += row[l] * d
                into[l] += x * d
                into[L + l] += d
            scratch.projected[i, m] = du


@cpu.inner
def eight_lines_backward(block, scratch, tables, relu, count, M):
    """The same for eight channels."""
    table, dtable = tables
    phi, dphi = block.phi, block.dphi
    width = phi.shape[1]
    for i in range(count):
        for m in range(M):
            at = 16 * np.int64(scratch.interval[i * M + m])
            d = load_eight(dphi, i * width + 8 * m)
            if relu:
                d = where_positive(load_eight(phi, i * width + 8 * m), d)
            x = same_eight(phi, scratch.u[i * M + m])
            store(dtable, at, load_eight(dtable, at) + x * d)
            store(dtable, at + 8, load_eight(dtable, at + 8) + d)
            scratch.projected[i, m] = total(load_eight(table, at) * d)


def end_part(scratch, maps, totals, part):
    dW, dbias, _ = totals
    end_affine(scratch, dW, dbias, part)


provide(Lines, start=start_part, rows=map_rows, backward=map_backward, end=end_part)
