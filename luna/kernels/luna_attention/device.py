"""Launches the GPU kernels: one program per segment, and the sums over segments in between."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from luna.kernels.luna_attention.gpu import (
    keys_backward_kernel,
    keys_kernel,
    queries_backward_kernel,
    queries_kernel,
)
from luna.kernels.luna_attention.segments import empty_rows_like, segment_of
from luna.kernels.luna_attention.tiles import Shape

COPIES = 64  # tables that atomic additions are spread over, of all groups together


class Work:
    """One call: its shape, how it is cut up, and its tensors as the kernels take them."""

    def __init__(
        self, q: Tensor, v: Tensor, maps: tuple[Tensor, ...], causal: bool, output: int, eps: float
    ):
        W, _, _, table = maps
        self.shape = s = Shape.of(v, W, table, causal, output, eps)
        self.maps = tuple(t.contiguous() for t in maps)
        self.B, self.H, self.n, _ = q.shape
        self.segment = segment_of(self.B * self.H * self.n, s.BLOCK.value)
        self.segments = triton.cdiv(self.n, self.segment)
        self.units = self.B * self.H * self.segments
        self.sizes = (self.H, self.n, self.segment)
        self.warps = 4 if s.D.value <= 128 else 8

    def run(self, kernel: Any, *arguments: Any, **options: Any) -> None:
        # One stage: loads in flight ahead of their block would take registers that there are not.
        options |= {"num_warps": self.warps, "num_stages": 1}
        kernel[(self.units,)](*arguments, s=self.shape, **options)

    def partial(self, *shape: int) -> Tensor:
        """Memory for one result per unit."""
        table = self.maps[-1]
        return table.new_empty(self.B, self.H, self.segments, *shape)

    def states(self, t: Tensor, *, later: bool = False) -> Tensor:
        """Sums of units (B, H, segments, D, .) as the states that units start from, (B, H, D, .);
        causal, those of earlier (or later) segments of the sequence, (B, H, segments D, .)."""
        if not self.shape.causal:
            return t.sum(2)
        order = range(self.segments - 1, -1, -1) if later else range(self.segments)
        states, total = torch.empty_like(t), torch.zeros_like(t[:, :, 0])
        for i in order:  # a loop: cumsum has no fixed order on GPUs, and segments are few
            states[:, :, i] = total
            total = total + t[:, :, i]
        return states.flatten(2, 3)

    def parameters(self, t: Tensor) -> Tensor:
        """Sums of units (2, B, H, segments, ...) over what shares parameters, (groups, ...)."""
        if self.shape.groups > 1:
            return t.sum((0, 1, 3), dtype=torch.float64).to(t.dtype)
        return t.sum((0, 1, 2, 3), dtype=torch.float64).to(t.dtype).unsqueeze(0)


def _rows(t: Tensor) -> tuple[Tensor, int, int, int]:
    if t.stride(-1) != 1:
        t = t.contiguous()
    of_b, of_h, of_n, _ = t.stride()
    return t, of_b, of_h, of_n


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *maps: Tensor,
    causal: bool, output: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    work = Work(q, v, maps, causal, output, eps)
    D, e = maps[0].shape[1] * maps[3].shape[2] // 2, v.shape[3]
    S, z = work.partial(D, e), work.partial(D)
    out, c = empty_rows_like(v), S.new_empty(v.shape[:3])
    q_rows, k_rows, v_rows, mask = _rows(q), _rows(k), _rows(v), mask.contiguous()
    with torch.cuda.device_of(v):
        work.run(keys_kernel, k_rows, v_rows, mask, work.maps, S, z, *work.sizes)
        S, z = work.states(S), work.states(z)
        work.run(
            queries_kernel,
            *(q_rows, k_rows, v_rows, mask, work.maps, S, z, _rows(out), c, *work.sizes),
        )
    return out, c, S, z


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *rest: Tensor,
    causal: bool, output: int, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    *maps, out, c, S, z = rest
    work = Work(q, v, tuple(maps), causal, output, eps)
    W, table = maps[0], maps[3]
    G, D, e = len(W), W.shape[1] * table.shape[2] // 2, v.shape[3]
    exact = torch.are_deterministic_algorithms_enabled()
    copies = work.units // G if exact else max(1, min(work.units, COPIES) // G)
    dtable = table.new_zeros(G, copies, *table.shape[1:])
    dS, dz = work.partial(D, e), work.partial(D)
    dW = table.new_empty(2, *work.partial(0).shape[:3], *W.shape[1:])
    dbias = dW.new_empty(dW.shape[:-1])
    dq, dk, dv = (empty_rows_like(t) for t in (q, k, v))
    inputs = *(_rows(t) for t in (grad, q, k, v)), mask.contiguous(), work.maps
    sizes = (*work.sizes, copies)
    with torch.cuda.device_of(v):
        work.run(
            queries_backward_kernel,
            *(*inputs, S, z, _rows(out), c, dS, dz, _rows(dq), dW[0], dbias[0], dtable, *sizes),
            exact=exact,
        )
        R, r = work.states(dS, later=True), work.states(dz, later=True)
        work.run(
            keys_backward_kernel,
            *(*inputs, _rows(out), c, R, r, _rows(dk), _rows(dv), dW[1], dbias[1], dtable, *sizes),
            exact=exact,
        )
    return dq, dk, dv, work.parameters(dW), work.parameters(dbias), dtable.sum(1)
