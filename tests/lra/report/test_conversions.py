"""Tables of conversions: names of rows, the control, recovery, published numbers beside."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from lra.base.errors import UserError
from lra.report.conversions import conversions
from lra.report.render import markdown
from lra.report.table import Table

from ..synthetic import Make, cell, frame


@pytest.fixture
def table(convert: Make, runs: Path) -> Table:
    """luna on two tasks, t2r with and without stage 1, the control, and the teacher's record."""
    convert(None, 0.9)
    for seed in (1, 2):
        convert("softmax", 0.91, seed=seed)
        convert("luna", 0.83 + seed / 50, seed=seed)
        convert("luna", 0.60, task="mrpc", seed=seed)
    convert("t2r", 0.86)
    convert("t2r", 0.81, key="other", stage1=None, recipe={"stage1": None})
    (shown,) = conversions(frame(runs))
    return shown


def test_both_recoveries_and_the_headroom(table: Table):
    summary = table.rows[list(table.summaries)].astype(float)
    assert list(summary.loc["luna"]) == pytest.approx(
        [  # 86 of 90, 60 of 80
            50 * (86 / 90 + 60 / 80),
            100 * (86 + 60) / (90 + 80),
            50 * (36 / 40 + 10 / 30),
        ]
    )
    assert summary.loc["t2r"].isna().all()  # t2r lacks mrpc
    assert list(summary.loc["softmax, the teacher"]) == pytest.approx([100, 100, 100])


def test_other_budgets_and_teachers_are_refused_by_name(convert: Make, runs: Path):
    convert("luna", 0.8)
    convert("hedgehog", 0.8, recipe={"epochs": 2}, teacher="another", data="copy")
    convert("t2r", 0.8, data="original")
    with pytest.raises(UserError) as refusal:
        conversions(frame(runs))
    assert "epochs is 10 (luna, t2r) or 2 (hedgehog)" in str(refusal.value)
    assert "teacher is another (hedgehog) or hash-sst2 (luna, t2r)" in str(refusal.value)
    assert "data.fingerprint is copy (hedgehog) or original (t2r)" in str(refusal.value)


def test_the_usual_settings_have_the_shortest_name(convert: Make, runs: Path, tmp_path: Path):
    """What most runs of an attention have; the others are named by what they have instead, and
    compared with it."""
    answers = {"predictions": {"dev": [1] * 9 + [0] * 9}, "labels": {"dev": [1] * 18}}
    for seed in (1, 2):
        convert("luna", 0.8, seed=seed, options={"M": 8}, **answers)
        convert("luna", 0.7, seed=seed, task="mrpc", options={"M": 8}, **answers)
    convert("luna", 0.9, key="wide", options={"M": 16}, **answers)
    convert("luna", 0.9, key="joint", options={"M": 8}, recipe={"joint": 0.5}, **answers)
    (shown,) = conversions(frame(runs))
    assert {*shown.rows.index[1:]} == {"luna M=8", "luna M=16", "luna M=8 joint=0.5"}
    assert pd.notna(cell(shown, "luna M=8", "sst2")["published"])
    assert pd.isna(cell(shown, "luna M=16", "sst2")["published"])
    text = markdown(shown, tmp_path)
    assert "* Rows of luna that name no other settings have M=8 joint=0." in text
    pairs = text[text.index("## Example by example") : text.index("## Runs")]
    assert "| luna M=8 | luna M=16 |" in pairs or "| luna M=16 | luna M=8 |" in pairs
    assert not any("M=16" in line and "joint" in line for line in pairs.splitlines())
    assert shown.rows.loc["luna M=8 joint=0.5", "options"] == {"joint": "0.5"}
