"""Names beside lines and points."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from lra.figures import records as figures
from lra.figures.labels import spread
from lra.report.styles import METHODS

from ..synthetic import Make, table

pytest.importorskip("adjustText")

from matplotlib.figure import Figure


def test_labels_are_apart_and_in_order():
    places = [0.1, 0.5, 0.5, 0.505, 0.9]
    moved = spread(places, 0.02)
    assert min(b - a for a, b in pairwise(moved)) >= 0.02 - 1e-12
    assert (moved[0], moved[-1]) == (0.1, 0.9)
    assert sum(moved[1:4]) == pytest.approx(sum(places[1:4]))
    assert spread([0.0, 0.0, 1.0, 1.0], 0.2, within=(0, 1)) == pytest.approx([0, 0.2, 0.8, 1])


def test_every_point_has_its_name_within_the_axes(make: Make, runs: Path):
    for i, name in enumerate(METHODS):
        make(name, 0.4, compute__flops=10**8 * (1 + i % 5))
    figure = Figure(figsize=(7.6, 5), layout="constrained")
    figures.compute(figure, table(runs).rows, "listops")
    (axes,) = figure.axes
    names = [text for text in axes.texts if text.get_text()]
    assert {text.get_text() for text in names} == set(METHODS)
    centres = [text.get_transform().transform(text.get_position()) for text in names]
    assert all(axes.get_window_extent().contains(*centre) for centre in centres)
