"""Matrix products of blocks that lie in cache, a tile of the result at a time in vector registers.

A compiler that is given three loops keeps few sums in registers. Here a tile of ROWS rows and two
vectors is spelled out: one step of the inner dimension is two loads, ROWS broadcasts and twice as
many multiply-adds.

Blocks are padded (buffers.py): their widths are multiples of the vectors of their type, and they
have memory for a multiple of ROWS rows. A sum over tokens may have any length. One matrix of a
product may lie anywhere: it is an array, a place in it and the step of a row (rows.py).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from luna.kernels import cpu
from luna.kernels.linear_numba.vectors import (
    CONTRACT,
    WIDTH,
    Vector,
    intrinsic,
    ir_of,
    lanes,
    pointer,
    splat,
    start_of,
)

ROWS = 8 if WIDTH == 64 else 4  # AVX2 has 16 registers: the sums of 8 rows do not fit


@intrinsic(prefer_literal=True)
def tile(
    context: Any,
    A: Any,
    a: Any,
    of_row: Any,
    of_k: Any,
    B: Any,
    b: Any,
    of_b: Any,
    C: Any,
    c: Any,
    of_c: Any,
    K: Any,
    vectors: Any,
    add: Any,
) -> Any:
    """C[c + r of_c + j] = sum over k < K of A[a + r of_row + k of_k] B[b + k of_b + j], for ROWS
    rows r, and j in one or two vectors; or C += that. Sums start from 0 all the same: from C they
    would be rounded as its size asks at every step."""
    width, adds = vectors.literal_value, add.literal_value

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, a, of_row, of_k, _, b, of_b, _, c, of_c, K, _, _ = arguments
        kind = Vector(A.dtype)
        vector, size = ir_of(kind), A.dtype.bitwidth // 8
        of_A, of_B, of_C = (
            start_of(context, builder, x, arguments[i]) for x, i in ((A, 0), (B, 4), (C, 7))
        )
        columns = [ir.Constant(c.type, i * kind.count) for i in range(width)]
        zero = ir.Constant(vector, [0.0] * kind.count)
        sums = [[cgutils.alloca_once_value(builder, zero) for _ in columns] for _ in range(ROWS)]

        with cgutils.for_range(builder, K) as loop:
            row = builder.add(b, builder.mul(loop.index, of_b))
            values = [
                builder.load(pointer(builder, of_B, builder.add(row, j), vector), align=size)
                for j in columns
            ]
            at = builder.add(a, builder.mul(loop.index, of_k))
            for of_tile in sums:
                factor = splat(builder, builder.load(builder.gep(of_A, [at])), vector)
                for total, value in zip(of_tile, values, strict=True):
                    product = builder.fmul(factor, value, flags=CONTRACT)
                    builder.store(builder.fadd(builder.load(total), product, flags=CONTRACT), total)
                at = builder.add(at, of_row)

        row = c
        for of_tile in sums:
            for j, total in zip(columns, of_tile, strict=True):
                into = pointer(builder, of_C, builder.add(row, j), vector)
                result = builder.load(total)
                if adds:
                    result = builder.fadd(builder.load(into, align=size), result)
                builder.store(result, into, align=size)
            row = builder.add(row, of_c)
        return context.get_dummy_value()

    i = types.int64
    return types.void(A, i, i, i, B, i, i, C, i, i, i, vectors, add), codegen


@cpu.inner
def product(A, a, of_a, B, C, c, of_c, rows):
    """C = A B, of a padded block B; rows up to a multiple of ROWS, the others mean nothing."""
    K, N = B.shape
    one = lanes(B)
    for j in range(0, N - one, 2 * one):
        for i in range(0, rows, ROWS):
            tile(A, a + i * of_a, of_a, 1, B, j, N, C, c + i * of_c + j, of_c, K, 2, False)
    if N // one % 2:
        j = N - one
        for i in range(0, rows, ROWS):
            tile(A, a + i * of_a, of_a, 1, B, j, N, C, c + i * of_c + j, of_c, K, 1, False)


@cpu.inner
def add_product(A, B, b, of_b, C, rows):
    """C += A^T B of `rows` rows, of padded blocks A and C; C may have fewer rows than A columns."""
    D, N = C.shape
    width = A.shape[1]
    one = lanes(A)
    for j in range(0, N - one, 2 * one):
        for p in range(0, D, ROWS):
            tile(A, p, 1, width, B, b + j, of_b, C, p * N + j, N, rows, 2, True)
    if N // one % 2:
        j = N - one
        for p in range(0, D, ROWS):
            tile(A, p, 1, width, B, b + j, of_b, C, p * N + j, N, rows, 1, True)
