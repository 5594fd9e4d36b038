"""The maps of this folder on a CPU: their parameters and gradients as machine code takes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from luna.kernels import cpu
from luna.kernels.linear_numba import calls
from luna.kernels.linear_numba.sums import Division
from luna.kernels.mapped.numba_maps import Affine, Elu


def forward(
    tensors: Sequence[Tensor],
    parameters: Sequence[Tensor],
    results: Sequence[Tensor],
    eps: float,
    divided: bool,
) -> None:
    """Fill out, c, S and z from q, k, v and mask."""
    calls.forward(tensors, _maps(parameters, results[3]), _division(eps, divided), results)


def backward(
    grad: Tensor,
    tensors: Sequence[Tensor],
    parameters: Sequence[Tensor],
    results: Sequence[Tensor],
    gradients: Sequence[Tensor],
    eps: float,
    divided: bool,
) -> list[Tensor]:
    """Fill dq, dk and dv; return the gradients of the parameters. `results` are c, S and z."""
    maps = _maps(parameters, results[2])
    of_maps = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in parameters]
    calls.backward(grad, tensors, maps, _division(eps, divided), results, gradients, of_maps)
    return of_maps


def _division(eps: float, divided: bool) -> Division:
    return Division(eps, divided, signed=False, absolute=False)


def _maps(parameters: Sequence[Tensor], z: Tensor) -> Elu | Affine:
    """The map that has these parameters."""
    if not parameters:
        return Elu(z[0, :1].numpy())
    return Affine(*cpu.arrays(*(p.contiguous() for p in parameters)))
