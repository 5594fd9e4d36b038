"""Linear attention with a small feature map in machine code, on the CPU: features never stored.

Forward goes over the keys once and over the queries once, backward over the queries and then over
the keys; a block of 64 tokens is mapped, used and thrown away.

    S = phi(K)^T V    z = phi(K)^T 1    N_i = S^T phi(q_i)    c_i = z . phi(q_i)    o_i = N_i / den
    dN_i = do_i / den                dc_i = -(dN_i . N_i) / den where c_i >= eps, else 0
    dphi(q_i) = S dN_i + z dc_i      R = sum_i phi(q_i) dN_i^T    r = sum_i phi(q_i) dc_i
    dphi(k_j) = R v_j + r            dv_j = R^T phi(k_j)

Causal attention has no kernel here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from luna.kernels import cpu
from luna.kernels.mapped.numba_maps import ELU, RELU, Maps
from luna.kernels.mapped.numba_passes import (
    keys_backward_kernel,
    keys_kernel,
    queries_backward_kernel,
    queries_kernel,
)
from luna.kernels.rows import rows_of
from luna.kernels.units import add_up, new_sums, segments_of, sum_parts

KINDS = {"elu": ELU, "relu": RELU}


def forward(
    tensors: Sequence[Tensor],
    parameters: Sequence[Tensor],
    results: Sequence[Tensor],
    name: str,
    eps: float,
    divided: bool,
) -> None:
    """Fill out, c, S and z from q, k, v and mask."""
    q, k, v, mask = tensors
    out, c, S, z = results
    maps, real, segments = _maps(name, parameters, z), mask.numpy(), segments_of(q)
    units = q.shape[0] * q.shape[1] * segments
    sums = new_sums(S, segments), new_sums(z, segments)
    cpu.run(keys_kernel, units, rows_of(k), rows_of(v), real, maps, *cpu.arrays(*sums))
    for of_units, total in zip(sums, (S, z), strict=True):
        add_up(of_units, total)
    inputs = rows_of(q), real, maps, *cpu.arrays(S, z), eps, divided
    cpu.run(queries_kernel, units, *inputs, rows_of(out), c.numpy())


def backward(
    grad: Tensor,
    tensors: Sequence[Tensor],
    parameters: Sequence[Tensor],
    results: Sequence[Tensor],
    gradients: Sequence[Tensor],
    name: str,
    eps: float,
    divided: bool,
) -> list[Tensor]:
    """Fill dq, dk and dv; return the gradients of the parameters."""
    q, k, v, mask = tensors
    _, c, S, z = results
    dq, dk, dv = gradients
    maps, real, segments = _maps(name, parameters, z), mask.numpy(), segments_of(q)
    units = q.shape[0] * q.shape[1] * segments
    totals = torch.empty_like(S), torch.empty_like(z)  # R and r
    sums = [new_sums(t, segments) for t in totals]
    # Of both passes, each of which fills its own.
    of_maps = [z.new_empty(2, *q.shape[:2], segments, *p.shape[1:]) for p in parameters]
    passes = [cpu.arrays(*(t[i] for t in of_maps)) or _none(z) for i in range(2)]
    cpu.run(
        queries_backward_kernel,
        units,
        *(rows_of(grad), rows_of(q), real, maps),
        *(*cpu.arrays(S, z, c), eps, divided),
        *(*cpu.arrays(*sums), rows_of(dq)),
        *passes[0],
    )
    for of_units, total in zip(sums, totals, strict=True):
        add_up(of_units, total)
    cpu.run(
        keys_backward_kernel,
        units,
        *(rows_of(k), rows_of(v), real, maps),
        *(*cpu.arrays(*totals), rows_of(dk), rows_of(dv)),
        *passes[1],
    )
    return [_of_groups(t, p) for t, p in zip(of_maps, parameters, strict=True)]


def _maps(name: str, parameters: Sequence[Tensor], z: Tensor) -> Maps:
    W, bias = parameters or (z.new_empty(1, z.shape[2], 0), z.new_empty(1, z.shape[2]))
    return Maps(KINDS[name], *cpu.arrays(W.contiguous(), bias.contiguous()))


def _none(z: Tensor) -> list[Any]:
    """What stands for the gradients of W and bias of a map that has none."""
    return cpu.arrays(z.new_empty(1, 1, 1, 1, 1), z.new_empty(1, 1, 1, 1))


def _of_groups(sums: Tensor, parameter: Tensor) -> Tensor:
    """The gradient (G, ...) of a parameter, of both passes' units (2, B, H, segments, ...)."""
    G = len(parameter)
    of_heads = sums.movedim(2, 0)  # (H, 2, B, segments, ...)
    parts = of_heads.reshape(G, -1, parameter[0].numel())
    total = torch.empty_like(parameter, memory_format=torch.contiguous_format)
    sum_parts(*cpu.arrays(parts, total.view(G, -1)))
    return total
