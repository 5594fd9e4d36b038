"""The piecewise linear evaluation in machine code: one pass over the scalars, on the CPU.

The table is that of piecewise.py; so is the meaning. A grid of cells stands before the binary
search: which keys a scalar's cell holds is known beforehand, and mostly there are none or one.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from luna.kernels import cpu
from luna.kernels.scalar_mlp.piecewise import SLOPES, tables

CELLS = 2048
BLOCK = 4096  # scalars of a task
PART = 8  # blocks whose table gradients are summed in working precision before float64 takes over


def compiled(
    u: Tensor,
    e: Tensor,
    f: Tensor,
    a: Tensor,
    g: Tensor,
    *,
    activation: str = "relu",
    nonneg: bool = False,
    chunk: int = 0,
) -> Tensor:
    """psi (G, N, L); see `scalar_mlp` for the arguments. Needs no chunks: nothing is transient."""
    dtype = u.dtype
    if dtype in (torch.float16, torch.bfloat16):
        u = u.float()
    keys, table = tables(e, f, a, g, SLOPES[activation], u.dtype)
    y, _ = _lookup(u.contiguous(), keys, table, nonneg)
    return y.to(dtype)


# ---------------------------------------------------------------------- kernels


@functools.partial(cpu.jit, reorder=False)
def cell_of(x, low, per_unit):
    """A non-decreasing function of x, the same wherever it is used, so that a key of a lower cell
    is smaller than x. NaN goes to cell 0."""
    c = (x - low) * per_unit
    if not c > 0:
        return 0
    return CELLS - 1 if c >= CELLS else int(c)


@cpu.jit
def make_grid(keys, span, start):
    """span (G, 2): low end and cells per unit; start[g, c]: keys in cells before c."""
    for g in range(keys.shape[0]):
        finite = keys[g][np.isfinite(keys[g])]
        low, per_unit = 0.0, 0.0
        if len(finite) > 0:  # without the outermost fiftieths: breakpoints have long tails
            cut = len(finite) // 50
            low, high = finite[cut], finite[len(finite) - 1 - cut]
            if high > low:
                per_unit = CELLS / (high - low)
        span[g, 0], span[g, 1] = low, per_unit
        start[g] = 0
        for key in keys[g]:
            start[g, cell_of(key, span[g, 0], span[g, 1]) + 1] += 1
        for c in range(CELLS):
            start[g, c + 1] += start[g, c]


@cpu.jit
def interval_of(x, keys, low, per_unit, start):
    """The number of keys smaller than x."""
    c = cell_of(x, low, per_unit)
    first, last = start[c], start[c + 1]
    while first < last:
        middle = (first + last) >> 1
        if keys[middle] < x:
            first = middle + 1
        else:
            last = middle
    return first


@cpu.jit
def forward_kernel(first, last, u, keys, table, span, start, nonneg, y, interval):
    N, L = u.shape[1], y.shape[2]
    blocks = (N + BLOCK - 1) // BLOCK
    for task in range(first, last):
        g, block = task // blocks, task % blocks
        for i in range(block * BLOCK, min(N, (block + 1) * BLOCK)):
            x = u[g, i]
            j = interval_of(x, keys[g], span[g, 0], span[g, 1], start[g])
            interval[g, i] = j
            row, out = table[g, j], y[g, i]
            for l in range(L):
                out[l] = row[l] * x + row[L + l]
            if nonneg:
                for l in range(L):
                    if out[l] < 0:  # and not max(): NaN stays
                        out[l] = 0


@cpu.jit
def backward_kernel(first, last, grad, u, table, interval, nonneg, du, dtable):
    """A task is a part: its blocks' sums go into dtable[g, part]."""
    N, L, parts = u.shape[1], grad.shape[2], dtable.shape[1]
    d = np.empty(L, grad.dtype)
    for task in range(first, last):
        g, part = task // parts, task % parts
        sums = dtable[g, part]
        sums[:] = 0
        for i in range(part * PART * BLOCK, min(N, (part + 1) * PART * BLOCK)):
            x, j = u[g, i], interval[g, i]
            row, into = table[g, j], sums[j]
            for l in range(L):
                d[l] = grad[g, i, l]
            if nonneg:
                for l in range(L):
                    if not row[l] * x + row[L + l] > 0:
                        d[l] = 0
            total = u.dtype.type(0)
            for l in range(L):
                total += row[l] * d[l]
                into[l] += x * d[l]
                into[L + l] += d[l]
            du[g, i] = total


def grid(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    span = np.empty((len(keys), 2), keys.dtype)
    start = np.empty((len(keys), CELLS + 1), np.int32)
    make_grid(keys, span, start)
    return span, start


# ---------------------------------------------------------------------- operators


@torch.library.custom_op("luna::scalar_mlp", mutates_args=(), device_types="cpu")
def _lookup(u: Tensor, keys: Tensor, table: Tensor, nonneg: bool) -> tuple[Tensor, Tensor]:
    """y (G, N, L) and, for backward, the interval of each scalar (G, N)."""
    G, N = u.shape
    y = u.new_empty(G, N, table.shape[-1] // 2)
    interval = torch.empty_like(u, dtype=torch.int32)
    given = [t.detach().numpy() for t in (u, keys, table)]
    span, start = grid(given[1])
    outputs = y.numpy(), interval.numpy()
    cpu.run(forward_kernel, G * -(-N // BLOCK), *given, span, start, nonneg, *outputs)
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


@_lookup.register_fake
def _(u: Tensor, keys: Tensor, table: Tensor, nonneg: bool) -> tuple[Tensor, Tensor]:
    y = u.new_empty(*u.shape, table.shape[-1] // 2)
    return y, torch.empty_like(u, dtype=torch.int32)


@_lookup_backward.register_fake
def _(
    grad: Tensor, u: Tensor, table: Tensor, interval: Tensor, nonneg: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(u), torch.empty_like(table)


def _save(ctx, inputs, output) -> None:
    u, _, table, ctx.nonneg = inputs
    _, interval = output
    ctx.mark_non_differentiable(interval)
    ctx.save_for_backward(u, table, interval)


def _backward(ctx, grad: Tensor, _):
    u, table, interval = ctx.saved_tensors
    du, dtable = _lookup_backward(grad.contiguous(), u, table, interval, ctx.nonneg)
    return du, None, dtable, None


_lookup.register_autograd(_backward, setup_context=_save)
