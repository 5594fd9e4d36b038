"""Contact sheets: every pixel of a picture is a square of its own, in its place."""

from __future__ import annotations

import numpy as np
import pytest

from lra.data.show import GAP, GROUND, LINE, sheet


@pytest.mark.parametrize(("side", "zoom"), [(32, 4), (100, 2), (128, 1), (256, 1)])
def test_pictures_lie_in_a_grid_enlarged_by_whole_numbers(side: int, zoom: int) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (5, side, side)).astype(np.uint8)
    page = sheet(pictures, [f"label {i}" for i in range(5)])
    assert page.mode == "L"
    width, height = side * zoom + GAP, side * zoom + GAP + LINE
    assert page.size == (3 * width + GAP, 2 * height + GAP)
    pixels = np.asarray(page)
    for i, picture in enumerate(pictures):
        top, left = GAP + LINE + i // 3 * height, GAP + i % 3 * width
        shown = pixels[top : top + side * zoom, left : left + side * zoom]
        for row in range(zoom):
            np.testing.assert_array_equal(shown[row::zoom, zoom - 1 :: zoom], picture)
        caption = pixels[top - LINE : top, left : left + side * zoom]
        assert caption.max() > 200
    assert (pixels[height + GAP :, 2 * width + GAP :] == GROUND).all()  # no sixth picture


def test_a_nearly_square_page_by_default() -> None:
    page = sheet(np.zeros((10, 128, 128), np.uint8), [""] * 10)
    assert page.size == (4 * (128 + GAP) + GAP, 3 * (128 + LINE + GAP) + GAP)
