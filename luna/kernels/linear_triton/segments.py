"""How a call is cut up on a GPU, and memory that its kernels can write."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64  # tokens of the shortest segment
PROGRAMS = 512  # a few for every processor of a large GPU


def segment_of(tokens: int) -> int:
    """Tokens of a program, by the shapes alone, so that every sum has a fixed order: blocks, until
    512 programs share all tokens of all heads. Long inputs have longer segments and not more of
    them, so that sums of segments stay small."""
    size = BLOCK
    while size * PROGRAMS < tokens:
        size *= 2
    return size


def rows_like(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for a result with the layout of an input, if its rows are whole: the kernels write
    rows."""
    result = torch.empty_like(t, dtype=dtype)
    return result if result.stride(-1) == 1 else result.new_empty(t.shape)
