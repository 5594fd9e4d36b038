"""What the passes need of a feature map in machine code, and the buffers of a block.

`maps` is a NamedTuple of a map's own with its parameters, the first of which has G groups: 1, or
one for each head. It has a method `new_scratch`, the buffers of a thread. By its type numba chooses
what stands for these functions (`provide`):

    start_part(scratch, maps, g)                take the parameters of a group
    map_rows(block, scratch, x, b, h, count, maps, g)    fill block.phi from the rows of x
    map_backward(block, scratch, count, maps, g, totals, part, dx, b, h)    block.dphi to dx
    end_part(scratch, maps, totals, part)       add what has been summed up to the totals
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from luna.kernels import cpu
from luna.kernels.linear_numba.buffers import padded, zeros

BLOCK = 64  # tokens at a time: with their sums they stay in the nearest cache
MOST = 64  # buffers that are kept, each of SMALL bytes at most
SMALL = 2**19
_KEPT: dict[tuple, tuple] = {}


class Block(NamedTuple):
    """The buffers of a block; D and e are filled up to whole vectors, with zeros in phi."""

    rows: np.ndarray  # (BLOCK) where its tokens stand in the sequence
    scale: np.ndarray  # (BLOCK) a factor of each token
    weights: np.ndarray  # (BLOCK) another one
    ones: np.ndarray  # (BLOCK)
    phi: np.ndarray  # (BLOCK, D) features
    dphi: np.ndarray  # (BLOCK, D) their gradient
    values: np.ndarray  # (BLOCK, e) values, or what has their shape
    S: np.ndarray  # (D, e)
    S_T: np.ndarray  # (e, D)
    z: np.ndarray  # (D)
    R: np.ndarray  # (D, e) sums that grow
    r: np.ndarray  # (D)


def new_block(kind: np.dtype, D: int, e: int) -> Block:
    D, e = padded(kind, D), padded(kind, e)
    of_tokens = (BLOCK,), (BLOCK,), (BLOCK,), (BLOCK, D), (BLOCK, D), (BLOCK, e)
    block = Block(
        np.empty(BLOCK, np.int64), *zeros(kind, *of_tokens, (D, e), (e, D), (D,), (D, e), (D,))
    )
    block.ones[:] = 1
    return block


def buffers_of(maps: Any, S: np.ndarray) -> tuple:
    """A block and a scratch of this thread, for sums like S (B, H, D, e). Small ones are kept: to
    make them takes as long as a hundred tokens. Nobody reads what an earlier call left in them."""
    sizes = tuple(getattr(field, "shape", field) for field in maps)
    key = threading.get_ident(), type(maps), sizes, S.dtype, S.shape[2:]
    if (buffers := _KEPT.get(key)) is None:
        block = new_block(S.dtype, *S.shape[2:])
        buffers = block, maps.new_scratch()
        if sum(array.nbytes for array in block) <= SMALL:
            if len(_KEPT) >= MOST:
                _KEPT.clear()
            _KEPT[key] = buffers
    return buffers


@cpu.inner
def clear_columns(x, first, rows):
    """The columns of a block from `first` on become 0."""
    for i in range(rows):
        for j in range(first, x.shape[1]):
            x[i, j] = 0


def start_part(scratch, maps, g): ...


def map_rows(block, scratch, x, b, h, count, maps, g): ...


def map_backward(block, scratch, count, maps, g, totals, part, dx, b, h): ...


def end_part(scratch, maps, totals, part): ...


def provide(
    kind: type, *, start: Callable, rows: Callable, backward: Callable, end: Callable
) -> None:
    """Let functions stand for those above, where `maps` is of a kind. They are not compiled yet:
    numba takes them into the kernel."""

    def is_(maps: Any) -> bool:
        return getattr(maps, "instance_class", None) is kind

    @overload(start_part)
    def _start(scratch, maps, g):
        return start if is_(maps) else None

    @overload(map_rows)
    def _rows(block, scratch, x, b, h, count, maps, g):
        return rows if is_(maps) else None

    @overload(map_backward)
    def _backward(block, scratch, count, maps, g, totals, part, dx, b, h):
        return backward if is_(maps) else None

    @overload(end_part)
    def _end(scratch, maps, totals, part):
        return end if is_(maps) else None
