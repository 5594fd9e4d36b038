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
from luna.kernels.scalar_mlp.piecewise import (
    SLOPES,
    check_mlps,
    check_tables,
    no_second_derivative,
    register,
    sorted_keys,
)

CELLS = 16384  # at hidden 512 and 8 channels, 4096 keys: few in a cell
TAIL = 16  # the fraction 1 / TAIL of the keys at either end lies in the outermost cells
BLOCK = 4096  # scalars of a task
PART = 8  # blocks whose table gradients are summed in working precision before float64 takes over


def compiled(u: Tensor, *mlps: Tensor, activation: str, nonneg: bool, chunk: int) -> Tensor:
    """psi (G, N, L); see `scalar_mlp` for the arguments. Needs no chunks: nothing is transient."""
    e, f, a, g = mlps
    keys, table = compiled_tables(e, f, a, g, SLOPES[activation], u.dtype)
    y, _ = lookup(u.contiguous(), *grid(keys), table, nonneg)
    return y


def compiled_tables(
    e: Tensor, f: Tensor, a: Tensor, g: Tensor, slope: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """As `piecewise.tables`, whose many operations on small tensors would take longer than the
    attention of a short sequence, on one thread however many there are."""
    keys, order = sorted_keys(e, f, dtype)
    return keys, _table(e, f, a, g, keys, order, slope)


# ---------------------------------------------------------------------- kernels


@functools.partial(cpu.jit, reorder=False)
def table_kernel(e, f, a, g, order, slope, table):
    """Slopes and intercepts of interval 0, and what every unit in order adds to them."""
    (G, C, w), L = e.shape, a.shape[1]
    row = np.empty(2 * L, np.float64)
    for i in range(G):
        for l in range(L):
            c = l if C > 1 else 0
            row[l], row[L + l] = 0, g[i, l]
            for r in range(w):
                left = slope if e[i, c, r] >= 0 else 1.0  # the unit's factor left of its key
                row[l] += a[i, l, r] * (left * e[i, c, r])
                row[L + l] += a[i, l, r] * (left * f[i, c, r])
        table[i, 0] = row
        for j in range(w * C):
            r, c = order[i, j] // C, order[i, j] % C
            step = 1 - slope if e[i, c, r] >= 0 else slope - 1
            for l in range(c if C > 1 else 0, c + 1 if C > 1 else L):
                row[l] += a[i, l, r] * (step * e[i, c, r])
                row[L + l] += a[i, l, r] * (step * f[i, c, r])
            table[i, j + 1] = row


@functools.partial(cpu.jit, reorder=False)
def table_backward_kernel(grad, e, f, a, order, slope, de, df, da, dg):
    """Gradients (float64, 0 before) of a unit: its factor times the sums over the rows it is in."""
    (G, C, w), L = e.shape, a.shape[1]
    for i in range(G):
        sums = np.zeros(2 * L, np.float64)
        for j in range(w * C - 1, -1, -1):
            for l in range(2 * L):
                sums[l] += grad[i, j + 1, l]
            r, c = order[i, j] // C, order[i, j] % C
            step = 1 - slope if e[i, c, r] >= 0 else slope - 1
            for l in range(c if C > 1 else 0, c + 1 if C > 1 else L):
                add_unit(i, c, l, r, step, sums, e, f, a, de, df, da)
        for l in range(2 * L):
            sums[l] += grad[i, 0, l]
        for l in range(L):
            c = l if C > 1 else 0
            dg[i, l] = sums[L + l]
            for r in range(w):
                left = slope if e[i, c, r] >= 0 else 1.0
                add_unit(i, c, l, r, left, sums, e, f, a, de, df, da)


@functools.partial(cpu.jit, reorder=False)
def add_unit(i, c, l, r, factor, sums, e, f, a, de, df, da):
    L = a.shape[1]
    de[i, c, r] += a[i, l, r] * (factor * sums[l])
    df[i, c, r] += a[i, l, r] * (factor * sums[L + l])
    da[i, l, r] += factor * (e[i, c, r] * sums[l] + f[i, c, r] * sums[L + l])


@functools.partial(cpu.jit, reorder=False)
def cell_of(x, low, per_unit, highest):
    """A non-decreasing function of x, the same wherever it is used, so that a key of a lower cell
    is smaller than x; `highest` is the number of the last cell in the type of x. NaN goes to cell
    0. Neither branches nor signed indices, which would be counted from the end."""
    c, zero = (x - low) * per_unit, highest - highest
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
    unfinished, highest = np.int32(0), keys.dtype.type(len(start) - 2)
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
                first, last = interval[i] + 1, start[cell_of(u[i], low, per_unit, highest) + 1]
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
                off = nonneg and row[l] * x + row[L + l] <= 0  # and not > 0: NaN stays
                d = zero if off else grad[g, i, l]
                total += row[l] * d
                into[l] += x * d
                into[L + l] += d
            du[g, i] = total


# ---------------------------------------------------------------------- operators


def arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [t.detach().numpy() for t in tensors]


@torch.library.custom_op("luna::table", mutates_args=(), device_types="cpu")
def _table(
    e: Tensor, f: Tensor, a: Tensor, g: Tensor, keys: Tensor, order: Tensor, slope: float
) -> Tensor:
    """The table (G, K, 2 L) of `piecewise.tables`, in the dtype of the keys."""
    check_mlps(len(keys), e, f, a, g)
    table = keys.new_empty(len(g), keys.shape[1] + 1, 2 * g.shape[1])
    inputs = arrays(*(t.contiguous() for t in (e, f, a, g, order)))
    table_kernel(*inputs, slope, table.numpy())
    return table


@torch.library.custom_op("luna::table_backward", mutates_args=(), device_types="cpu")
def _table_backward(
    grad: Tensor, e: Tensor, f: Tensor, a: Tensor, order: Tensor, slope: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of e, f, a, g."""
    sums = [torch.zeros(t.shape, dtype=torch.float64) for t in (e, f, a, a[..., 0])]
    inputs = arrays(*(t.contiguous() for t in (grad, e, f, a, order)))
    table_backward_kernel(*inputs, slope, *arrays(*sums))
    de, df, da, dg = (t.to(a.dtype) for t in sums)
    return de, df, da, dg


@_table.register_fake
def _(e, f, a, g, keys, order, slope):
    return keys.new_empty(len(g), keys.shape[1] + 1, 2 * g.shape[1])


@_table_backward.register_fake
def _(grad, e, f, a, order, slope):
    return *(torch.empty_like(t) for t in (e, f, a)), a.new_empty(a.shape[:2])


def _save_table(ctx, inputs, output) -> None:
    e, f, a, _, _, order, ctx.slope = inputs
    ctx.save_for_backward(e, f, a, order)


def _through_table(ctx, grad: Tensor):
    return *_table_backward(grad, *ctx.saved_tensors, ctx.slope), None, None, None


_table.register_autograd(_through_table, setup_context=_save_table)
_table_backward.register_autograd(no_second_derivative)


@torch.library.custom_op("luna::grid", mutates_args=(), device_types="cpu")
def grid(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys with two infinite ones behind them, and make_grid's span and start."""
    span = keys.new_empty(len(keys), 2)
    start = torch.empty(len(keys), CELLS + 1, dtype=torch.int32, device=keys.device)
    make_grid(*arrays(keys, span, start))
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
    lines = tuple(arrays(table, keys, span, start))
    cpu.run(forward_kernel, G * -(-N // BLOCK), *arrays(u), lines, nonneg, *arrays(y, interval))
    return y, interval


@torch.library.custom_op("luna::scalar_mlp_backward", mutates_args=(), device_types="cpu")
def _lookup_backward(
    grad: Tensor, u: Tensor, table: Tensor, interval: Tensor, nonneg: bool
) -> tuple[Tensor, Tensor]:
    (G, N), (_, K, columns) = u.shape, table.shape
    du = torch.empty_like(u)
    parts = -(-N // (PART * BLOCK))
    sums = table.new_empty(G, parts, K, columns)
    inputs = arrays(grad, u, table, interval)
    cpu.run(backward_kernel, G * parts, *inputs, nonneg, *arrays(du, sums))
    return du, sums.sum(1, dtype=torch.float64).to(table.dtype)


@grid.register_fake
def _(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    G, K = keys.shape
    start = torch.empty(G, CELLS + 1, dtype=torch.int32, device=keys.device)
    return keys.new_empty(G, K + 2), keys.new_empty(G, 2), start


register(lookup, _lookup_backward)
