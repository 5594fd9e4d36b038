"""Rows of a tensor in memory, as kernels in machine code read and write them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from luna.kernels import cpu


class Rows(NamedTuple):
    """The memory of a tensor (B, H, n, width) with the steps of B, H, n. A kernel reads whole rows
    at once, wherever they lie, because it knows that a row has no gaps."""

    memory: np.ndarray
    of_b: int
    of_h: int
    of_n: int


def rows_of(t: Tensor) -> Rows:
    """The rows of a tensor, copied where they have gaps."""
    t = t.detach()
    if t.stride(-1) != 1:
        t = t.contiguous()
    size = 1 + sum((length - 1) * step for length, step in zip(t.shape, t.stride(), strict=True))
    return Rows(t.as_strided((size,), (1,)).numpy(), *t.stride()[:3])


@cpu.jit
def row_of(x, b, h, i):
    """Where a row begins in the memory of x."""
    return b * x.of_b + h * x.of_h + i * x.of_n
