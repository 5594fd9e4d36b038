"""Exact evaluation of relu MLPs of one scalar as piecewise linear functions (see README.md).

K - 1 breakpoints of all channels together, sorted, cut the line into K intervals; on interval j
every channel is psi_l(u) = slope_jl u + intercept_jl. One search per scalar finds j; one row of the
table holds the slopes and intercepts of all channels there. Hidden units never exist.

The search and the multiply-add are one custom operator with two engines: numba on a CPU
(by_numba.py), elsewhere and without numba the torch operations below.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from luna.base import LunaError
from luna.kernels import cpu
from luna.kernels.checked import on_gpu

SLOPES = {"relu": 0.0, "leaky_relu": 0.01}  # of the activation left of 0
ROWS = 2**17  # scalars that torch's operations handle at once


def tables(
    e: Tensor, f: Tensor, a: Tensor, g: Tensor, slope: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Sorted keys (G, K-1) and table (G, K, 2L) of [slopes, intercepts], interval j holding the
    scalars that exceed exactly j keys. The table is differentiable; the keys need not be, psi
    being continuous."""
    if on_gpu(e.device.type) and dtype in (torch.float32, torch.float64):
        maps = (t.to(dtype).contiguous() for t in (e, f, a, g))
        keys, table, _ = _tables_on_gpu(*maps, slope)
        return keys, table
    keys, places = _sorted_keys(e, f, dtype)
    lines = torch.stack([e, f], 1).double()  # (G, 2, C, w): sums over w terms, rounded at the end
    rises = (e >= 0).unsqueeze(1)
    units = a.double().unsqueeze(1) * lines  # (G, 2, L, w): slopes and intercepts where they are on
    # A unit's factor is `slope` or 1: what it is left of its key, and how it changes there.
    leftmost = torch.where(rises, slope * units, units).sum(-1)
    leftmost = leftmost + F.pad(g.double().unsqueeze(1), (0, 0, 1, 0))
    jumps = torch.where(rises, (1 - slope) * units, (slope - 1) * units)
    changes = torch.cat([leftmost.unsqueeze(-1), jumps], -1)
    rows = F.pad(places + 1, (1, 0)).unsqueeze(1).expand_as(changes)
    empty = changes.new_zeros(*changes.shape[:3], keys.shape[1] + 1)
    table = empty.scatter(-1, rows, changes).cumsum(-1)  # (G, 2, L, K)
    return keys, table.flatten(1, 2).to(dtype).mT.contiguous()


@torch.no_grad()
def _sorted_keys(e: Tensor, f: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The keys (G, C w), and the place among them of each unit (G, C, w).

    A unit is on where e u + f > 0. For e > 0 that is u > -f/e; for e < 0 it is u < -f/e, so that
    the unit is off for u >= -f/e, which is u > (the number before -f/e): with this key every
    comparison is the strict one, and an input on a breakpoint gets the derivative of the inactive
    side, as relu gives it. A unit with e = 0 is on everywhere (f > 0, key -inf) or nowhere (key
    inf).
    """
    keys = -(f.to(dtype) / e.to(dtype))
    keys = torch.where(e == 0, torch.where(f > 0, -torch.inf, torch.inf).to(dtype), keys)
    keys = torch.where(e >= 0, keys, keys.nextafter(keys.new_tensor(-torch.inf)))
    keys, order = keys.flatten(1).sort(dim=-1, stable=True)
    ranks = torch.arange(keys.shape[1], device=e.device).expand_as(order)
    return keys, torch.empty_like(order).scatter(1, order, ranks).view(e.shape)


@torch.library.custom_op("luna::scalar_mlp_tables", mutates_args=())
def _tables_on_gpu(
    e: Tensor, f: Tensor, a: Tensor, g: Tensor, slope: float
) -> tuple[Tensor, Tensor, Tensor]:
    """keys, table and, for backward, the place of each unit among the keys (G, C w)."""
    from luna.kernels.scalar_mlp import by_triton

    keys, table, ranks = by_triton.tables(e, f, a, g, slope)
    return keys, table, ranks


@torch.library.custom_op("luna::scalar_mlp_tables_backward", mutates_args=())
def _tables_on_gpu_backward(
    dtable: Tensor, e: Tensor, f: Tensor, a: Tensor, ranks: Tensor, slope: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from luna.kernels.scalar_mlp import by_triton

    de, df, da, dg = by_triton.tables_backward(dtable, e, f, a, ranks, slope)
    return de, df, da, dg


@_tables_on_gpu.register_fake
def _(e, f, a, g, slope):
    G, C, w = e.shape
    keys = e.new_empty(G, C * w)
    table = e.new_empty(G, C * w + 1, 2 * g.shape[1])
    return keys, table, torch.empty_like(keys, dtype=torch.int32)


@_tables_on_gpu_backward.register_fake
def _(dtable, e, f, a, ranks, slope):
    return *(torch.empty_like(t) for t in (e, f, a)), a.new_empty(a.shape[:2])


def _save_tables(ctx, inputs, output) -> None:
    e, f, a, _, ctx.slope = inputs
    keys, _, ranks = output
    ctx.mark_non_differentiable(keys, ranks)
    ctx.save_for_backward(e, f, a, ranks)


def _tables_backward(ctx, _, dtable: Tensor, __):
    return *_tables_on_gpu_backward(dtable.contiguous(), *ctx.saved_tensors, ctx.slope), None


def check_mlps(groups: int, e: Tensor, f: Tensor, a: Tensor, g: Tensor) -> None:
    """Refuse parameters that do not fit together."""
    (G, L, w), C = (a.shape, e.shape[1]) if a.dim() == e.dim() == 3 else ((0, 0, 0), 0)
    fits = groups == G and C in (1, L) and e.shape == f.shape == (G, C, w) and g.shape == (G, L)
    tensors = {"e": e, "f": f, "a": a, "g": g}
    if not (fits and all(t.is_floating_point() for t in tensors.values())):
        each = ", ".join(f"{name} {t.dtype} {tuple(t.shape)}" for name, t in tensors.items())
        raise LunaError(
            "scalar MLPs need e, f (G, 1 or L, w), a (G, L, w) and g (G, L) of floating-point "
            f"numbers, G = {groups}; got {each}"
        )


# ---------------------------------------------------------------------- the operator


@torch.library.custom_op("luna::scalar_mlp", mutates_args=())
def look_up(
    u: Tensor,
    keys: Tensor,
    table: Tensor,
    nonneg: bool,
    span: Tensor | None = None,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """y (G, N, L) and, for backward, the interval of each scalar (G, N). Many calls with the same
    keys may be given what `by_numba.grid` makes of them: keys, span and start."""
    G, K, columns = table.shape
    gridded = span is not None
    fits = u.dim() == 2 and len(u) == G and keys.shape == (G, K - 1 + 2 * gridded)
    fits = fits and u.is_floating_point() and u.dtype == keys.dtype == table.dtype
    if not fits:  # the kernels index raw memory
        raise LunaError(
            f"scalars (G, N), keys (G, {K - 1}) and a table (G, {K}, 2 L) of one dtype are needed, "
            f"got {u.dtype} {tuple(u.shape)}, {keys.dtype} {tuple(keys.shape)} and "
            f"{table.dtype} {tuple(table.shape)}"
        )
    y = u.new_empty(*u.shape, columns // 2)
    interval = torch.empty_like(u, dtype=torch.int32)
    if cpu.runs_on(u):
        from luna.kernels.scalar_mlp import by_numba

        grid = by_numba.grid(keys) if span is None or start is None else (keys, span, start)
        by_numba.look_up(u, table, grid, nonneg, y, interval)
        return y, interval
    L = columns // 2
    for at in _blocks(u):
        j = torch.searchsorted(keys[at[0]], u[at], out_int32=True)
        line = table[at[0]].index_select(0, j)  # (n, 2L)
        torch.addcmul(line[:, L:], line[:, :L], u[at].unsqueeze(-1), out=y[at])
        interval[at] = j
    return (y.relu_() if nonneg else y), interval


@torch.library.custom_op("luna::scalar_mlp_backward", mutates_args=())
def _look_up_backward(
    grad: Tensor, u: Tensor, table: Tensor, interval: Tensor, nonneg: bool
) -> tuple[Tensor, Tensor]:
    """d/du: slope . grad. d/dtable: sums of u grad and of grad over an interval's scalars."""
    if cpu.runs_on(u):
        from luna.kernels.scalar_mlp import by_numba

        return by_numba.look_up_backward(grad, u, table, interval, nonneg)
    K, L = table.shape[1], table.shape[2] // 2
    du, dtable = torch.empty_like(u), torch.zeros_like(table)
    for at in _blocks(u):
        j, d = interval[at], grad[at]
        line = table[at[0]].index_select(0, j)
        if nonneg:
            y = torch.addcmul(line[:, L:], line[:, :L], u[at].unsqueeze(-1))
            d = torch.ops.aten.threshold_backward(d, y, 0)
        du[at] = (line[:, :L] * d).sum(-1)
        # Sums over runs of the sorted intervals: faster than index_add, and always in one order.
        j, order = j.sort(stable=True)
        start = torch.searchsorted(j, torch.arange(K, dtype=torch.int32, device=u.device))
        dtable[at[0], :, :L] += F.embedding_bag(
            order, d, start, mode="sum", per_sample_weights=u[at].take(order)
        )
        dtable[at[0], :, L:] += F.embedding_bag(order, d, start, mode="sum")
    return du, dtable


def _blocks(u: Tensor) -> Iterator[tuple[int, slice]]:
    """Indices of the (G, N) scalars, one group and at most ROWS of them at a time."""
    for group in range(u.shape[0]):
        for start in range(0, u.shape[1], ROWS):
            yield group, slice(start, start + ROWS)


@look_up.register_fake
def _(u, keys, table, nonneg, span=None, start=None):
    return u.new_empty(*u.shape, table.shape[-1] // 2), torch.empty_like(u, dtype=torch.int32)


@_look_up_backward.register_fake
def _(grad, u, table, interval, nonneg):
    return torch.empty_like(u), torch.empty_like(table)


def _save(ctx, inputs, output) -> None:
    u, _, table, ctx.nonneg, *_ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(u, table, output[1])


def _backward(ctx, grad: Tensor, _):
    du, dtable = _look_up_backward(grad.contiguous(), *ctx.saved_tensors, ctx.nonneg)
    return du, None, dtable, None, None, None


def no_second_derivative(ctx, *_: Any) -> None:
    raise LunaError("LUNA's kernels have no second derivatives: build LUNA with evaluate='dense'")


_tables_on_gpu.register_autograd(_tables_backward, setup_context=_save_tables)
_tables_on_gpu_backward.register_autograd(no_second_derivative)
look_up.register_autograd(_backward, setup_context=_save)
_look_up_backward.register_autograd(no_second_derivative)
