"""What the passes need of a feature map in machine code, and the buffers of a block.

`maps` is a NamedTuple of a map's own with its parameters, the first of which has G groups: 1, or
one for each head. By its type numba chooses what stands for these functions (`provide`):

    inputs_of(maps)                             d, the width of queries and keys
    new_scratch(maps)                           buffers of a thread, of the map's own
    start_part(scratch, maps, g)                take the parameters of a group
    map_rows(block, scratch, x, b, h, count, maps, g)    fill block.phi from the rows of x
    map_backward(block, scratch, count, maps, g, totals, part, dx, b, h)    block.dphi to dx
    end_part(scratch, maps, totals, part)       add what has been summed up to the totals
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from luna.kernels import cpu
from luna.kernels.linear_numba.tiles import padded

BLOCK = 64  # tokens at a time: with their sums they stay in the nearest cache


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


@cpu.jit
def new_block(like, D, e):
    """Buffers of the type of an array."""
    kind, D, e = like.dtype, padded(like, D), padded(like, e)
    return Block(
        np.empty(BLOCK, np.int64),
        np.ones(BLOCK, kind),
        np.ones(BLOCK, kind),
        np.ones(BLOCK, kind),
        np.zeros((BLOCK, D), kind),
        np.zeros((BLOCK, D), kind),
        np.zeros((BLOCK, e), kind),
        np.zeros((D, e), kind),
        np.zeros((e, D), kind),
        np.zeros(D, kind),
        np.zeros((D, e), kind),
        np.zeros(D, kind),
    )


@cpu.jit
def clear_columns(x, first, rows):
    """The columns of a block from `first` on become 0."""
    for i in range(rows):
        for j in range(first, x.shape[1]):
            x[i, j] = 0


def inputs_of(maps): ...


def new_scratch(maps): ...


def start_part(scratch, maps, g): ...


def map_rows(block, scratch, x, b, h, count, maps, g): ...


def map_backward(block, scratch, count, maps, g, totals, part, dx, b, h): ...


def end_part(scratch, maps, totals, part): ...


def provide(
    kind: type,
    *,
    inputs: Callable,
    new: Callable,
    start: Callable,
    rows: Callable,
    backward: Callable,
    end: Callable,
) -> None:
    """Let functions in machine code stand for those above, where `maps` is of a kind."""

    def is_(maps: Any) -> bool:
        return getattr(maps, "instance_class", None) is kind

    @overload(inputs_of)
    def _inputs(maps):
        return (lambda maps: inputs(maps)) if is_(maps) else None

    @overload(new_scratch)
    def _new(maps):
        return (lambda maps: new(maps)) if is_(maps) else None

    @overload(start_part)
    def _start(scratch, maps, g):
        return (lambda scratch, maps, g: start(scratch, maps, g)) if is_(maps) else None

    @overload(map_rows)
    def _rows(block, scratch, x, b, h, count, maps, g):
        if is_(maps):
            return lambda block, scratch, x, b, h, count, maps, g: rows(
                block, scratch, x, b, h, count, maps, g
            )
        return None

    @overload(map_backward)
    def _backward(block, scratch, count, maps, g, totals, part, dx, b, h):
        if is_(maps):
            return lambda block, scratch, count, maps, g, totals, part, dx, b, h: backward(
                block, scratch, count, maps, g, totals, part, dx, b, h
            )
        return None

    @overload(end_part)
    def _end(scratch, maps, totals, part):
        if is_(maps):
            return lambda scratch, maps, totals, part: end(scratch, maps, totals, part)
        return None
