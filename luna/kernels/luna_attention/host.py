"""Calls the CPU kernels: with arrays in place of tensors, units divided among threads.

Causal attention has no kernel of its own on a CPU: linear_blocks.py computes it in blocks, with
features by look-up.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from luna.kernels import cpu
from luna.kernels.linear_blocks import Maps, Parameters, blocked_sums
from luna.kernels.luna_attention.compiled import (
    SEGMENT,
    keys_backward_kernel,
    keys_kernel,
    queries_backward_kernel,
    queries_kernel,
    sum_parts,
)
from luna.kernels.luna_attention.reference import features
from luna.kernels.luna_attention.segments import empty_rows_like
from luna.kernels.scalar_mlp import OUTPUTS, Nonneg
from luna.kernels.scalar_mlp.compiled import arrays, grid, lookup
from luna.sums import denominator

PARTS = 32  # at most, of the units, with parameter gradients of their own


def _units(q: Tensor) -> int:
    B, H, n, _ = q.shape
    return B * H * -(-n // SEGMENT)


def _per_head(sums: Tensor, q: Tensor) -> Tensor:
    """Sums of units (units, ...) as sums of heads (B, H, ...)."""
    B, H = q.shape[:2]
    return sums.unflatten(0, (H, B, -1)).sum(2).transpose(0, 1).contiguous()


def _maps(W: Tensor, bias: Tensor, keys: Tensor, table: Tensor) -> tuple[np.ndarray, ...]:
    return tuple(arrays(W.contiguous(), bias.contiguous(), table, *grid(keys)))


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *maps: Tensor,
    causal: bool, output: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    assert not causal
    W, bias, keys, table = maps
    D, e, units = W.shape[1] * table.shape[2] // 2, v.shape[3], _units(q)
    lines = _maps(W, bias, keys, table)
    S, z = v.new_empty(units, D, e), v.new_empty(units, D)
    cpu.run(keys_kernel, units, *arrays(k, v, mask), lines, output, *arrays(S, z))
    S, z = _per_head(S, q), _per_head(z, q)
    out, c = empty_rows_like(v), v.new_empty(v.shape[:3])
    sums, results = arrays(S, z), arrays(out, c)
    cpu.run(queries_kernel, units, *arrays(q, mask), lines, output, *sums, eps, *results)
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
    dq, dk, dv = (empty_rows_like(t) for t in (q, k, v))
    cpu.run(
        queries_backward_kernel, parts, *arrays(grad, q, mask), maps, output,
        *arrays(S.mT.contiguous(), z), eps, *arrays(out, c, dS, dz, dq, *shared),
    )  # fmt: skip
    dS, dz = _per_head(dS, q), _per_head(dz, q)
    cpu.run(
        keys_backward_kernel, parts, *arrays(k, v, mask), maps, output,
        *arrays(dS, dS.mT.contiguous(), dz, dk, dv, *shared),
    )  # fmt: skip
    totals = [t.new_empty(t.shape) for t in (W, bias, table)]
    for parts_of, total in zip(shared, totals, strict=True):
        sum_parts(*arrays(parts_of.view(G, parts // G, -1), total.view(G, -1)))
    return dq, dk, dv, *totals


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
    W: Tensor, bias: Tensor, keys: Tensor, table: Tensor, *, nonneg: Nonneg, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o (B, H, n, e) and the denominators' c (B, H, n); 0 at padding."""
    real = None if mask is None else mask[:, None, :, None]
    if real is not None:
        q, k, v = (t.masked_fill(~real, 0) for t in (q, k, v))

    cells, relu = grid(keys), nonneg is True
    output = OUTPUTS[False if relu else nonneg]  # relu is part of the look-up

    def phi(x: Tensor, at: slice, parameters: Parameters) -> Tensor:
        W, bias, table = parameters
        phi = output(features(x, W, bias, lambda u: lookup(u.contiguous(), *cells, table, relu)[0]))
        return phi if real is None else phi * real[:, :, at].to(phi.dtype)

    N, c = blocked_sums(q, k, v, Maps(phi, phi, (W, bias, table)), causal=True)
    return N / denominator(c, eps, not nonneg).unsqueeze(-1), c.detach()
