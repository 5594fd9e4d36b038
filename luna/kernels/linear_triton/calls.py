"""Linear attention for GPUs, in Triton: blocks of tokens, features never stored.

With V = [v 1], features phi and gradients dN, dc of a query's sums, for all keys

    S, z = phi(K)^T V            N, c = phi(Q) S, phi(Q) z
    dS, dz = phi(Q)^T [dN dc]    dphi(Q) = dN S^T + dc z^T
    dV = phi(K) dS               dphi(K) = V dS^T + 1 dz^T

and what causal attention adds, for blocks of tokens with S, z the sums over all keys before a block
and R, r those over all queries after it:

    A = tril(phi(Q) phi(K)^T)    dA = tril(dN V^T + dc 1^T)              inside the block
    N = phi(Q) S + A V           c = phi(Q) z + A 1
    dphi(Q) = dN S^T + dc z^T + dA phi(K)
    dphi(K) = V R^T + 1 r^T + dA^T phi(Q)      dV = phi(K) R + A^T dN

Sums over segments are written one by one and added in order. What a feature map adds to its
parameters' gradients is its own affair (shape.py).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from luna.kernels.compiled import PASSES, STATES
from luna.kernels.linear_triton.passes import (
    keys_backward_kernel,
    keys_kernel,
    queries_backward_kernel,
    queries_kernel,
    states_kernel,
)
from luna.kernels.linear_triton.shape import Shape

COPIES = 64  # of shared results that additions are spread over, of all groups together


class Call:
    """One call: its shape, how it is cut up, and its tensors as the kernels take them."""

    def __init__(self, shape: Shape, q: Tensor, v: Tensor, maps: tuple[Tensor, ...], segment: int):
        self.shape = shape
        self.maps = tuple(t.contiguous() for t in maps)
        self.B, self.H, self.n, _ = q.shape
        self.D, self.e = shape.M.value * shape.L.value, v.shape[3]
        self.segments = triton.cdiv(self.n, segment)
        self.units = self.B * self.H * self.segments
        self.copies = self.units if shape.ordered else min(self.units, COPIES)
        self.copies = max(1, self.copies // shape.groups.value)
        self.sizes = (self.H, self.n, segment, self.copies)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, results: tuple[Tensor, ...]
    ) -> None:
        """Fill out, c, S and z."""
        out, c, S, z = results
        units = self._sums(z)
        inputs = rows_of(k), rows_of(v), mask.contiguous(), self.maps
        with torch.cuda.device_of(v):
            self._run(keys_kernel, *inputs, units, self.sizes)
            self._add_up(units, S, z)
            self._run(queries_kernel, rows_of(q), *inputs, (S, z), rows_of(out), c, self.sizes)

    def backward(
        self,
        grad: Tensor,
        inputs: tuple[Tensor, ...],
        results: tuple[Tensor, ...],
        gradients: tuple[Tensor, ...],
        of_map: tuple[tuple[Tensor, ...], tuple[Tensor, ...]],
    ) -> None:
        """Fill the gradients of q, k, v, and what the feature map leaves in the pass over queries
        and in that over keys."""
        q, k, v, mask = inputs
        out, c, S, z = results
        dq, dk, dv = gradients
        causal = bool(self.shape.causal)
        units = self._sums(z)
        R, r = torch.empty_like(S), torch.empty_like(z)
        dc = torch.empty_like(c) if causal else c  # kept for the keys, where they need it
        rows = rows_of(grad), rows_of(q), rows_of(k), rows_of(v)
        mask = mask.contiguous()
        with torch.cuda.device_of(v):
            self._run(
                queries_backward_kernel,
                *(*rows, rows_of(out), mask, self.maps),
                *((S, z, c), (units, dc)),
                *(rows_of(dq), of_map[0], self.sizes),
            )
            self._add_up(units, R, r, later=True)
            self._run(
                keys_backward_kernel,
                *(*rows, mask, self.maps),
                (R, r, c, dc),
                *(rows_of(dk), rows_of(dv), of_map[1], self.sizes),
            )

    def _run(self, kernel: Any, *arguments: Any) -> None:
        s = self.shape
        kernel[(self.units,)](*arguments, s=s, num_warps=s.warps, **PASSES)

    def _sums(self, like: Tensor) -> Tensor:
        """Memory for one S and z for each unit."""
        return like.new_empty(self.units, self.D * (self.e + 1))

    def _add_up(self, units: Tensor, S: Tensor, z: Tensor, *, later: bool = False) -> None:
        """Fill S, z with the sums of units as the states that units start from: (B, H, D, .), or,
        causal, those of earlier (or later) segments of the sequence, (B, H, segments D, .)."""
        grid = self.B * self.H, self.D
        causal = bool(self.shape.causal)
        states_kernel[grid](
            units, S, z, self.segments, CAUSAL=causal, LATER=later, s=self.shape, **STATES
        )


def rows_of(t: Tensor) -> tuple[Tensor, int, int, int]:
    if t.stride(-1) != 1:
        t = t.contiguous()
    of_b, of_h, of_n, _ = t.stride()
    return t, of_b, of_h, of_n
