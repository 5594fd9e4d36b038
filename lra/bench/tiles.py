"""Register tiles alone, in machine code, for `lra bench roof`."""

from __future__ import annotations

from luna.kernels import cpu
from luna.kernels.linear_numba.tiles import product


@cpu.jit
def repeated(A, B, C, times):
    """C = A B of blocks in cache, again and again."""
    for _ in range(times):
        product(A.reshape(-1), 0, A.shape[1], B, C.reshape(-1), 0, C.shape[1], len(A))
