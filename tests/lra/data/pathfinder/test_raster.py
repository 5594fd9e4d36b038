"""Lines and shrunk pictures beside Pillow's, whose pixels they were written after."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image, ImageDraw

from lra.data.pathfinder.raster import line, scale8, shrink


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [4, 10])
def test_lines_are_pillows(length: int, width: int) -> None:
    """All that any dash needs. A pixel in a thousand may differ: Pillow's floats are the CPU's."""
    reach = range(-length - 1, length + 2)
    ends = [(r, c) for r in reach for c in reach if abs(math.hypot(r, c) - length) < 1.5]
    drawn = differing = 0
    for row, column in ends:
        canvas = Image.new("L", (33, 33))
        ImageDraw.Draw(canvas).line([(16, 16), (16 + column, 16 + row)], fill=1, width=width)
        wanted = np.asarray(canvas, bool)
        drawn += int(wanted.sum())
        differing += int((line(16, (row, column), width) != wanted).sum())
    assert len(ends) > 30
    assert differing <= drawn / 1000


@pytest.mark.parametrize("shape", [(9, 9), (17, 17), (27, 27), (17, 12)])
def test_shrinking_is_pillows(shape: tuple[int, int]) -> None:
    """From 2n and from 2n - 1 pixels to n, within the level that another libm might round off."""
    rng = np.random.default_rng(sum(shape))
    for odd in (0, 1):
        large = rng.integers(0, 256, [2 * n - odd for n in shape]).astype(np.uint8)
        wanted = Image.fromarray(large).resize(shape[::-1], Image.Resampling.LANCZOS)
        np.testing.assert_allclose(shrink(large, shape).astype(int), wanted, atol=1)


def test_shrinking_scales_to_eight_bits_first() -> None:
    picture = np.zeros((34, 34))
    picture[:, 20:] = 0.5
    np.testing.assert_array_equal(shrink(picture, (17, 17)), shrink(scale8(picture), (17, 17)))
    assert shrink(picture, (17, 17))[8].tolist()[:6] == [0] * 6
    assert shrink(picture, (17, 17))[8].tolist()[-3:] == [255] * 3
