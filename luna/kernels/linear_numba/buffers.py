"""Arrays that a thread works in, side by side in one memory."""

from __future__ import annotations

import math

import numpy as np

from luna.kernels.linear_numba.tiles import ROWS
from luna.kernels.linear_numba.vectors import WIDTH

LINE = 64  # bytes that a processor fetches at once


def padded(kind: np.dtype, width: int) -> int:
    """A width filled up to whole vectors of a type, and to the rows of a tile."""
    step = max(WIDTH // kind.itemsize, ROWS)
    return -(-width // step) * step


def zeros(kind: np.dtype, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Arrays that begin with a line, so that a vector lies in one. A line is left free behind each:
    addresses whose last 12 bits are the same are taken for one at first."""
    line = LINE // kind.itemsize
    sizes = [math.prod(shape) for shape in shapes]
    rooms = [(-(-size // line) + 1) * line for size in sizes]
    memory = np.zeros(sum(rooms) + line, kind)
    at = -memory.ctypes.data % LINE // kind.itemsize
    arrays = []
    for shape, size, room in zip(shapes, sizes, rooms, strict=True):
        arrays.append(memory[at : at + size].reshape(shape))
        at += room
    return arrays
