"""Recovery arithmetic on the rows of the paper's GLUE table."""

from __future__ import annotations

import pytest

from luna.base import LunaError
from luna.convert import headroom, mean_of_ratios, ratio_of_means

TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
ROWS = {  # LUNA paper, table of GLUE conversions, without its own recovery column
    "teacher": (58.8, 93.2, 90.2, 88.8, 91.0, 84.7, 91.3, 68.2),
    "t2r": (43.6, 87.7, 83.0, 78.6, 86.7, 78.9, 84.6, 54.1),
    "t2r-hh": (56.9, 90.9, 89.1, 77.7, 90.0, 77.4, 84.5, 56.3),
    "hedgehog": (59.2, 92.6, 90.1, 87.4, 91.0, 82.6, 89.6, 69.3),
    "luna": (58.8, 93.4, 90.1, 88.5, 90.7, 83.5, 90.6, 68.8),
}
PUBLISHED = {name: dict(zip(TASKS, row, strict=True)) for name, row in ROWS.items()}


@pytest.mark.parametrize(
    ("method", "of_ratios", "of_means"),
    [
        ("teacher", 100.0, 100.0),
        ("t2r", 88.649, 89.643),
        ("t2r-hh", 93.246, 93.485),
        ("hedgehog", 99.453, 99.340),
        ("luna", 99.767, 99.730),
    ],
)
def test_both_recoveries_of_the_published_rows(method, of_ratios, of_means):
    scores, teacher = PUBLISHED[method], PUBLISHED["teacher"]
    assert mean_of_ratios(scores, teacher) == pytest.approx(of_ratios, abs=5e-4)
    assert ratio_of_means(scores, teacher) == pytest.approx(of_means, abs=5e-4)


def test_headroom_sees_models_that_learned_nothing():
    """Plain recoveries of 92 and 79 percent, of which a constant answer is most."""
    t2r, teacher = PUBLISHED["t2r"], PUBLISHED["teacher"]
    assert headroom(t2r["mrpc"], teacher["mrpc"], 81.2) == pytest.approx(20.0)
    assert headroom(t2r["rte"], teacher["rte"], 52.7) == pytest.approx(9.0, abs=0.1)
    assert headroom(81.2, 90.2, 81.2) == 0
    assert headroom(90.2, 90.2, 81.2) == pytest.approx(100)
    with pytest.raises(LunaError, match="no headroom"):
        headroom(80.0, 81.2, 81.2)


def test_only_the_same_tasks_are_compared():
    teacher = PUBLISHED["teacher"]
    for scores in ({}, {"sst2": 90.0}, PUBLISHED["luna"] | {"wnli": 56.3}):
        for average in (mean_of_ratios, ratio_of_means):
            with pytest.raises(LunaError, match="same tasks"):
                average(scores, teacher)
