"""The piecewise linear evaluation in machine code: one pass over the scalars, on the CPU.

The table and its meaning are those of operator.py. A grid replaces the binary search, whose
branches no processor can predict: the cell of a scalar gives the number of keys in the cells before
it, and two comparisons without a branch count those of its own. More than two are rare.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from luna.kernels import cpu

CELLS = 16384  # at hidden 512 and 8 channels, 4096 keys: few in a cell
TAIL = 16  # the fraction 1 / TAIL of the keys at either end lies in the outermost cells
BLOCK = 4096  # scalars of a task
PART = 8  # blocks whose table gradients are summed in working precision before float64 takes over


def grid(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The keys with two infinite ones behind them, and make_grid's span and start."""
    span = keys.new_empty(len(keys), 2)
    start = torch.empty(len(keys), CELLS + 1, dtype=torch.int32)
    make_grid(*cpu.arrays(keys, span, start))
    return F.pad(keys, (0, 2), value=torch.inf), span, start


def look_up(
    u: Tensor, table: Tensor, grid: tuple[Tensor, ...], nonneg: bool, y: Tensor, interval: Tensor
) -> None:
    """Fill y (G, N, L) and the interval of each scalar (G, N)."""
    G, N = u.shape
    lines = tuple(cpu.arrays(table, *grid))
    arrays = *cpu.arrays(u), lines, nonneg, *cpu.arrays(y, interval)
    cpu.run(forward_kernel, G * -(-N // BLOCK), *arrays)


def look_up_backward(
    grad: Tensor, u: Tensor, table: Tensor, interval: Tensor, nonneg: bool
) -> tuple[Tensor, Tensor]:
    G, N = u.shape
    _, K, columns = table.shape
    du = torch.empty_like(u)
    parts = -(-N // (PART * BLOCK))
    sums = table.new_empty(G, parts, K, columns)
    arrays = *cpu.arrays(grad, u, table, interval), nonneg, *cpu.arrays(du, sums)
    cpu.run(backward_kernel, G * parts, *arrays)
    return du, sums.sum(1, dtype=torch.float64).to(table.dtype)


# ---------------------------------------------------------------------- kernels


@functools.partial(cpu.jit, reorder=False)
def cell_of(x, low, per_unit, highest):
    """A non-decreasing function of x, the same wherever it is used, so that a key of a lower cell
    is smaller than x; `highest` is the number of the last cell in the type of x. NaN goes to cell
    0. Neither branches nor signed indices, which would be counted from the end."""
    c = (x - low) * per_unit
    zero = highest - highest
    c = c if c > zero else zero
    return np.uint32(c if c < highest else highest)


@cpu.jit
def make_grid(keys, span, start):
    """span (G, 2): low end and cells per unit; start[g, c]: keys in cells before c."""
    cells = start.shape[1] - 1
    highest = keys.dtype.type(cells - 1)
    for g in range(keys.shape[0]):
        finite = keys[g][np.isfinite(keys[g])]
        low, per_unit = 0.0, 0.0
        if len(finite) > 0:  # breakpoints -f / e have long tails
            cut = len(finite) // TAIL
            low, high = finite[cut], finite[len(finite) - 1 - cut]
            if high > low:
                per_unit = cells / (high - low)
        span[g, 0], span[g, 1] = low, per_unit
        start[g] = 0
        for key in keys[g]:
            start[g, cell_of(key, span[g, 0], span[g, 1], highest) + 1] += 1
        for c in range(cells):
            start[g, c + 1] += start[g, c]


@cpu.jit
def find_intervals(u, keys, low, per_unit, start, interval, count):
    """interval[i] = the number of keys smaller than u[i]; two infinite keys follow the last."""
    unfinished = np.int32(0)
    highest = keys.dtype.type(len(start) - 2)
    for i in range(count):
        x = u[i]
        j = np.uint32(start[cell_of(x, low, per_unit, highest)])
        j += np.uint32(keys[j] < x)
        j += np.uint32(keys[j] < x)
        unfinished += np.int32(keys[j] < x)
        interval[i] = j
    if unfinished > 0:
        for i in range(count):
            if keys[interval[i]] < u[i]:
                first = interval[i] + 1
                last = start[cell_of(u[i], low, per_unit, highest) + 1]
                while first < last:
                    middle = (first + last) >> 1
                    if keys[middle] < u[i]:
                        first = middle + 1
                    else:
                        last = middle
                interval[i] = first


@cpu.jit
def forward_kernel(first, last, u, lines, nonneg, y, interval):
    table, keys, span, start = lines
    N = u.shape[1]
    L = y.shape[2]
    blocks = (N + BLOCK - 1) // BLOCK
    zero = u.dtype.type(0)
    for task in range(first, last):
        g, block = task // blocks, task % blocks
        i0, i1 = block * BLOCK, min(N, (block + 1) * BLOCK)
        find_intervals(
            u[g, i0:i1], keys[g], span[g, 0], span[g, 1], start[g], interval[g, i0:i1], i1 - i0
        )
        for i in range(i0, i1):
            x = u[g, i]
            row = table[g, interval[g, i]]
            out = y[g, i]
            for l in range(L):
                value = row[l] * x + row[L + l]
                out[l] = zero if nonneg and value < 0 else value  # and not max(): NaN stays


@cpu.jit
def backward_kernel(first, last, grad, u, table, interval, nonneg, du, dtable):
    """A task is a part: its blocks' sums go into dtable[g, part]."""
    N = u.shape[1]
    L = grad.shape[2]
    parts = dtable.shape[1]
    zero = u.dtype.type(0)
    for task in range(first, last):
        g, part = task // parts, task % parts
        sums = dtable[g, part]
        sums[:] = 0
        for i in range(part * PART * BLOCK, min(N, (part + 1) * PART * BLOCK)):
            x, j = u[g, i], interval[g, i]
            row, into = table[g, j], sums[j]
            total = zero
            for l in range(L):
                off = nonneg and row[l] * x + row[L + l] <= 0  # and not > 0: NaN stays
                d = zero if off else grad[g, i, l]
                total += row[l] * d
                into[l] += x * d
                into[L + l] += d
            du[g, i] = total
