"""LUNA's attention for GPUs: the passes of `linear_triton` with the map of triton_map.py.

The gradient of the table is scattered, by atomic additions into a few tables, or in order into one
for each unit. README.md beside this file has the layout.
"""

from __future__ import annotations

import torch
from torch import Tensor

from luna.kernels.linear_triton.calls import Call
from luna.kernels.luna_attention.triton_map import shape_of


def forward(arguments: tuple, results: tuple[Tensor, ...], segment: int) -> None:
    q, k, v, mask, *maps = arguments[:8]
    shape = shape_of(v, maps[0], maps[3], *arguments[8:])
    Call(shape, q, v, tuple(maps), segment).forward(q, k, v, mask, results)


def backward(arguments: tuple, gradients: tuple[Tensor, ...], segment: int) -> None:
    grad, q, k, v, mask, *maps = arguments[:9]
    out, c, S, z = arguments[9:13]
    *of_inputs, dW, dbias, dtable = gradients
    shape = shape_of(v, maps[0], maps[3], *arguments[13:])
    call = Call(shape, q, v, tuple(maps), segment)
    G, M, d = maps[0].shape

    # What each unit leaves by both passes: [dW, dbias], and what it adds to one of some tables.
    dmaps = z.new_empty(2, call.B, call.H, call.segments, M, d + 1)
    tables = dtable.new_zeros(G, call.copies, *dtable.shape[1:])
    of_map = (dmaps[0], tables), (dmaps[1], tables)
    call.backward(grad, (q, k, v, mask), (out, c, S, z), tuple(of_inputs), of_map)

    # The units' gradients are added in order; with parameters per head those of a head alone.
    of_units = (0, 1, 3) if G > 1 else (0, 1, 2, 3)  # of (2, B, H, segments, ...)
    total = dmaps.sum(of_units, dtype=torch.float64).view(G, M, d + 1)
    dW.copy_(total[..., :-1])
    dbias.copy_(total[..., -1])
    torch.sum(tables, 1, out=dtable)
