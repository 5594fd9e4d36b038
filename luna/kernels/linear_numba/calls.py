"""Linear attention in machine code, on the CPU: features never stored.

Forward goes over the keys once and over the queries once, backward over the queries and then over
the keys; a block of tokens is mapped, used and thrown away. What is kept between the passes is c,
and S and z of each head.

    S = phi(K)^T V    z = phi(K)^T 1    N_i = S^T phi(q_i)    c_i = z . phi(q_i)    o_i = N_i / den
    dN_i = do_i / den                dc_i = -(dN_i . N_i) / den where |c_i| >= eps, else 0
    dphi(q_i) = S dN_i + z dc_i      R = sum_i phi(q_i) dN_i^T    r = sum_i phi(q_i) dc_i
    dphi(k_j) = R v_j + r            dv_j = R^T phi(k_j)

`absolute`: z, c and r are sums of |phi|, and what comes from them to phi has its sign. Sums over
units are taken in an order that does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from luna.kernels import cpu
from luna.kernels.linear_numba.feature_map import buffers_of
from luna.kernels.linear_numba.passes import (
    keys_backward_kernel,
    keys_kernel,
    queries_backward_kernel,
    queries_kernel,
)
from luna.kernels.linear_numba.rows import rows_of
from luna.kernels.linear_numba.sums import Division
from luna.kernels.linear_numba.units import add_up, new_sums, parts_of, segments_of, sum_parts


def forward(
    tensors: Sequence[Tensor], maps: Any, division: Division, results: Sequence[Tensor]
) -> None:
    """Fill out, c, S and z from q, k, v and mask."""
    q, k, v, mask = tensors
    out, c, S, z = results
    segments, options = segments_of(q), (mask.contiguous().numpy(), maps, division)
    units = q.shape[0] * q.shape[1] * segments
    sums = new_sums(S, segments), new_sums(z, segments)
    run = partial(cpu.run, buffers=partial(buffers_of, maps, S.numpy()))
    run(keys_kernel, units, rows_of(k), rows_of(v), *options, *cpu.arrays(*sums))
    for of_units, total in zip(sums, (S, z), strict=True):
        add_up(of_units, total)
    run(queries_kernel, units, rows_of(q), *options, *cpu.arrays(S, z), rows_of(out), c.numpy())


def backward(
    grad: Tensor,
    tensors: Sequence[Tensor],
    maps: Any,
    division: Division,
    results: Sequence[Tensor],
    gradients: Sequence[Tensor],
    of_maps: Sequence[Tensor] = (),
) -> None:
    """Fill dq, dk and dv, and the gradients of a map's parameters (groups, ...)."""
    q, k, v, mask = tensors
    c, S, z = results
    dq, dk, dv = gradients
    segments, groups = segments_of(q), len(maps[0])
    options = mask.contiguous().numpy(), maps, division
    units = q.shape[0] * q.shape[1] * segments
    parts = parts_of(units, groups)
    # Both passes add to these, each part to its own.
    shared = [z.new_zeros(parts, *t.shape[1:]) for t in of_maps]
    totals = tuple(cpu.arrays(*shared or [z[:1]]))
    heads = torch.empty_like(S), torch.empty_like(z)  # R and r
    sums = [new_sums(t, segments) for t in heads]
    run = partial(cpu.run, buffers=partial(buffers_of, maps, S.numpy()))
    run(
        queries_backward_kernel,
        parts,
        *(rows_of(grad), rows_of(q), *options),
        *(*cpu.arrays(S, z, c, *sums), rows_of(dq), totals, parts),
    )
    for of_units, total in zip(sums, heads, strict=True):
        add_up(of_units, total)
    run(
        keys_backward_kernel,
        parts,
        *(rows_of(k), rows_of(v), *options),
        *(*cpu.arrays(*heads), rows_of(dk), rows_of(dv), totals, parts),
    )
    for of_parts, total in zip(shared, of_maps, strict=True):
        sum_parts(*cpu.arrays(of_parts.view(groups, parts // groups, -1), total.view(groups, -1)))
