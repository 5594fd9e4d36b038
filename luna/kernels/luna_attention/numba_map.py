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


class SmoothLines(Lines):
    """Their outputs go through softplus or exp."""


class EightLines(Lines):
    """Eight channels, the usual number, which are a vector."""


class SmoothEightLines(Lines):
    """Both."""


# By type, so that what a call does not need is not compiled for it.
KINDS = {
    (False, False): Lines,
    (False, True): SmoothLines,
    (True, False): EightLines,
    (True, True): SmoothEightLines,
}


def lines_of(W, bias, table, keys, span, start, output: int) -> Lines:
    kind = KINDS[table.shape[2] == 16, output > RELU]
    return kind(W, bias, table, keys, span, start, output)


# ---------------------------------------------------------------------- the map


def start_part(scratch, maps, g):
    start_affine(scratch, maps, g)


def end_part(scratch, maps, totals, part):
    dW, dbias, _ = totals
    end_affine(scratch, dW, dbias, part)


def map_by(put_lines, smooth):
    """map_rows of a kind."""

    def map_rows(block, scratch, x, b, h, count, maps, g):
        M, L = maps.W.shape[1], maps.table.shape[2] // 2
        find_lines(block, scratch, x, b, h, count, maps, g)
        relu = maps.output == RELU
        put_lines(scratch.u, scratch.interval, maps.table[g], relu, block.phi, count, M, L)
        if smooth:
            flat = count * block.phi.shape[1]
            phi, slope = block.phi.reshape(-1), scratch.slope.reshape(-1)
            put_outputs(phi[:flat], slope[:flat], maps.output)
        clear_columns(block.phi, M * L, count)

    return map_rows


@cpu.inner
def find_lines(block, scratch, x, b, h, count, maps, g):
    """The projections of a block in `u`, and the line of each in `interval`."""
    M, u = maps.W.shape[1], scratch.u
    project(block, scratch, x, b, h, count, scratch.projected)
    for i in range(count):
        for m in range(M):
            u[i * M + m] = scratch.projected[i, m] + maps.bias[g, m]
    low, per_unit = maps.span[g, 0], maps.span[g, 1]
    interval = scratch.interval
    find_intervals(u, maps.keys[g], low, per_unit, maps.start[g], interval, count * M)


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
def eight_lines(u, interval, table, relu, phi, count, M, _):
    """The same for eight channels, the usual number, which are a vector."""
    width = phi.shape[1]
    for i in range(count):
        for m in range(M):
            at = 16 * np.int64(interval[i * M + m])
            slopes, intercepts = load_eight(table, at), load_eight(table, at + 8)
            y = same_eight(phi, u[i * M + m]) * slopes + intercepts
            store(phi, i * width + 8 * m, where_positive(y, y) if relu else y)


def backward_by(put_lines_backward, smooth):
    """map_backward of a kind."""

    def map_backward(block, scratch, count, maps, g, totals, part, dx, b, h):
        M, L = maps.W.shape[1], maps.table.shape[2] // 2
        if smooth:
            for i in range(count):
                for p in range(M * L):
                    block.dphi[i, p] *= scratch.slope[i, p]
        tables = maps.table[g], totals[2][part]
        put_lines_backward(block, scratch, tables, maps.output == RELU, count, M, L)
        project_backward(block, scratch, scratch.projected, count, dx, b, h)

    return map_backward


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
def eight_lines_backward(block, scratch, tables, relu, count, M, _):
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


for (eight, smooth), kind in KINDS.items():
    provide(
        kind,
        start=start_part,
        rows=map_by(eight_lines if eight else lines, smooth),
        backward=backward_by(eight_lines_backward if eight else lines_backward, smooth),
        end=end_part,
    )
