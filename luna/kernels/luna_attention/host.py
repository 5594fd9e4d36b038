"""Calls the CPU kernels: with arrays in place of tensors, units divided among threads."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from luna.kernels import cpu
from luna.kernels.luna_attention.compiled import (
    SEGMENT,
    keys_backward_kernel,
    keys_kernel,
    queries_backward_kernel,
    queries_kernel,
    sum_parts,
)
from luna.kernels.scalar_mlp.compiled import grid_of

PARTS = 32  # at most, of the units, with parameter gradients of their own


def _units(q: Tensor) -> int:
    B, H, n, _ = q.shape
    return B * H * -(-n // SEGMENT)


def _per_head(sums: Tensor, q: Tensor) -> Tensor:
    """Sums of units (units, ...) as sums of heads (B, H, ...)."""
    B, H = q.shape[:2]
    return sums.unflatten(0, (H, B, -1)).sum(2).transpose(0, 1).contiguous()


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [t.detach().numpy() for t in tensors]


def _maps(W: Tensor, bias: Tensor, keys: Tensor, table: Tensor) -> tuple[np.ndarray, ...]:
    return tuple(_arrays(W.contiguous(), bias.contiguous(), table, *grid_of(keys)))


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *maps: Tensor,
    causal: bool, output: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    assert not causal
    W, bias, keys, table = maps
    D, e, units = W.shape[1] * table.shape[2] // 2, v.shape[3], _units(q)
    lines = _maps(W, bias, keys, table)
    S, z = v.new_empty(units, D, e), v.new_empty(units, D)
    cpu.run(keys_kernel, units, *_arrays(k, v, mask), lines, output, *_arrays(S, z))
    S, z = _per_head(S, q), _per_head(z, q)
    out, c = torch.empty_like(v), v.new_empty(v.shape[:3])
    given = _arrays(q, mask), _arrays(S, z), _arrays(out, c)
    cpu.run(queries_kernel, units, *given[0], lines, output, *given[1], eps, *given[2])
    return out, c, S, z


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *rest: Tensor,
    causal: bool, output: int, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    W, bias, keys, table, out, c, S, z = rest
    G, units = len(W), _units(q)
    parts = G * min(units // G, max(1, PARTS // G))
    maps = _maps(W, bias, keys, table)
    dS, dz = S.new_empty(units, *S.shape[2:]), S.new_empty(units, S.shape[2])
    shared = [t.new_zeros(parts, *t.shape[1:]) for t in (W, bias, table)]
    dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))
    given = _arrays(grad, q, mask), _arrays(S.mT.contiguous(), z), _arrays(out, c, dS, dz, dq)
    cpu.run(
        queries_backward_kernel, parts, *given[0], maps, output, *given[1], eps, *given[2],
        *_arrays(*shared),
    )  # fmt: skip
    dS, dz = _per_head(dS, q), _per_head(dz, q)
    values = _arrays(k, v, mask), _arrays(dS, dS.mT.contiguous(), dz, dk, dv)
    cpu.run(keys_backward_kernel, parts, *values[0], maps, output, *values[1], *_arrays(*shared))
    found = [t.new_empty(t.shape) for t in (W, bias, table)]
    for parts_of, total in zip(shared, found, strict=True):
        sum_parts(*_arrays(parts_of.view(G, parts // G, -1), total.view(G, -1)))
    return dq, dk, dv, *found
