"""How the work is divided on a GPU: by the shapes alone, so that every sum has a fixed order.

And how results lie in memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

PROGRAMS = 512  # a few for every processor of a large GPU
STATE = 8192  # numbers of S at most: above, registers spill by the kilobyte


def padded(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def block_of(M: int, L: int) -> int:
    """Tokens that a program handles at once: phi, its slopes and its gradient in registers."""
    return 64 if padded(M) * padded(L) <= 64 else 16


def segment_of(tokens: int, block: int) -> int:
    """Tokens of a program: blocks, until 512 programs share all tokens of all heads. Long inputs
    have longer segments and not more of them, so that sums of segments stay small."""
    size = block
    while size * PROGRAMS < tokens:
        size *= 2
    return size


def empty_rows_like(t: Tensor) -> Tensor:
    """Memory for a result with the layout of an input, if its rows are whole: kernels for GPUs
    write rows."""
    result = torch.empty_like(t)
    return result if result.stride(-1) == 1 else t.new_empty(t.shape)
