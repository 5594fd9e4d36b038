"""LUNA's attention for GPUs, in Triton: blocks of tokens, features never stored.

The passes and equations are those of by_numba.py; what causal attention adds, for blocks of tokens
with S, z the sums over all keys before a block and R, r those over all queries after it:

    A = tril(phi(Q) phi(K)^T)    dA = tril(dN V^T + dc 1^T)              inside the block
    N = phi(Q) S + A V           c = phi(Q) z + A 1
    dphi(Q) = dN S^T + dc z^T + dA phi(K)
    dphi(K) = V R^T + 1 r^T + dA^T phi(Q)      dV = phi(K) R + A^T dN

Sums over segments are written one by one and added in order. Only the gradient of the table is
scattered, by atomic additions into COPIES tables, or in order into one for each unit. README.md
beside this file has the layout.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from luna.kernels.luna_attention.triton_blocks import shape_of
from luna.kernels.luna_attention.triton_kernels import (
    keys_backward_kernel,
    keys_kernel,
    queries_backward_kernel,
    queries_kernel,
    states_kernel,
)

COPIES = 64  # tables that atomic additions are spread over, of all groups together


class Work:
    """One call: its shape, how it is cut up, and its tensors as the kernels take them."""

    def __init__(self, q: Tensor, v: Tensor, maps: list[Tensor], options: tuple, segment: int):
        self.shape = shape_of(v, maps[0], maps[3], *options)
        self.maps = tuple(t.contiguous() for t in maps)
        W, table = maps[0], maps[3]
        self.B, self.H, self.n, self.d = q.shape
        self.D, self.e = W.shape[1] * table.shape[2] // 2, v.shape[3]
        self.segments = triton.cdiv(self.n, segment)
        self.units = self.B * self.H * self.segments
        G = len(maps[0])
        copies = self.units if self.shape.ordered else min(self.units, COPIES)
        self.sizes = (self.H, self.n, segment, max(1, copies // G))

    def run(self, kernel: Any, *arguments: Any) -> None:
        # One stage: loads in flight ahead of their block would take registers that there are not.
        s = self.shape
        kernel[(self.units,)](*arguments, s=s, num_warps=s.warps, num_stages=1)

    def numbers(self, *shape: int) -> Tensor:
        """Memory in the precision of the computation."""
        return self.maps[-1].new_empty(shape)

    def sums(self) -> Tensor:
        """Memory for one S and z for each unit."""
        return self.numbers(self.units, self.D * (self.e + 1))

    def add_up(self, units: Tensor, S: Tensor, z: Tensor, *, later: bool = False) -> None:
        """Fill S, z with the sums of units as the states that units start from: (B, H, D, .), or,
        causal, those of earlier (or later) segments of the sequence, (B, H, segments D, .)."""
        grid = self.B * self.H, self.D
        causal = bool(self.shape.causal)
        states_kernel[grid](
            units, S, z, self.segments, CAUSAL=causal, LATER=later, s=self.shape, num_warps=1
        )


def _rows(t: Tensor) -> tuple[Tensor, int, int, int]:
    if t.stride(-1) != 1:
        t = t.contiguous()
    of_b, of_h, of_n, _ = t.stride()
    return t, of_b, of_h, of_n


def forward(arguments: tuple, results: tuple[Tensor, ...], segment: int) -> None:
    q, k, v, mask, *maps, causal, output, eps, divided = arguments
    out, c, S, z = results
    work = Work(q, v, maps, (causal, output, eps, divided), segment)
    units = work.sums()
    inputs = _rows(k), _rows(v), mask.contiguous(), work.maps
    with torch.cuda.device_of(v):
        work.run(keys_kernel, *inputs, units, work.sizes)
        work.add_up(units, S, z)
        work.run(queries_kernel, _rows(q), *inputs, (S, z), _rows(out), c, work.sizes)


def backward(arguments: tuple, gradients: tuple[Tensor, ...], segment: int) -> None:
    grad, q, k, v, mask, *maps, out, c, S, z, causal, output, eps, divided = arguments
    dq, dk, dv, dW, dbias, dtable = gradients
    work = Work(q, v, maps, (causal, output, eps, divided), segment)
    G, M, d = maps[0].shape

    # What each unit leaves: dS, dz, and the gradients [dW, dbias] by both passes.
    units = work.sums()
    R, r = torch.empty_like(S), torch.empty_like(z)
    dc = torch.empty_like(c) if causal else c  # kept for the keys, where they need it
    dmaps = work.numbers(2, work.B, work.H, work.segments, M, d + 1)
    tables = dtable.new_zeros(G, work.sizes[-1], *dtable.shape[1:])

    rows = _rows(grad), _rows(q), _rows(k), _rows(v)
    mask = mask.contiguous()
    with torch.cuda.device_of(v):
        work.run(
            queries_backward_kernel,
            *(*rows, _rows(out), mask, work.maps),
            (S, z, c),
            _rows(dq),
            (units, dc, dmaps[0], tables),
            work.sizes,
        )
        work.add_up(units, R, r, later=True)
        work.run(
            keys_backward_kernel,
            *(*rows, mask, work.maps),
            (R, r, c, dc),
            *(_rows(dk), _rows(dv)),
            (dmaps[1], tables),
            work.sizes,
        )

    # The units' gradients are added in order; with parameters per head those of a head alone.
    of_units = (0, 1, 3) if G > 1 else (0, 1, 2, 3)  # of (2, B, H, segments, ...)
    total = dmaps.sum(of_units, dtype=torch.float64).view(G, M, d + 1)
    dW.copy_(total[..., :-1])
    dbias.copy_(total[..., -1])
    torch.sum(tables, 1, out=dtable)
