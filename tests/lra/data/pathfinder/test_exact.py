"""Sines, cosines and angles against mpmath, which torch brings along, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest

from lra.data.pathfinder.raster import arctan2, cosine, sine

DEGREES = [degree * math.pi / 180 for degree in range(-360, 361)]
OTHERS = [0.1 * i * math.e for i in range(-30, 31)] + [2.0**-60, 3 * math.pi]


def nearest(function: Callable, *arguments: float) -> float:
    with mpmath.workdps(80):
        return float(mpmath.nstr(function(*map(mpmath.mpf, arguments)), 60))


@pytest.mark.parametrize(("mine", "true"), [(sine, mpmath.sin), (cosine, mpmath.cos)])
def test_sine_and_cosine_are_the_nearest_doubles(mine: Callable, true: Callable) -> None:
    wrong = [x for x in DEGREES + OTHERS if mine(x) != nearest(true, x)]
    assert wrong == []


def test_angles_of_whole_points_are_the_nearest_doubles() -> None:
    points = [(row, column) for row in range(-9, 10) for column in range(-9, 10) if row or column]
    assert [p for p in points if arctan2(*p) != nearest(mpmath.atan2, *p)] == []
    assert arctan2(0, -3) == math.pi
