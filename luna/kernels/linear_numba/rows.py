"""Rows of a tensor in memory, as kernels in machine code read and write them.

Kernels work on blocks of tokens. Padded tokens are not loaded at all: a block is the next real
ones. They are copied side by side, except where a kernel can use them as they lie. A block may be
wider than its rows; the other columns are 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from luna.kernels import cpu


class Rows(NamedTuple):
    """The memory of a tensor (B, H, n, width) with the steps of B, H, n. A kernel reads whole rows
    at once, wherever they lie, because it knows that a row has no gaps."""

    memory: np.ndarray
    of_b: int
    of_h: int
    of_n: int
    width: int


def rows_of(t: Tensor) -> Rows:
    """The rows of a tensor, copied where they have gaps."""
    t = t.detach()
    if t.stride(-1) != 1:
        t = t.contiguous()
    B, H, n, width = t.shape
    of_b, of_h, of_n, _ = t.stride()
    size = (B - 1) * of_b + (H - 1) * of_h + (n - 1) * of_n + width
    return Rows(t.as_strided((size,), (1,)).numpy(), of_b, of_h, of_n, width)


@cpu.inner
def row_of(x, b, h, i):
    """Where a row begins in the memory of x. Unsigned: a signed index might count from the end,
    and asking at each number keeps a loop out of vector registers."""
    return np.uint64(b * x.of_b + h * x.of_h + i * x.of_n)


@cpu.inner
def real_rows(mask, b, i, end, rows):
    """Write the indices of the real tokens of a sequence from i to end into `rows`, at most
    len(rows) of them; return their count and where to continue."""
    count = 0
    while i < end and count < len(rows):
        if mask[b, i]:
            rows[count] = i
            count += 1
        i += 1
    return count, i


@cpu.inner
def gather(x, b, h, rows, count, block):
    """Copy rows into a block, whose further columns become 0: a product may have left NaN there."""
    for i in range(count):
        at = row_of(x, b, h, rows[i])
        for j in range(np.uint64(x.width)):
            block[i, j] = x.memory[at + j]
        for j in range(x.width, block.shape[1]):
            block[i, j] = 0


@cpu.inner
def scatter(block, rows, count, x, b, h):
    for i in range(count):
        at = row_of(x, b, h, rows[i])
        for j in range(np.uint64(x.width)):
            x.memory[at + j] = block[i, j]


@cpu.inner
def lie_together(rows, count, width, block):
    """Say whether a block is full, its tokens are neighbours and its rows as wide as the block's:
    then kernels use the rows where they lie."""
    full = count == len(rows) and rows[count - 1] - rows[0] == count - 1
    return full and width == block.shape[1]


@cpu.inner
def rows_in(x, b, h, rows, count, block):
    """Where a kernel reads the rows of a block: an array, a place in it and the step of a row.
    That is the block, into which they are copied, if they do not lie together."""
    if lie_together(rows, count, x.width, block):
        return x.memory, np.int64(row_of(x, b, h, rows[0])), x.of_n
    gather(x, b, h, rows, count, block)
    return block.reshape(-1), 0, block.shape[1]


@cpu.inner
def rows_out(x, b, h, rows, count, block):
    """Where a kernel writes them; `put_rows` follows."""
    if lie_together(rows, count, x.width, block):
        return x.memory, np.int64(row_of(x, b, h, rows[0])), x.of_n
    return block.reshape(-1), 0, block.shape[1]


@cpu.inner
def put_rows(x, b, h, rows, count, block):
    if not lie_together(rows, count, x.width, block):
        scatter(block, rows, count, x, b, h)


@cpu.inner
def clear_padding(mask, first, end, x, b, h):
    for i in range(first, end):
        if not mask[b, i]:
            at = row_of(x, b, h, i)
            for j in range(np.uint64(x.width)):
                x.memory[at + j] = 0
