"""The norm and its gradients in machine code, on the CPU.

    w_j = gain_j do_j / rms
    dN_j = w_j - N_j sum_l (w_l N_l) / (count rms^2)      the sum is 0 where rms is at its limit
    dgain_j = sum_i do_ij N_ij / rms_i

A unit is a segment of one sequence and group of heads; the heads of a group share their mean.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from luna.kernels import cpu
from luna.kernels.linear_numba.rows import row_of, rows_of
from luna.kernels.linear_numba.units import SEGMENT, sum_parts
from luna.kernels.linear_triton.segments import rows_like

BLOCK = 64  # tokens at a time: they stay in the nearest cache between two loops


def forward(N: Tensor, gain: Tensor, least: float, of_all_heads: bool) -> tuple[Tensor, Tensor]:
    out = rows_like(N, N.dtype)
    groups, units = _groups(N, of_all_heads)
    rms = N.new_empty(len(N), groups, N.shape[2])
    cpu.run(forward_kernel, units, rows_of(N), *_numbers(gain, least), rows_of(out), rms.numpy())
    return out, rms


def backward(
    grad: Tensor, N: Tensor, gain: Tensor, rms: Tensor, least: float, of_all_heads: bool
) -> tuple[Tensor, Tensor]:
    dN = rows_like(N, N.dtype)
    groups, units = _groups(N, of_all_heads)
    parts = gain.new_empty(units, gain.numel() // groups)  # dgain of each unit
    cpu.run(
        backward_kernel,
        units,
        *(rows_of(grad), rows_of(N)),
        *_numbers(gain, least),
        *(rms.numpy(), rows_of(dN), parts.numpy()),
    )
    dgain = gain.new_empty(gain.shape)
    sum_parts(*cpu.arrays(parts.view(groups, units // groups, -1), dgain.view(groups, -1)))
    return dN, dgain


def _groups(N: Tensor, of_all_heads: bool) -> tuple[int, int]:
    """The numbers of groups and of units."""
    B, H, n, _ = N.shape
    groups = 1 if of_all_heads else H
    return groups, groups * B * -(-n // SEGMENT)


def _numbers(gain: Tensor, least: float) -> tuple[np.ndarray, np.floating]:
    (numbers,) = cpu.arrays(gain.contiguous()[:, 0])
    return numbers, numbers.dtype.type(least)


@cpu.jit
def unit_of(unit, rms):
    """Sequence, group, and the tokens of a unit; groups outermost, so that the units that share
    gains are neighbours."""
    B, _, n = rms.shape
    segments = (n + SEGMENT - 1) // SEGMENT
    rest = unit % (B * segments)
    first = rest % segments * SEGMENT
    return rest // segments, unit // (B * segments), first, min(n, first + SEGMENT)


@cpu.jit
def forward_kernel(first, last, N, gain, least, out, rms):
    H, e = gain.shape
    heads = H // rms.shape[1]  # of a group
    inverse = np.empty(BLOCK, gain.dtype)
    for unit in range(first, last):
        b, group, start, end = unit_of(unit, rms)
        for at in range(start, end, BLOCK):
            count = min(BLOCK, end - at)
            inverse[:count] = 0
            for h in range(group * heads, (group + 1) * heads):
                for i in range(count):
                    row = N.memory[row_of(N, b, h, at + i) :][:e]
                    total = gain.dtype.type(0)
                    for j in range(e):
                        total += row[j] * row[j]
                    inverse[i] += total
            for i in range(count):
                square = inverse[i] / gain.dtype.type(heads * e)
                value = least if square < least * least else np.sqrt(square)  # NaN stays
                rms[b, group, at + i] = value
                inverse[i] = 1 / value
            for h in range(group * heads, (group + 1) * heads):
                for i in range(count):
                    row = N.memory[row_of(N, b, h, at + i) :][:e]
                    into = out.memory[row_of(out, b, h, at + i) :][:e]
                    for j in range(e):
                        into[j] = row[j] * inverse[i] * gain[h, j]


@cpu.jit
def backward_kernel(first, last, grad, N, gain, least, rms, dN, dgain):
    """dN, and dgain of each unit alone (units, heads of a group times e)."""
    H, e = gain.shape
    heads = H // rms.shape[1]
    along = np.empty(BLOCK, gain.dtype)
    sums = np.empty(e, gain.dtype)  # of a block: one long chain of sums would lose digits
    for unit in range(first, last):
        b, group, start, end = unit_of(unit, rms)
        dgain[unit] = 0
        for at in range(start, end, BLOCK):
            count = min(BLOCK, end - at)
            along[:count] = 0
            for h in range(group * heads, (group + 1) * heads):
                sums[:] = 0
                for i in range(count):
                    d = grad.memory[row_of(grad, b, h, at + i) :][:e]
                    row = N.memory[row_of(N, b, h, at + i) :][:e]
                    inverse = 1 / rms[b, group, at + i]
                    total = gain.dtype.type(0)
                    for j in range(e):
                        product = d[j] * (row[j] * inverse)
                        sums[j] += product
                        total += product * gain[h, j]
                    along[i] += total
                dgain[unit, (h - group * heads) * e :][:e] += sums
            for i in range(count):
                value = rms[b, group, at + i]
                along[i] /= gain.dtype.type(heads * e) * value
                if value <= least:
                    along[i] = 0
            for h in range(group * heads, (group + 1) * heads):
                for i in range(count):
                    d = grad.memory[row_of(grad, b, h, at + i) :][:e]
                    row = N.memory[row_of(N, b, h, at + i) :][:e]
                    into = dN.memory[row_of(dN, b, h, at + i) :][:e]
                    inverse = 1 / rms[b, group, at + i]
                    for j in range(e):
                        into[j] = (gain[h, j] * d[j] - row[j] * along[i]) * inverse
