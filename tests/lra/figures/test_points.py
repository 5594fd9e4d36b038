"""Names beside points: on no point, no error bar and no other name, and nearest to their own."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from lra.figures import points as names
from lra.figures.points import Point

from .conftest import Figure

# Close to each other, at a border, and with error bars that are longer than the space between them
CROWD = [Point(10 * 1.4**i, y, f"method {i}", 15.0) for i, y in enumerate((95, 90, 50, 85, 97))]
ALONE = [Point(1, 5, "alone"), Point(900, 50, "at the border", 2.0)]
NAMELESS = [Point(30, 70, "", 10.0), Point(40, 71, "", 3.0)]


@pytest.fixture
def axes() -> Any:
    axes = Figure(figsize=(7, 4), layout="constrained").subplots()
    axes.set(xscale="log", xlim=(0.5, 1000), ylim=(0, 100))
    return axes


def boxes_of(texts: list[Any]) -> dict[str, np.ndarray]:
    """(left, bottom, right, top) of each name without its leader."""
    boxes = {}
    for text in texts:
        text.get_window_extent()  # with the leader; it brings the text to its place
        boxes[text.get_text()] = Text.get_window_extent(text).extents
    return boxes


def test_names_cover_nothing(axes: Any):
    points = [*CROWD, *ALONE]
    names.beside(axes, points, NAMELESS)
    boxes = boxes_of(axes.texts)
    assert boxes.keys() == {point.name for point in points}
    obstacles = np.array([names.box_of(axes, point) for point in (*points, *NAMELESS)])
    for name, box in boxes.items():
        assert not names.overlaps(box, obstacles).any(), name
        assert np.all(box[:2] >= axes.bbox.min), name
        assert np.all(box[2:] <= axes.bbox.max), name
    for one, two in combinations(boxes, 2):
        assert not names.overlaps(boxes[one], boxes[two][None]).any(), (one, two)


def test_a_name_is_nearest_to_its_own_point(axes: Any):
    points = [Point(10, 50, "left"), Point(12, 50, "right")]
    names.beside(axes, points)
    own = np.array([names.box_of(axes, point) for point in points])
    boxes = boxes_of(axes.texts)
    for i, point in enumerate(points):
        assert np.argmin(names.gaps(boxes[point.name], own)) == i


def test_a_name_keeps_off_lines_where_there_is_room(axes: Any):
    axes.plot([1, 900], [50, 50])
    names.beside(axes, [Point(30, 50, "on the line")])
    _, bottom, _, top = boxes_of(axes.texts)["on the line"]
    assert not bottom < axes.transData.transform((30, 50))[1] < top


def test_the_line_of_the_front_has_its_corners(axes: Any):
    """Names keep off it only if its corners are points of the line: axes.step hides them."""
    names.draw_front(axes, CROWD, [{"marker": "o", "color": "k", "zorder": 3}] * len(CROWD))
    front = axes.lines[-1].get_xydata()
    assert np.all(np.any(np.diff(front, axis=0) == 0, axis=1))  # each piece flat or upright
    assert len(names.path_of(axes.lines[-1])) > 64
