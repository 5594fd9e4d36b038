"""Names beside lines and points."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from lra.base.config import CONFIGS
from lra.figures import records as figures
from lra.figures.labels import spread

from ..synthetic import Make, table

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def test_labels_are_apart_and_in_order():
    places = [0.1, 0.5, 0.5, 0.505, 0.9]
    moved = spread(places, 0.02)
    assert min(b - a for a, b in pairwise(moved)) >= 0.02 - 1e-12
    assert (moved[0], moved[-1]) == (0.1, 0.9)
    assert sum(moved[1:4]) == pytest.approx(sum(places[1:4]))
    assert spread([0.0, 0.0, 1.0, 1.0], 0.2, within=(0, 1)) == pytest.approx([0, 0.2, 0.8, 1])


def test_names_avoid_each_other(make: Make, runs: Path):
    """Even where all methods have one accuracy and most the same cost."""
    methods = [p.stem for p in (CONFIGS / "attention").glob("*.yaml")]
    for i, name in enumerate(sorted(methods)):
        make(name, 0.4, compute__flops=10**8 * (1 + i % 5))
    figure = Figure(figsize=(7.6, 5), layout="constrained")
    figures.compute(figure, table(runs).rows, "listops")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    frame = axes.get_window_extent().padded(3)
    boxes = [Text.get_window_extent(t) for t in axes.texts]  # without the line to its point
    assert len(boxes) == len(methods)
    for i, one in enumerate(boxes):
        assert frame.x0 < one.x0 < one.x1 < frame.x1
        for other in boxes[:i]:
            both = Bbox.intersection(one, other)
            assert both is None or both.width * both.height < 0.1 * one.width * one.height


def test_names_at_the_ends_of_lines_keep_their_order(make: Make, runs: Path):
    for name, accuracy in (("luna", 0.40), ("linear", 0.40), ("softmax", 0.41), ("rff", 0.2)):
        make(name, accuracy)
    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    figures.curves(figure, table(runs).rows, "listops")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    found = sorted(axes.texts, key=lambda t: Text.get_window_extent(t).y0)
    assert [found[0].get_text(), found[-1].get_text()] == ["rff", "softmax"]
    for below, above in pairwise(found):
        assert Text.get_window_extent(below).y1 < Text.get_window_extent(above).y1 - 5
