"""The maps of this folder in machine code: elu + 1, and relu of a linear map for each head."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from luna.kernels.linear_numba.affine import (
    end_affine,
    new_buffers,
    project,
    project_backward,
    start_affine,
)
from luna.kernels.linear_numba.buffers import padded, zeros
from luna.kernels.linear_numba.feature_map import BLOCK, clear_columns, provide
from luna.kernels.linear_numba.rows import put_rows, rows_in, rows_out
from luna.kernels.linear_numba.vectors import elu_plus_one, lanes, least, load, same, store
from luna.kernels.luna_attention.numba_outputs import exact

# ---------------------------------------------------------------------- elu


class Elu(NamedTuple):
    """phi(x) = elu(x) + 1, D = d."""

    like: np.ndarray  # (1, D)

    def new_scratch(self) -> np.ndarray:
        """Rows that do not lie as vectors want them (BLOCK, D)."""
        kind = self.like.dtype
        return zeros(kind, (BLOCK, padded(kind, self.like.shape[1])))[0]


def elu_start(scratch, maps, g):
    pass


def elu_rows(block, scratch, x, b, h, count, maps, g):
    X, at, step = rows_in(x, b, h, block.rows, count, scratch)
    map_elu(X, at, step, block.phi, count)
    clear_columns(block.phi, maps.like.shape[1], count)


@exact
def map_elu(x, at, step, phi, count):
    """phi = elu(x) + 1 of rows in whole vectors."""
    width = phi.shape[1]
    for i in range(count):
        for j in range(0, width, lanes(phi)):
            store(phi, i * width + j, elu_plus_one(load(x, at + i * step + j)))


def elu_backward(block, scratch, count, maps, g, totals, part, dx, b, h):
    phi = block.phi
    width = phi.shape[1]
    one = same(phi, phi.dtype.type(1))
    X, at, step = rows_out(dx, b, h, block.rows, count, scratch)
    for i in range(count):
        for j in range(0, width, lanes(phi)):
            slope = least(load(phi, i * width + j), one)  # phi = e^x below 0
            store(X, at + i * step + j, load(block.dphi, i * width + j) * slope)
    put_rows(dx, b, h, block.rows, count, scratch)


def elu_end(scratch, maps, totals, part):
    pass


provide(Elu, start=elu_start, rows=elu_rows, backward=elu_backward, end=elu_end)

# ---------------------------------------------------------------------- relu


class AffineScratch(NamedTuple):
    """D and d are filled up."""

    x: np.ndarray  # (BLOCK, d)
    W: np.ndarray  # (D, d)
    W_T: np.ndarray  # (d, D)
    dW: np.ndarray  # (D, d)
    dbias: np.ndarray  # (D)


class Affine(NamedTuple):
    """phi(x) = relu(W x + b)."""

    W: np.ndarray  # (G, D, d)
    bias: np.ndarray  # (G, D)

    def new_scratch(self) -> AffineScratch:
        return AffineScratch(*new_buffers(self.W))


def affine_start(scratch, maps, g):
    start_affine(scratch, maps, g)


def affine_rows(block, scratch, x, b, h, count, maps, g):
    phi = block.phi
    D = maps.W.shape[1]
    zero = phi.dtype.type(0)
    project(block, scratch, x, b, h, count, phi)
    for i in range(count):
        for p in range(D):
            u = phi[i, p] + maps.bias[g, p]
            phi[i, p] = zero if u < zero else u  # and not max(): NaN stays
    clear_columns(phi, D, count)


def affine_backward(block, scratch, count, maps, g, totals, part, dx, b, h):
    phi, dphi = block.phi, block.dphi
    zero = phi.dtype.type(0)
    for i in range(count):
        for p in range(phi.shape[1]):
            dphi[i, p] = zero if phi[i, p] <= zero else dphi[i, p]  # not phi > 0: NaN stays
    project_backward(block, scratch, dphi, count, dx, b, h)


def affine_end(scratch, maps, totals, part):
    dW, dbias = totals
    end_affine(scratch, dW, dbias, part)


provide(Affine, start=affine_start, rows=affine_rows, backward=affine_backward, end=affine_end)
