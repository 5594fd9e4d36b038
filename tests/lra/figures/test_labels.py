"""Names beside lines."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lra.figures.labels import spread


def test_labels_are_apart_and_in_order():
    places = [0.1, 0.5, 0.5, 0.505, 0.9]
    moved = spread(places, 0.02)
    assert min(b - a for a, b in pairwise(moved)) >= 0.02 - 1e-12
    assert (moved[0], moved[-1]) == (0.1, 0.9)
    assert sum(moved[1:4]) == pytest.approx(sum(places[1:4]))
    assert spread([0.0, 0.0, 1.0, 1.0], 0.2, within=(0, 1)) == pytest.approx([0, 0.2, 0.8, 1])
