"""A block of tokens in machine code: its features and their gradients.

Maps    the parameters of phi, of all groups
Block   buffers that a thread fills anew with every block
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from luna.kernels import cpu
from luna.kernels.luna_attention.numba_outputs import RELU, put_outputs
from luna.kernels.luna_attention.numba_products import add_product, add_rows, product
from luna.kernels.rows import scatter
from luna.kernels.scalar_mlp.by_numba import find_intervals

BLOCK = 128  # tokens at a time: 32 KB of features at D = 64


class Maps(NamedTuple):
    """The parameters of phi: projections, and the scalar MLPs as lines and a grid to find them."""

    W: np.ndarray  # (G, M, d)
    bias: np.ndarray  # (G, M)
    table: np.ndarray  # (G, K, 2 L): slopes and intercepts of K lines
    keys: np.ndarray  # these and the next two: scalar_mlp/by_numba.grid
    span: np.ndarray
    start: np.ndarray


class Block(NamedTuple):
    """The buffers of a block, D = M L."""

    rows: np.ndarray  # (BLOCK) where its tokens stand in the sequence
    ones: np.ndarray  # (BLOCK)
    x: np.ndarray  # (BLOCK, d) queries or keys
    columns: np.ndarray  # (d, BLOCK) x^T
    values: np.ndarray  # (BLOCK, e) values, or what has their shape
    u: np.ndarray  # (M, BLOCK) projections
    interval: np.ndarray  # (M, BLOCK) the line of each
    phi: np.ndarray  # (BLOCK, D) features
    slope: np.ndarray  # (BLOCK, D) of the outputs softplus and exp
    dphi: np.ndarray  # (BLOCK, D)
    du: np.ndarray  # (BLOCK, M)
    dx: np.ndarray  # (BLOCK, d)


@cpu.jit
def new_block(maps, e):
    _, M, d = maps.W.shape
    D = M * (maps.table.shape[2] // 2)
    dtype = maps.W.dtype
    return Block(
        np.empty(BLOCK, np.int64),
        np.ones(BLOCK, dtype),
        np.empty((BLOCK, d), dtype),
        np.zeros((d, BLOCK), dtype),
        np.empty((BLOCK, e), dtype),
        np.empty((M, BLOCK), dtype),
        np.empty((M, BLOCK), np.int32),
        np.empty((BLOCK, D), dtype),
        np.empty((BLOCK, D), dtype),
        np.empty((BLOCK, D), dtype),
        np.empty((BLOCK, M), dtype),
        np.empty((BLOCK, d), dtype),
    )


@cpu.jit
def map_block(block, count, maps, g, output):
    """Fill the projections and the features of a block's x by the maps of group g; softplus and exp
    have a `slope` each. x^T is copied, so that inner loops are long."""
    u = block.u
    phi = block.phi
    interval = block.interval
    M = len(u)
    L = maps.table.shape[2] // 2
    table = maps.table
    zero = phi.dtype.type(0)
    relu = output == RELU

    # The projections, and the line of each.
    block.columns[:, :count] = block.x[:count].T
    product(maps.W[g], block.columns, u, M)
    for m in range(M):
        for i in range(count):
            u[m, i] += maps.bias[g, m]
        low, per_unit = maps.span[g, 0], maps.span[g, 1]
        find_intervals(u[m], maps.keys[g], low, per_unit, maps.start[g], interval[m], count)

    # The features.
    for i in range(count):
        for m in range(M):
            v = u[m, i]
            row = table[g, interval[m, i]]
            out = phi[i, m * L : (m + 1) * L]
            for l in range(L):
                value = row[l] * v + row[L + l]
                out[l] = zero if relu and value < 0 else value
    if output > RELU:
        put_outputs(phi[:count].reshape(-1), block.slope[:count].reshape(-1), output)


@cpu.jit
def map_backward(block, count, A, weights, B, z, maps, g, options, totals, dx, b, h):
    """Through a block's map, whose features have the gradient A B + weights z, or, absolute, A B +
    sign(phi) weights z: dx scattered to its rows, the gradients of W, bias and table added to the
    totals."""
    output, absolute = options
    phi = block.phi
    slope = block.slope
    u = block.u
    interval = block.interval
    dphi = block.dphi
    du = block.du
    dW, dbias, dtable = totals
    table = maps.table[g]
    M = len(u)
    L = maps.table.shape[2] // 2
    zero = phi.dtype.type(0)
    relu = output == RELU

    # Through the outputs.
    product(A, B, dphi, count)
    for i in range(count):
        for j in range(M * L):
            d = weights[i] * z[j]
            if absolute and phi[i, j] <= 0:  # and not phi > 0: NaN stays
                d = -d if phi[i, j] < 0 else zero
            d += dphi[i, j]
            dphi[i, j] = d * slope[i, j] if output > RELU else d

    # Through the lines.
    for i in range(count):
        for m in range(M):
            j = interval[m, i]
            at = slice(m * L, (m + 1) * L)
            v = u[m, i]
            row = table[j]
            into = dtable[j]
            y = phi[i, at]
            dy = dphi[i, at]
            total = zero
            for l in range(L):
                d = zero if relu and y[l] <= 0 else dy[l]  # and not y > 0: NaN stays
                total += row[l] * d
                into[l] += v * d
                into[L + l] += d
            du[i, m] = total

    # Through the projections.
    product(du, maps.W[g], block.dx, count)
    add_product(du, block.x, dW, count)
    add_rows(du, block.ones, dbias, count)
    scatter(block.dx, block.rows, count, block.dx.shape[1], dx, b, h)
