"""The piecewise linear evaluation in machine code: one pass over the scalars, on the CPU.

The table and its meaning are those of piecewise.py. A grid replaces the binary search, whose
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
from luna.kernels.scalar_mlp.piecewise import SLOPES, check_tables, fake_gradients, tables

CELLS = 16384  # at hidden 512 and 8 channels, 4096 keys: few in a cell
TAIL = 16  # the fraction 1 / TAIL of the keys at either end lies in the outermost cells
BLOCK = 4096  # scalars of a task
PART = 8  # blocks whose table gradients are summed in working precision before float64 takes over


def compiled(u: Tensor, *mlps: Tensor, activation: str, nonneg: bool, chunk: int) -> Tensor:
    """psi (G, N, L); see `scalar_mlp` for the arguments. Needs no chunks: nothing is transient."""
    e, f, a, g = mlps
    keys, table = tables(e, f, a, g, SLOPES[activation], u.dtype)
    y, _ = lookup(u.contiguous(), *grid(keys), table, nonneg)
    return y


# ---------------------------------------------------------------------- kernels


@functools.partial(cpu.jit, reorder=False)
def cell_of(x, low, per_unit, cells):
    """A non-decreasing function of x, the same wherever it is used, so that a key of a lower cell
    is smaller than x. NaN goes to cell 0."""
    c = (x - low) * per_unit
    if not c > 0:
        return 0
    return cells - 1 if c >= cells else int(c)


@cpu.jit
def make_grid(keys, span, start):
    """span (G, 2): low end and cells per unit; start[g, c]: keys in cells before c."""
    cells = start.shape[1] - 1
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
            start[g, cell_of(key, span[g, 0], span[g, 1], cells) + 1] += 1
        for c in range(cells):
            start[g, c + 1] += start[g, c]


@cpu.jit
def find_intervals(u, keys, low, per_unit, start, interval, count):
    """interval[i] = the number of keys smaller than u[i]; two infinite keys follow the last."""
    unfinished, cells = np.int32(0), len(start) - 1
    for i in range(count):
        x = u[i]
        j = start[cell_of(x, low, per_unit, cells)]
        j += np.int32(keys[j] < x)
        j += np.int32(keys[j] < x)
        unfinished += np.int32(keys[j] < x)
        interval[i] = j
    if unfinished > 0:
        for i in range(count):
            if keys[interval[i]] < u[i]:
                first, last = interval[i] + 1, start[cell_of(u[i], low, per_unit, cells) + 1]
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
    N, L = u.shape[1], y.shape[2]
    blocks = (N + BLOCK - 1) // BLOCK
    zero = u.dtype.type(0)
    for task in range(first, last):
        g, block = task // blocks, task % blocks
        i0, i1 = block * BLOCK, min(N, (block + 1) * BLOCK)
        find_intervals(
            u[g, i0:i1], keys[g], span[g, 0], span[g, 1], start[g], interval[g, i0:i1], i1 - i0
        )
        for i in range(i0, i1):
            x, row, out = u[g, i], table[g, interval[g, i]], y[g, i]
            for l in range(L):
                value = row[l] * x + row[L + l]
                out[l] = zero if nonneg and value < 0 else value  # and not max(): NaN stays


@cpu.jit
def backward_kernel(first, last, grad, u, table, interval, nonneg, du, dtable):
    """A task is a part: its blocks' sums go into dtable[g, part]."""
    N, L, parts = u.shape[1], grad.shape[2], dtable.shape[1]
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
                off = nonneg and not row[l] * x + row[L + l] > 0
                d = zero if off else grad[g, i, l]
                total += row[l] * d
                into[l] += x * d
                into[L + l] += d
            du[g, i] = total


# ---------------------------------------------------------------------- operators


@torch.library.custom_op("luna::grid", mutates_args=(), device_types="cpu")
def grid(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys with two infinite ones behind them, and make_grid's span and start."""
    span = keys.new_empty(len(keys), 2)
    start = torch.empty(len(keys), CELLS + 1, dtype=torch.int32, device=keys.device)
    make_grid(keys.detach().numpy(), span.numpy(), start.numpy())
    return F.pad(keys, (0, 2), value=torch.inf), span, start


@torch.library.custom_op("luna::scalar_mlp", mutates_args=(), device_types="cpu")
def lookup(
    u: Tensor, keys: Tensor, span: Tensor, start: Tensor, table: Tensor, nonneg: bool
) -> tuple[Tensor, Tensor]:
    """y (G, N, L) and, for backward, the interval of each scalar (G, N)."""
    check_tables(u, keys, table, more=2)
    G, N = u.shape
    y = u.new_empty(G, N, table.shape[-1] // 2)
    interval = torch.empty_like(u, dtype=torch.int32)
    scalars, outputs = u.detach().numpy(), (y.numpy(), interval.numpy())
    lines = tuple(t.detach().numpy() for t in (table, keys, span, start))
    cpu.run(forward_kernel, G * -(-N // BLOCK), scalars, lines, nonneg, *outputs)
    return y, interval


@torch.library.custom_op("luna::scalar_mlp_backward", mutates_args=(), device_types="cpu")
def _lookup_backward(
    grad: Tensor, u: Tensor, table: Tensor, interval: Tensor, nonneg: bool
) -> tuple[Tensor, Tensor]:
    (G, N), (_, K, columns) = u.shape, table.shape
    du = torch.empty_like(u)
    parts = -(-N // (PART * BLOCK))
    sums = table.new_empty(G, parts, K, columns)
    given = [t.detach().numpy() for t in (grad, u, table, interval)]
    cpu.run(backward_kernel, G * parts, *given, nonneg, du.numpy(), sums.numpy())
    return du, sums.sum(1, dtype=torch.float64).to(table.dtype)


@grid.register_fake
def _(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    G, K = keys.shape
    start = torch.empty(G, CELLS + 1, dtype=torch.int32, device=keys.device)
    return keys.new_empty(G, K + 2), keys.new_empty(G, 2), start


@lookup.register_fake
def _(
    u: Tensor, keys: Tensor, span: Tensor, start: Tensor, table: Tensor, nonneg: bool
) -> tuple[Tensor, Tensor]:
    y = u.new_empty(*u.shape, table.shape[-1] // 2)
    return y, torch.empty_like(u, dtype=torch.int32)


_lookup_backward.register_fake(fake_gradients)


def _save(ctx, inputs, output) -> None:
    u, _, _, _, table, ctx.nonneg = inputs
    _, interval = output
    ctx.mark_non_differentiable(interval)
    ctx.save_for_backward(u, table, interval)


def _backward(ctx, grad: Tensor, _):
    u, table, interval = ctx.saved_tensors
    du, dtable = _lookup_backward(grad.contiguous(), u, table, interval, ctx.nonneg)
    return du, None, None, None, dtable, None


lookup.register_autograd(_backward, setup_context=_save)
