"""Exact evaluation of relu MLPs of one scalar as piecewise linear functions (see README.md).

K - 1 breakpoints of all channels together, sorted, cut the line into K intervals; on interval j
every channel is psi_l(u) = slope_jl u + intercept_jl. One binary search per scalar finds j; one
row of the table holds the slopes and intercepts of all channels there. Hidden units never exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import CustomOpDef

from luna.base import LunaError

SLOPES = {"relu": 0.0, "leaky_relu": 0.01}  # of the activation left of 0


def piecewise(u: Tensor, *mlps: Tensor, activation: str, nonneg: bool, chunk: int) -> Tensor:
    """psi (G, N, L) from tables made anew at every call; see `scalar_mlp` for the arguments."""
    e, f, a, g = mlps
    keys, table = tables(e, f, a, g, SLOPES[activation], u.dtype)
    L = table.shape[-1] // 2
    y, _ = _lookup(u.contiguous(), keys, table, nonneg, max(1, chunk // L))
    return y


def tables(
    e: Tensor, f: Tensor, a: Tensor, g: Tensor, slope: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Sorted keys (G, K-1) and table (G, K, 2L) of [slopes, intercepts], interval j holding the
    scalars that exceed exactly j keys. The table is differentiable; the keys need not be, psi
    being continuous.

    A unit is on where e u + f > 0. For e > 0 that is u > -f/e; for e < 0 it is u < -f/e, so that
    the unit is off for u >= -f/e, which is u > (the number before -f/e): with this key every
    comparison is the strict one, and an input on a breakpoint gets the derivative of the inactive
    side, as relu gives it. A unit with e = 0 is on everywhere (f > 0, key -inf) or nowhere (key
    inf).
    """
    keys, order = sorted_keys(e, f, dtype)
    e, f, a, g = (p.double() for p in (e, f, a, g))  # sums over w terms; rounded once, at the end
    rises = e >= 0

    # A unit's factor is `slope` or 1: what it is left of the key, and how it changes there.
    leftmost = 1 - (1 - slope) * rises.to(e.dtype)
    step = (1 - slope) * (2 * rises.to(e.dtype) - 1)
    parts = []
    for weight, constant in ((e, torch.zeros_like(g)), (f, g)):
        first = (a * (leftmost * weight)).sum(-1) + constant  # (G, L)
        jumps = (a * (step * weight)).mT  # (G, w, L), of unit r in channel l
        if e.shape[1] > 1:  # a breakpoint of one channel leaves the others alone
            jumps = jumps.unsqueeze(-1) * torch.eye(jumps.shape[-1], dtype=e.dtype, device=e.device)
        jumps = jumps.flatten(1, -2).take_along_dim(order.unsqueeze(-1), 1)  # (G, wC, L), sorted
        parts.append(torch.cat([first.unsqueeze(1), jumps], dim=1).cumsum(1))
    return keys, torch.cat(parts, dim=-1).to(dtype)


@torch.no_grad()
def sorted_keys(e: Tensor, f: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The keys (G, wC) and the units r C + c that they belong to."""
    keys = -(f.to(dtype) / e.to(dtype))
    keys = torch.where(e == 0, torch.where(f > 0, -torch.inf, torch.inf).to(dtype), keys)
    keys = torch.where(e >= 0, keys, keys.nextafter(keys.new_tensor(-torch.inf)))
    keys, order = keys.mT.flatten(1).sort(-1)
    return keys, order


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


def check_tables(u: Tensor, keys: Tensor, table: Tensor, more: int = 0) -> None:
    """Refuse tensors that do not fit together: kernels index raw memory. `more` infinite keys
    follow the last."""
    (G, K, columns), count = table.shape, table.shape[1] - 1 + more
    fits = u.dim() == 2 and len(u) == G and keys.shape == (G, count) and columns % 2 == 0
    if not (fits and u.dtype == keys.dtype == table.dtype and u.is_floating_point()):
        raise LunaError(
            f"scalars (G, N), keys (G, {count}) and a table (G, {K}, 2 L) of one dtype are needed, "
            f"got {u.dtype} {tuple(u.shape)}, {keys.dtype} {tuple(keys.shape)} and "
            f"{table.dtype} {tuple(table.shape)}"
        )


@torch.library.custom_op("luna::piecewise_linear", mutates_args=())
def _lookup(
    u: Tensor, keys: Tensor, table: Tensor, nonneg: bool, rows: int
) -> tuple[Tensor, Tensor]:
    """y (G, N, L) and, for backward, the interval of each scalar (G, N)."""
    L = table.shape[-1] // 2
    y = u.new_empty(*u.shape, L)
    interval = torch.empty_like(u, dtype=torch.int32)
    for at in _blocks(u, rows):
        j = torch.searchsorted(keys[at[0]], u[at], out_int32=True)
        line = table[at[0]].index_select(0, j)  # (n, 2L)
        torch.addcmul(line[:, L:], line[:, :L], u[at].unsqueeze(-1), out=y[at])
        interval[at] = j
    if nonneg:
        y.relu_()
    return y, interval


@torch.library.custom_op("luna::piecewise_linear_backward", mutates_args=())
def _lookup_backward(
    grad: Tensor,
    u: Tensor,
    table: Tensor,
    interval: Tensor,
    y: Tensor | None,
    nonneg: bool,
    rows: int,
) -> tuple[Tensor, Tensor]:
    """d/du: slope . grad. d/dtable: sums of u grad and of grad over an interval's scalars."""
    K, L = table.shape[1], table.shape[2] // 2
    du, dtable = torch.empty_like(u), torch.zeros_like(table)
    slopes = table[..., :L].contiguous()
    ids = torch.arange(K, dtype=torch.int32, device=u.device)
    for at in _blocks(u, rows):
        d = grad[at] if y is None else torch.ops.aten.threshold_backward(grad[at], y[at], 0)
        j = interval[at]
        du[at] = slopes[at[0]].index_select(0, j).mul_(d).sum(-1)
        # Sums over runs of the sorted intervals: faster than index_add, and always in one order.
        j, order = j.sort(stable=True)
        start = torch.searchsorted(j, ids)
        dtable[at[0], :, :L] += F.embedding_bag(
            order, d, start, mode="sum", per_sample_weights=u[at].take(order)
        )
        dtable[at[0], :, L:] += F.embedding_bag(order, d, start, mode="sum")
    return du, dtable


def _blocks(u: Tensor, rows: int) -> Iterator[tuple[int, slice]]:
    """Indices of the (G, N) scalars, one group and at most `rows` of them at a time."""
    for group in range(u.shape[0]):
        for start in range(0, u.shape[1], rows):
            yield group, slice(start, start + rows)


def no_second_derivative(ctx, *_: Any) -> None:
    raise LunaError("LUNA's kernels have no second derivatives: build LUNA with evaluate='dense'")


def register(
    lookup: CustomOpDef, lookup_backward: CustomOpDef, *, keeps_output: bool = False
) -> None:
    """Tell torch the shapes and gradients of lookup(u, ..., table, nonneg, ...), which returns y
    (G, N, L) and intervals (G, N). With `keeps_output` its backward takes y after the intervals, or
    None where nonneg is false."""

    def lookup_shapes(*inputs: Any) -> tuple[Tensor, Tensor]:
        u, *_, table = (t for t in inputs if isinstance(t, Tensor))
        return u.new_empty(*u.shape, table.shape[-1] // 2), torch.empty_like(u, dtype=torch.int32)

    def gradient_shapes(grad: Tensor, u: Tensor, table: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        return torch.empty_like(u), torch.empty_like(table)

    def save(ctx, inputs, output) -> None:
        u, *others, table = (t for t in inputs if isinstance(t, Tensor))
        ctx.others, ctx.options = [None] * len(others), inputs[len(others) + 2 :]
        y, interval = output
        ctx.mark_non_differentiable(interval)
        outputs = [y if ctx.options[0] else None] if keeps_output else []
        ctx.save_for_backward(u, table, interval, *outputs)

    def gradients(ctx, grad: Tensor, _):
        du, dtable = lookup_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.options)
        return du, *ctx.others, dtable, *[None] * len(ctx.options)

    lookup.register_fake(lookup_shapes)
    lookup_backward.register_fake(gradient_shapes)
    lookup.register_autograd(gradients, setup_context=save)
    lookup_backward.register_autograd(no_second_derivative)


register(_lookup, _lookup_backward, keeps_output=True)
