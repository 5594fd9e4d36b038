"""The maps of this folder in machine code: elu + 1, and relu of a linear map for each head."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from luna.kernels import cpu
from luna.kernels.linear_numba.feature_map import BLOCK, clear_columns, provide
from luna.kernels.linear_numba.passes import add_rows
from luna.kernels.linear_numba.rows import gather, put_rows, rows_in, rows_out
from luna.kernels.linear_numba.tiles import add_product, padded, product
from luna.kernels.linear_numba.vectors import elu_plus_one, lanes, least, load, same, store
from luna.kernels.luna_attention.numba_outputs import exact

# ---------------------------------------------------------------------- elu


class Elu(NamedTuple):
    """phi(x) = elu(x) + 1, D = d."""

    like: np.ndarray  # (1, 1, D)


@cpu.jit
def elu_width(maps):
    return maps.like.shape[2]


@cpu.jit
def elu_scratch(maps):
    """Rows that do not lie as vectors want them (BLOCK, D)."""
    return np.zeros((BLOCK, padded(maps.like, maps.like.shape[2])), maps.like.dtype)


@cpu.jit
def elu_start(scratch, maps, g):
    pass


@cpu.jit
def elu_rows(block, scratch, x, b, h, count, maps, g):
    D = maps.like.shape[2]
    X, at, step = rows_in(x, b, h, block.rows, count, D, scratch)
    map_elu(X, at, step, block.phi, count)
    clear_columns(block.phi, D, count)


@exact
def map_elu(x, at, step, phi, count):
    """phi = elu(x) + 1 of rows in whole vectors."""
    width = phi.shape[1]
    for i in range(count):
        for j in range(0, width, lanes(phi)):
            store(phi, i * width + j, elu_plus_one(load(x, at + i * step + j)))


@cpu.jit
def elu_backward(block, scratch, count, maps, g, totals, part, dx, b, h):
    phi, D = block.phi, maps.like.shape[2]
    width = phi.shape[1]
    one = same(phi, phi.dtype.type(1))
    X, at, step = rows_out(dx, b, h, block.rows, count, D, scratch)
    for i in range(count):
        for j in range(0, width, lanes(phi)):
            slope = least(load(phi, i * width + j), one)  # phi = e^x below 0
            store(X, at + i * step + j, load(block.dphi, i * width + j) * slope)
    put_rows(dx, b, h, block.rows, count, D, scratch)


@cpu.jit
def elu_end(scratch, maps, totals, part):
    pass


# ---------------------------------------------------------------------- relu


class Affine(NamedTuple):
    """phi(x) = relu(W x + b)."""

    W: np.ndarray  # (G, D, d)
    bias: np.ndarray  # (G, D)


class AffineScratch(NamedTuple):
    """D and d are filled up."""

    x: np.ndarray  # (BLOCK, d)
    W: np.ndarray  # (D, d)
    W_T: np.ndarray  # (d, D)
    dW: np.ndarray  # (D, d)
    dbias: np.ndarray  # (D)


@cpu.jit
def affine_inputs(maps):
    return maps.W.shape[2]


@cpu.jit
def affine_scratch(maps):
    kind = maps.W.dtype
    D, d = padded(maps.W, maps.W.shape[1]), padded(maps.W, maps.W.shape[2])
    return AffineScratch(
        np.zeros((BLOCK, d), kind),
        np.zeros((D, d), kind),
        np.zeros((d, D), kind),
        np.zeros((D, d), kind),
        np.zeros(D, kind),
    )


@cpu.jit
def affine_start(scratch, maps, g):
    scratch.dW[:] = 0
    scratch.dbias[:] = 0
    for p in range(maps.W.shape[1]):
        for j in range(maps.W.shape[2]):
            scratch.W[p, j] = maps.W[g, p, j]
            scratch.W_T[j, p] = maps.W[g, p, j]


@cpu.jit
def affine_rows(block, scratch, x, b, h, count, maps, g):
    phi, X = block.phi, scratch.x
    D = maps.W.shape[1]
    zero = phi.dtype.type(0)
    gather(x, b, h, block.rows, count, maps.W.shape[2], X)
    product(X.reshape(-1), 0, X.shape[1], scratch.W_T, phi, 0, phi.shape[1], count)
    for i in range(count):
        for p in range(D):
            u = phi[i, p] + maps.bias[g, p]
            phi[i, p] = zero if u < zero else u  # and not max(): NaN stays
    clear_columns(phi, D, count)


@cpu.jit
def affine_backward(block, scratch, count, maps, g, totals, part, dx, b, h):
    phi, dphi, x = block.phi, block.dphi, scratch.x
    D, d = phi.shape[1], maps.W.shape[2]
    zero = phi.dtype.type(0)
    for i in range(count):
        for p in range(D):
            dphi[i, p] = zero if phi[i, p] <= zero else dphi[i, p]  # not phi > 0: NaN stays
    add_product(dphi, x.reshape(-1), 0, x.shape[1], scratch.dW, count)
    add_rows(dphi, block.ones, scratch.dbias, count, False)
    X, at, step = rows_out(dx, b, h, block.rows, count, d, x)
    product(dphi.reshape(-1), 0, D, scratch.W, X, at, step, count)
    put_rows(dx, b, h, block.rows, count, d, x)


@cpu.jit
def affine_end(scratch, maps, totals, part):
    dW, dbias = totals
    for p in range(maps.W.shape[1]):
        dbias[part, p] += scratch.dbias[p]
        for j in range(maps.W.shape[2]):
            dW[part, p, j] += scratch.dW[p, j]


provide(
    Elu,
    inputs=elu_width,
    new=elu_scratch,
    start=elu_start,
    rows=elu_rows,
    backward=elu_backward,
    end=elu_end,
)
provide(
    Affine,
    inputs=affine_inputs,
    new=affine_scratch,
    start=affine_start,
    rows=affine_rows,
    backward=affine_backward,
    end=affine_end,
)
