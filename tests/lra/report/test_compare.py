"""Which runs may share a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.base.config import UserError

from ..synthetic import Make, table


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        ({}, {"budget": 0.1}, r"budget is 0\.02 \(luna\) or 0\.1 \(linear\)"),
        ({}, {"source": "tiny"}, r"on listops, data\.source is generated \(luna\) or tiny"),
        ({}, {"lr": 0.1}, r"on listops, protocol\.recipe\.lr is 0\.002 \(luna\) or 0\.1"),
        ({}, {"model": "base"}, r"model is base \(linear\) or small \(luna\)"),
        ({}, {"version": 2}, r"protocol\.version is 1"),
        ({}, {"test__examples": 100}, r"test\.examples is 100 \(linear\) or 2000"),
        ({}, {"compute__budget": {"reference": "softmax", "tolerance": {}}}, r"budget\.reference"),
        ({"task": "text"}, {"budget": 0.1}, "budget is"),  # across tasks too
    ],
)
def test_mixtures_are_refused_with_what_differs(
    make: Make, runs: Path, first: dict, second: dict, differ: str
):
    make("luna", 0.4, **first)
    make("linear", 0.4, **second)
    with pytest.raises(UserError, match=differ):
        table(runs)


def test_everything_that_differs_is_listed(make: Make, runs: Path):
    make("luna", 0.4)
    make("linear", 0.4, source="tiny", lr=0.1)
    with pytest.raises(UserError, match=r"(?s)data\.source.*data\.fingerprint.*recipe\.lr"):
        table(runs)


def test_the_data_of_different_tasks_may_differ(make: Make, runs: Path):
    make("luna", 0.4, task="listops", source="generated")
    make("luna", 0.4, task="image", source="tfds")
    assert table(runs).tasks == ["listops", "image"]
