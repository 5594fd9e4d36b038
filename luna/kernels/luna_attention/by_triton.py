"""LUNA's attention for GPUs, in Triton: blocks of tokens, features never stored.

The passes and equations are those of by_numba.py; what causal attention adds, for blocks of tokens
with S, z the sums over all keys before a block and R, r those over all queries after it:

    A = tril(phi(Q) phi(K)^T)    dA = tril(dN V^T + dc 1^T)              inside the block
    N = phi(Q) S + A V           c = phi(Q) z + A 1
    dphi(Q) = dN S^T + dc z^T + dA phi(K)
    dphi(K) = V R^T + 1 r^T + dA^T phi(Q)      dV = phi(K) R + A^T dN

Sums over segments are written one by one and added by torch, in order. Only the gradient of the
table is scattered, by atomic additions into COPIES tables. README.md beside this file has the
layout.
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
)

COPIES = 64  # tables that atomic additions are spread over, of all groups together


class Work:
    """One call: its shape, how it is cut up, and its tensors as the kernels take them."""

    def __init__(self, q: Tensor, v: Tensor, maps: list[Tensor], options: tuple, segment: int):
        self.shape = s = shape_of(v, maps[0], maps[3], *options)
        self.maps = tuple(t.contiguous() for t in maps)
        self.B, self.H, self.n, _ = q.shape
        self.segments = triton.cdiv(self.n, segment)
        self.units = self.B * self.H * self.segments
        self.sizes = (self.H, self.n, segment)
        self.warps = 4 if s.D.value <= 128 else 8

    def run(self, kernel: Any, *arguments: Any) -> None:
        # One stage: loads in flight ahead of their block would take registers that there are not.
        kernel[(self.units,)](*arguments, s=self.shape, num_warps=self.warps, num_stages=1)

    def partial(self, *shape: int) -> Tensor:
        """Memory for one result per unit."""
        return self.maps[-1].new_empty(self.B, self.H, self.segments, *shape)

    def states(self, t: Tensor, *, later: bool = False) -> Tensor:
        """Sums of units (B, H, segments, D, .) as the states that units start from, (B, H, D, .);
        causal, those of earlier (or later) segments of the sequence, (B, H, segments D, .)."""
        if not self.shape.causal:
            return t.sum(2)
        order = range(self.segments - 1, -1, -1) if later else range(self.segments)
        states = torch.empty_like(t)
        total = torch.zeros_like(t[:, :, 0])
        for i in order:  # a loop: cumsum has no fixed order on GPUs, and segments are few
            states[:, :, i] = total
            total = total + t[:, :, i]
        return states.flatten(2, 3)


def _rows(t: Tensor) -> tuple[Tensor, int, int, int]:
    if t.stride(-1) != 1:
        t = t.contiguous()
    of_b, of_h, of_n, _ = t.stride()
    return t, of_b, of_h, of_n


def forward(arguments: tuple, results: tuple[Tensor, ...], segment: int) -> None:
    q, k, v, mask, *maps, causal, output, eps = arguments
    out, c, S, z = results
    work = Work(q, v, maps, (causal, output, eps), segment)
    W, table = maps[0], maps[3]
    D = W.shape[1] * table.shape[2] // 2
    S_units = work.partial(D, v.shape[3])
    z_units = work.partial(D)
    inputs = _rows(k), _rows(v), mask.contiguous(), work.maps
    with torch.cuda.device_of(v):
        work.run(keys_kernel, *inputs, S_units, z_units, *work.sizes)
        S.copy_(work.states(S_units))
        z.copy_(work.states(z_units))
        work.run(queries_kernel, _rows(q), *inputs, S, z, _rows(out), c, *work.sizes)


def backward(arguments: tuple, gradients: tuple[Tensor, ...], segment: int) -> None:
    grad, q, k, v, mask, *maps, out, c, S, z, causal, output, eps = arguments
    dq, dk, dv, *dmaps = gradients
    work = Work(q, v, maps, (causal, output, eps), segment)
    W, table = maps[0], maps[3]
    G = len(W)
    D = W.shape[1] * table.shape[2] // 2

    # What each unit leaves: dS, dz, and the gradients of W and bias by both passes.
    dS = work.partial(D, v.shape[3])
    dz = work.partial(D)
    dW = table.new_empty(2, *dz.shape[:3], *W.shape[1:])
    dbias = dW.new_empty(dW.shape[:-1])
    copies = max(1, min(work.units, COPIES) // G)
    dtable = table.new_zeros(G, copies, *table.shape[1:])

    inputs = _rows(grad), _rows(q), _rows(k), _rows(v), mask.contiguous(), work.maps
    with torch.cuda.device_of(v):
        work.run(
            queries_backward_kernel,
            *inputs,
            S,
            z,
            _rows(out),
            c,
            dS,
            dz,
            _rows(dq),
            dW[0],
            dbias[0],
            dtable,
            *work.sizes,
            copies,
        )
        work.run(
            keys_backward_kernel,
            *inputs,
            _rows(out),
            c,
            work.states(dS, later=True),
            work.states(dz, later=True),
            _rows(dk),
            _rows(dv),
            dW[1],
            dbias[1],
            dtable,
            *work.sizes,
            copies,
        )

    # The units' gradients are added in order; with parameters per head those of a head alone.
    units = (0, 1, 3) if G > 1 else (0, 1, 2, 3)  # of (2, B, H, segments, ...)
    sums = (
        dW.sum(units, dtype=torch.float64),
        dbias.sum(units, dtype=torch.float64),
        dtable.sum(1),
    )
    for total, gradient in zip(sums, dmaps, strict=True):
        gradient.copy_(total.view_as(gradient))
