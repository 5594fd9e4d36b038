"""LUNA's attention in machine code, on the CPU: the passes of `linear_numba` with its feature map.

Causal attention has no kernel of its own: causal_on_cpu.py.
"""

from __future__ import annotations

from torch import Tensor

from luna.kernels import cpu
from luna.kernels.linear_numba import calls
from luna.kernels.linear_numba.sums import Division
from luna.kernels.luna_attention.numba_map import Lines, lines_of
from luna.kernels.luna_attention.numba_outputs import SIGNED
from luna.kernels.scalar_mlp.by_numba import grid


def forward(arguments: tuple, results: tuple[Tensor, ...], _: int) -> None:
    q, k, v, mask, W, bias, keys, table, causal, output, *options = arguments
    assert not causal
    maps = _maps(W, bias, keys, table, output)
    calls.forward((q, k, v, mask), maps, _division(output, *options), results)


def backward(arguments: tuple, gradients: tuple[Tensor, ...], _: int) -> None:
    grad, q, k, v, mask, W, bias, keys, table, _, *sums, causal, output = arguments[:-3]
    assert not causal
    maps, division = _maps(W, bias, keys, table, output), _division(output, *arguments[-3:])
    calls.backward(grad, (q, k, v, mask), maps, division, sums, gradients[:3], gradients[3:])


def _division(output: int, eps: float, divided: bool, absolute: bool) -> Division:
    return Division(eps, divided, output == SIGNED and not absolute, absolute)


def _maps(W: Tensor, bias: Tensor, keys: Tensor, table: Tensor, output: int) -> Lines:
    arrays = cpu.arrays(W.contiguous(), bias.contiguous(), table, *grid(keys))
    return lines_of(*(*arrays, output))
