"""The steps of a pass over a block: its sums, its divisors, and their gradients."""

from __future__ import annotations

from typing import NamedTuple

from luna.kernels import cpu
from luna.kernels.linear_numba.vectors import (
    lanes,
    load,
    magnitude,
    same,
    store,
    total,
    with_sign,
)


class Division(NamedTuple):
    """What divides the sums of values."""

    eps: float
    divided: bool  # by the sum of weights; else the sums of values are returned
    signed: bool  # sums of weights may be negative
    absolute: bool  # they are sums of |phi(q)| . |phi(k)|


@cpu.inner
def clear(x):
    """A buffer becomes 0."""
    zero = same(x, x.dtype.type(0))
    for at in range(0, x.size, lanes(x)):
        store(x, at, zero)


@cpu.inner
def clear_sums(block):
    """The sums of a block begin to grow."""
    clear(block.R)
    clear(block.r)


@cpu.inner
def put_sums(block, S, z):
    """They become the S (D, e) and z (D) of a unit."""
    for p in range(S.shape[0]):
        z[p] = block.r[p]
        for j in range(S.shape[1]):
            S[p, j] = block.R[p, j]


@cpu.inner
def take_sums(block, S, z):
    """S (D, e) and z of one head into a block; its factors at 1."""
    for i in range(len(block.ones)):
        block.scale[i] = 1
        block.weights[i] = 1
    for p in range(S.shape[0]):
        block.z[p] = z[p]
        for j in range(S.shape[1]):
            block.S[p, j] = S[p, j]


@cpu.inner
def transpose_sums(block):
    """S of a block, which backward needs in its other order."""
    D, e = block.S.shape
    for j in range(e):
        for p in range(D):
            block.S_T[j, p] = block.S[p, j]


@cpu.inner
def add_rows(A, scale, c, rows, absolute):
    """c += sum of scale[i] A[i] of a padded block, or of |A[i]|, two sums at a time."""
    width = A.shape[1]
    for j in range(0, width, lanes(A)):
        even = same(A, A.dtype.type(0))
        odd = even
        for i in range(0, rows, 2):
            row = load(A, i * width + j)
            even = even + same(A, scale[i]) * (magnitude(row) if absolute else row)
            if i + 1 < rows:
                row = load(A, (i + 1) * width + j)
                odd = odd + same(A, scale[i + 1]) * (magnitude(row) if absolute else row)
        store(c, j, load(c, j) + (even + odd))


@cpu.inner
def dot(A, i, B, j, absolute):
    """The product of two rows of padded blocks, or of |A[i]| and B[j]."""
    width = A.shape[1]
    sums = same(A, A.dtype.type(0))
    for p in range(0, width, lanes(A)):
        row = load(A, i * width + p)
        sums = sums + (magnitude(row) if absolute else row) * load(B, j * width + p)
    return total(sums)


@cpu.inner
def scale_rows(A, scale, rows):
    width = A.shape[1]
    for i in range(rows):
        factor = same(A, scale[i])
        for p in range(0, width, lanes(A)):
            store(A, i * width + p, factor * load(A, i * width + p))


@cpu.inner
def invert(c, rows, count, division, scale):
    """1 / den of the queries of a block: c kept away from 0; not by max(), so that NaN stays."""
    eps = division.eps
    for r in range(count):
        at = c[rows[r]]
        if division.signed and at < 0:
            at = -eps if at > -eps else at
        else:
            at = eps if at < eps else at
        scale[r] = 1 / at


@cpu.inner
def divide_backward(block, c, count, division):
    """The block's `weights` become dc = -(dN . N) / den where c is not kept at eps, else 0: dN . N
    is phi . (S do) / den, the product of two rows that are there, so N is not read again."""
    if not division.divided:
        clear(block.weights)
        return
    for r in range(count):
        inverse = block.scale[r]
        dc = -(inverse * inverse) * dot(block.phi, r, block.dphi, r, False)
        at = c[block.rows[r]]
        size = abs(at) if division.signed else at
        block.weights[r] = dc if size >= division.eps else 0


@cpu.inner
def add_weights(block, count, absolute):
    """dphi = scale dphi + weights z, or, of absolute weights, + weights z sign(phi)."""
    phi, dphi, z = block.phi, block.dphi, block.z
    width = phi.shape[1]
    for i in range(count):
        scale, weight = same(phi, block.scale[i]), same(phi, block.weights[i])
        for p in range(0, width, lanes(phi)):
            of_z = weight * load(z, p)
            if absolute:
                of_z = with_sign(of_z, load(phi, i * width + p))
            store(dphi, i * width + p, scale * load(dphi, i * width + p) + of_z)
