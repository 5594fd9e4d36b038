"""How kernels in machine code cut a call into units: a segment of one sequence and head.

The cut depends on the shapes alone, and sums of units are added in order, in float64: results are
the same with any number of threads.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from luna.kernels import cpu

SEGMENT = 1024  # tokens of a unit
PARTS = 32  # at most, of the units, with parameter gradients of their own


def parts_of(units: int, groups: int) -> int:
    """How many parts units make, each of them of one group."""
    return groups * min(units // groups, max(1, PARTS // groups))


def segments_of(q: Tensor) -> int:
    return -(-q.shape[2] // SEGMENT)


def new_sums(total: Tensor, segments: int) -> Tensor:
    """Memory for the sums of units (B, H, segments, ...) that `add_up` makes a total (B, H, ...)
    of; that of the total where each has one unit."""
    if segments == 1:
        return total.unsqueeze(2)
    return total.new_empty(*total.shape[:2], segments, *total.shape[2:])


def add_up(sums: Tensor, total: Tensor) -> None:
    B, H, segments = sums.shape[:3]
    if segments > 1:
        sum_parts(*cpu.arrays(sums.view(B * H, segments, -1), total.view(B * H, -1)))


@cpu.inner
def segments_of_mask(mask):
    return (mask.shape[1] + SEGMENT - 1) // SEGMENT


@cpu.inner
def unit_of(unit, mask, groups):
    """Sequence, head, group, segment and its tokens; heads outermost, so that those which share
    parameters are neighbours."""
    B, n = mask.shape
    segments = segments_of_mask(mask)
    h = unit // (B * segments)
    rest = unit % (B * segments)
    segment = rest % segments
    g = h if groups > 1 else 0
    first = segment * SEGMENT
    return rest // segments, h, g, segment, first, min(n, first + SEGMENT)


@cpu.inner
def units_of(part, parts, mask, H, groups):
    """The first unit of a part, that after its last one, and their group."""
    units = mask.shape[0] * H * segments_of_mask(mask)
    first = units * part // parts
    return first, units * (part + 1) // parts, unit_of(first, mask, groups)[2]


@cpu.jit
def sum_parts(parts, total):
    """total (G, N) of parts (G, P, N), added in order and in float64."""
    G, P, N = parts.shape
    sums = np.empty(N, np.float64)
    for g in range(G):
        sums[:] = 0
        for p in range(P):
            for i in range(N):
                sums[i] += parts[g, p, i]
        for i in range(N):
            total[g, i] = sums[i]
