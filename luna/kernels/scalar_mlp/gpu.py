"""The piecewise linear evaluation for GPUs, in Triton: a search, a table row, a multiply-add.

The table's gradient is a histogram: each program adds to one of COPIES tables with atomic
additions, whose order is not fixed. Under `torch.use_deterministic_algorithms(True)` the plain
torch version is taken instead.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from luna.kernels.scalar_mlp.piecewise import (
    SLOPES,
    check_tables,
    piecewise,
    register,
    tables,
)

BLOCK = 256  # scalars of a program
COPIES = 64  # tables that atomic additions are spread over


def gpu(u: Tensor, *mlps: Tensor, activation: str, nonneg: bool, chunk: int) -> Tensor:
    """psi (G, N, L); see `scalar_mlp` for the arguments."""
    if torch.are_deterministic_algorithms_enabled():
        return piecewise(u, *mlps, activation=activation, nonneg=nonneg, chunk=chunk)
    e, f, a, g = mlps
    keys, table = tables(e, f, a, g, SLOPES[activation], u.dtype)
    y, _ = _lookup(u.contiguous(), keys.contiguous(), table.contiguous(), nonneg)
    return y


@triton.jit
def search(u, keys_ptr, n_keys, STEPS: tl.constexpr):
    """The number of keys smaller than u: halving steps to the largest j with keys[j - 1] < u."""
    j = tl.zeros(u.shape, tl.int32)
    for step in range(STEPS):
        ahead = j + (2**STEPS >> (step + 1))
        real = ahead <= n_keys
        key = tl.load(keys_ptr + ahead - 1, mask=real, other=float("inf"))
        j = tl.where(real & (key < u), ahead, j)
    return j


@triton.jit
def _forward(
    u_ptr, keys_ptr, table_ptr, y_ptr, interval_ptr, N, n_keys,
    L: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, NONNEG: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    g = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    u = tl.load(u_ptr + g * N + i, mask=inside, other=0.0)

    j = search(u, keys_ptr + g * n_keys, n_keys, STEPS)
    tl.store(interval_ptr + g * N + i, j, mask=inside)

    l = tl.arange(0, COLUMNS)
    tile = inside[:, None] & (l < L)[None, :]
    row = (g * (n_keys + 1) + j) * (2 * L)
    slope = tl.load(table_ptr + row[:, None] + l[None, :], mask=tile, other=0.0)
    intercept = tl.load(table_ptr + row[:, None] + L + l[None, :], mask=tile, other=0.0)
    y = slope * u[:, None] + intercept
    if NONNEG:
        y = tl.where(y < 0, 0.0, y)  # and not maximum(): NaN stays
    tl.store(y_ptr + (g * N + i)[:, None] * L + l[None, :], y, mask=tile)


@triton.jit
def _backward_kernel(
    grad_ptr, u_ptr, table_ptr, interval_ptr, du_ptr, dtable_ptr, N, K,
    L: tl.constexpr, COLUMNS: tl.constexpr, NONNEG: tl.constexpr, COPIES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    g = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    u = tl.load(u_ptr + g * N + i, mask=inside, other=0.0)
    j = tl.load(interval_ptr + g * N + i, mask=inside, other=0)

    l = tl.arange(0, COLUMNS)
    tile = inside[:, None] & (l < L)[None, :]
    row = (g * K + j) * (2 * L)
    slope = tl.load(table_ptr + row[:, None] + l[None, :], mask=tile, other=0.0)
    d = tl.load(grad_ptr + (g * N + i)[:, None] * L + l[None, :], mask=tile, other=0.0)
    if NONNEG:
        intercept = tl.load(table_ptr + row[:, None] + L + l[None, :], mask=tile, other=0.0)
        d = tl.where(slope * u[:, None] + intercept <= 0, 0.0, d)  # NaN stays
    tl.store(du_ptr + g * N + i, tl.sum(slope * d, 1), mask=inside)

    copy = tl.program_id(0) % COPIES
    into = dtable_ptr + ((g * COPIES + copy) * K + j)[:, None] * (2 * L) + l[None, :]
    tl.atomic_add(into, u[:, None] * d, mask=tile)
    tl.atomic_add(into + L, d, mask=tile)


@torch.library.custom_op("luna::scalar_mlp_gpu", mutates_args=())
def _lookup(u: Tensor, keys: Tensor, table: Tensor, nonneg: bool) -> tuple[Tensor, Tensor]:
    """y (G, N, L) and, for backward, the interval of each scalar (G, N)."""
    check_tables(u, keys, table)
    (G, N), L = u.shape, table.shape[-1] // 2
    y = u.new_empty(G, N, L)
    interval = torch.empty_like(u, dtype=torch.int32)
    _forward[(triton.cdiv(N, BLOCK), G)](
        u, keys, table, y, interval, N, keys.shape[1],
        L=L, COLUMNS=triton.next_power_of_2(L), STEPS=keys.shape[1].bit_length(),
        NONNEG=nonneg, BLOCK=BLOCK,
    )  # fmt: skip
    return y, interval


@torch.library.custom_op("luna::scalar_mlp_gpu_backward", mutates_args=())
def _lookup_backward(
    grad: Tensor, u: Tensor, table: Tensor, interval: Tensor, nonneg: bool
) -> tuple[Tensor, Tensor]:
    (G, N), (_, K, columns) = u.shape, table.shape
    du, L = torch.empty_like(u), columns // 2
    sums = table.new_zeros(G, COPIES, K, columns)
    _backward_kernel[(triton.cdiv(N, BLOCK), G)](
        grad, u, table, interval, du, sums, N, K,
        L=L, COLUMNS=triton.next_power_of_2(L), NONNEG=nonneg, COPIES=COPIES, BLOCK=BLOCK,
    )  # fmt: skip
    return du, sums.sum(1, dtype=torch.float64).to(table.dtype)


register(_lookup, _lookup_backward)
