"""u = W x + b of the tokens of a block, for maps that begin with it.

Their `maps` have W (G, m, d) and bias (G, m). Their scratch has the fields x, W, W_T, dW and dbias
of `new_buffers`.
"""

from __future__ import annotations

import numpy as np

from luna.kernels import cpu
from luna.kernels.linear_numba.buffers import padded, zeros
from luna.kernels.linear_numba.feature_map import BLOCK
from luna.kernels.linear_numba.rows import gather, put_rows, rows_out
from luna.kernels.linear_numba.sums import add_rows
from luna.kernels.linear_numba.tiles import add_product, product


def new_buffers(W: np.ndarray) -> list[np.ndarray]:
    """x (BLOCK, d), W (m, d), W_T (d, m), dW (m, d) and dbias (m); m and d are filled up, but not
    the rows of W: what a product leaves in further columns of u may be NaN."""
    m, d = (padded(W.dtype, width) for width in W.shape[1:])
    return zeros(W.dtype, (BLOCK, d), (W.shape[1], d), (d, m), (m, d), (m,))


@cpu.inner
def start_affine(scratch, maps, g):
    """Take the parameters of a group; their gradients begin at 0."""
    scratch.dW[:] = 0
    scratch.dbias[:] = 0
    for p in range(maps.W.shape[1]):
        for j in range(maps.W.shape[2]):
            scratch.W[p, j] = maps.W[g, p, j]
            scratch.W_T[j, p] = maps.W[g, p, j]


@cpu.inner
def project(block, scratch, x, b, h, count, u):
    """u (BLOCK, m) = W x, without b."""
    X, W_T = scratch.x, scratch.W_T
    gather(x, b, h, block.rows, count, X)
    product(X.reshape(-1), 0, X.shape[1], W_T, u, 0, W_T.shape[1], count)


@cpu.inner
def project_backward(block, scratch, du, count, dx, b, h):
    """The gradients of W and b grow; dx is written, where queries or keys were in between."""
    X, m = scratch.x, du.shape[1]
    add_product(du, X.reshape(-1), 0, X.shape[1], scratch.dW, count)
    add_rows(du, block.ones, scratch.dbias, count, False)
    into, at, step = rows_out(dx, b, h, block.rows, count, X)
    product(du.reshape(-1), 0, m, scratch.W, into, at, step, count)
    put_rows(dx, b, h, block.rows, count, X)


@cpu.inner
def end_affine(scratch, dW, dbias, part):
    """Add the gradients to those of a part."""
    for p in range(dW.shape[1]):
        dbias[part, p] += scratch.dbias[p]
        for j in range(dW.shape[2]):
            dW[part, p, j] += scratch.dW[p, j]
