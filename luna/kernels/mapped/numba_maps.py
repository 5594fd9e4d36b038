"""A block of tokens in machine code: its features by the maps of this folder, and their gradients.

    Maps    which map, and its parameters
    Block   buffers that a thread fills anew with every block

Buffers are padded to whole vectors, as luna/kernels/tiles.py wants them, with zeros: a feature
that there is not is 0, whatever the map says of 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from luna.kernels import cpu
from luna.kernels.luna_attention.numba_outputs import exact
from luna.kernels.rows import gather, put_rows, rows_in, rows_out
from luna.kernels.tiles import add_product, add_rows, padded, product
from luna.kernels.vectors import elu_plus_one, lanes, least, load, same, store

BLOCK = 64  # tokens at a time: with their sums they stay in the nearest cache
ELU, RELU = range(2)


class Maps(NamedTuple):
    kind: int  # ELU or RELU
    W: np.ndarray  # (G, D, d); of ELU (1, D, 0)
    bias: np.ndarray  # (G, D)


class Block(NamedTuple):
    """The buffers of a block; d, D and e are filled up."""

    rows: np.ndarray  # (BLOCK) where its tokens stand in the sequence
    scale: np.ndarray  # (BLOCK) a factor of each token
    weights: np.ndarray  # (BLOCK) another one
    ones: np.ndarray  # (BLOCK)
    x: np.ndarray  # (BLOCK, d) queries or keys
    phi: np.ndarray  # (BLOCK, D) features
    dphi: np.ndarray  # (BLOCK, D) their gradient
    values: np.ndarray  # (BLOCK, e) values, or what has their shape
    S: np.ndarray  # (D, e)
    S_T: np.ndarray  # (e, D)
    z: np.ndarray  # (D)
    W: np.ndarray  # (D, d) of a group
    W_T: np.ndarray  # (d, D)
    dW: np.ndarray  # (D, d)
    dbias: np.ndarray  # (D)


@cpu.jit
def new_block(maps, e):
    kind = maps.bias.dtype
    D = padded(maps.bias, maps.W.shape[1])
    d = D if maps.kind == ELU else padded(maps.bias, maps.W.shape[2])
    e = padded(maps.bias, e)
    return Block(
        np.empty(BLOCK, np.int64),
        np.ones(BLOCK, kind),
        np.ones(BLOCK, kind),
        np.ones(BLOCK, kind),
        np.zeros((BLOCK, d), kind),
        np.zeros((BLOCK, D), kind),
        np.zeros((BLOCK, D), kind),
        np.zeros((BLOCK, e), kind),
        np.zeros((D, e), kind),
        np.zeros((e, D), kind),
        np.zeros(D, kind),
        np.zeros((D, d), kind),
        np.zeros((d, D), kind),
        np.zeros((D, d), kind),
        np.zeros(D, kind),
    )


@cpu.jit
def take_sums(block, S, z):
    """S (D, e), its transpose and z of one head into a block."""
    for p in range(S.shape[0]):
        block.z[p] = z[p]
        for j in range(S.shape[1]):
            block.S[p, j] = S[p, j]
            block.S_T[j, p] = S[p, j]


@cpu.jit
def take_group(block, maps, g):
    """The parameters of one group into a block, and their gradients at 0."""
    if maps.kind == RELU:
        block.dW[:] = 0
        block.dbias[:] = 0
        for p in range(maps.W.shape[1]):
            for j in range(maps.W.shape[2]):
                block.W[p, j] = maps.W[g, p, j]
                block.W_T[j, p] = maps.W[g, p, j]


@cpu.jit
def width_of(maps):
    """d, the width of queries and keys."""
    return maps.W.shape[1] if maps.kind == ELU else maps.W.shape[2]


@cpu.jit
def map_rows(block, x, b, h, count, maps, g):
    """Fill the features of a block."""
    phi = block.phi
    D = maps.W.shape[1]
    zero = phi.dtype.type(0)
    if maps.kind == ELU:
        X, at, step = rows_in(x, b, h, block.rows, count, D, block.x)
        map_elu(X, at, step, phi, count)
    else:  # backward reads x again
        gather(x, b, h, block.rows, count, maps.W.shape[2], block.x)
        X = block.x.reshape(-1)
        product(X, 0, block.x.shape[1], block.W_T, phi, 0, phi.shape[1], count)
        for i in range(count):
            for p in range(D):
                u = phi[i, p] + maps.bias[g, p]
                phi[i, p] = zero if u < zero else u  # and not max(): NaN stays
    for i in range(count):
        for p in range(D, phi.shape[1]):
            phi[i, p] = zero


@exact
def map_elu(x, at, step, phi, count):
    """phi = elu(x) + 1 of rows in whole vectors."""
    width = phi.shape[1]
    for i in range(count):
        for j in range(0, width, lanes(phi)):
            store(phi, i * width + j, elu_plus_one(load(x, at + i * step + j)))


@cpu.jit
def map_backward(block, count, maps, dx, b, h):
    """dx from the features' gradient scale dphi + weights z; what the parameters get is added to
    the block's dW and dbias."""
    x, phi, dphi, z = block.x, block.phi, block.dphi, block.z
    D = phi.shape[1]
    d = width_of(maps)
    zero = phi.dtype.type(0)
    X, at, step = rows_out(dx, b, h, block.rows, count, d, x)
    if maps.kind == ELU:
        one = same(phi, phi.dtype.type(1))
        for i in range(count):
            scale, weight = same(phi, block.scale[i]), same(phi, block.weights[i])
            for j in range(0, D, lanes(phi)):
                u = scale * load(dphi, i * D + j) + weight * load(z, j)
                slope = least(load(phi, i * D + j), one)  # phi = e^x below 0
                store(X, at + i * step + j, u * slope)
    else:
        for i in range(count):
            scale, weight = block.scale[i], block.weights[i]
            for p in range(D):
                u = scale * dphi[i, p] + weight * z[p]
                dphi[i, p] = zero if phi[i, p] <= zero else u  # and not phi > 0: NaN stays
        add_product(dphi, x.reshape(-1), 0, x.shape[1], block.dW, count)
        add_rows(dphi, block.ones, block.dbias, count)
        product(dphi.reshape(-1), 0, D, block.W, X, at, step, count)
    put_rows(dx, b, h, block.rows, count, d, x)
