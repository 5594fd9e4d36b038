"""Tables of conversions: names of rows, the control, recovery, published numbers beside."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from lra.base.config import UserError
from lra.report import conversions
from lra.report.render import markdown, to_csv
from lra.report.table import Table
from lra.results import record as records

from ..synthetic import Make


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
    (found,) = conversions.build_all(records.load_records([runs]))
    return found


def test_rows_are_methods_with_stages_and_the_control_is_first(table: Table):
    assert [row.label for row in table.rows] == [
        "softmax, the teacher", "softmax, trained on (control)", "t2r", "t2r, stage 2 only", "luna",
    ]  # fmt: skip
    assert table.tasks == ["sst2", "mrpc"]
    luna = table.rows[-1].cells["sst2"]
    assert luna.mean == pytest.approx(86)
    assert luna.deviation == pytest.approx(2**0.5)


def test_both_recoveries_and_the_headroom(table: Table):
    summary = table.rows[-1].summary  # 86 of 90, 60 of 80
    assert summary["mean of ratios"] == pytest.approx(50 * (86 / 90 + 60 / 80))
    assert summary["ratio of means"] == pytest.approx(100 * (86 + 60) / (90 + 80))
    assert summary["headroom"] == pytest.approx(50 * (36 / 40 + 10 / 30))
    incomplete = table.rows[2].summary  # t2r lacks mrpc
    assert list(incomplete.values()) == [None] * 3
    teacher = table.rows[0].summary
    assert list(teacher.values()) == pytest.approx([100, 100, 100])


def test_softmax_is_never_the_best_conversion(table: Table):
    best = {row.label for row in table.rows for cell in row.cells.values() if cell.best}
    assert "softmax, trained on (control)" not in best
    assert best == {"t2r", "luna"} or best == {"luna"}


def test_published_scores_stand_beside(table: Table, tmp_path: Path):
    lines = list(csv.DictReader(io.StringIO(to_csv(table, tmp_path))))
    known = {(r["row"], r["task"]): r["published"] for r in lines}
    assert known["t2r, stage 2 only", "sst2"] == "87.7"  # T2R
    assert known["t2r", "sst2"] == "90.9"  # T2R-HH
    assert known["luna", "mrpc"] == "90.1"
    assert [r["difference"] for r in lines if r["row"] == "luna"] == ["-7.4000", "-30.1000"]
    assert known["softmax, the teacher", "sst2"] == "93.2"
    assert known["softmax, trained on (control)", "sst2"] == ""
    text = markdown(table, tmp_path)
    assert "86.0 / 93.4 (-7.4)" in text
    assert "the two are not ranked together" in text


def test_other_budgets_and_teachers_are_refused_by_name(convert: Make, runs: Path):
    convert("luna", 0.8)
    convert("hedgehog", 0.8, recipe={"epochs": 2}, teacher="another", data="copy")
    convert("t2r", 0.8, data="original")
    with pytest.raises(UserError) as refusal:
        conversions.build_all(records.load_records([runs]))
    assert "epochs is 10 (luna, t2r) or 2 (hedgehog)" in str(refusal.value)
    assert "teacher is another (hedgehog) or hash-sst2 (luna, t2r)" in str(refusal.value)
    assert "data is copy (hedgehog) or original (t2r)" in str(refusal.value)


def test_the_usual_settings_have_the_shortest_name(convert: Make, runs: Path, tmp_path: Path):
    """What most runs of an attention have; the others are named by what they have instead, and
    compared with it."""
    answers = {"predictions": {"dev": [1] * 9 + [0] * 9}, "labels": {"dev": [1] * 18}}
    for seed in (1, 2):
        convert("luna", 0.8, seed=seed, options={"M": 8}, **answers)
        convert("luna", 0.7, seed=seed, task="mrpc", options={"M": 8}, **answers)
    convert("luna", 0.9, key="wide", options={"M": 16}, **answers)
    convert("luna", 0.9, key="joint", options={"M": 8}, recipe={"joint": 0.5}, **answers)
    (found,) = conversions.build_all(records.load_records([runs]))
    rows = {row.label: row for row in found.rows[1:]}
    assert set(rows) == {"luna M=8", "luna M=16", "luna M=8 joint=0.5"}
    assert rows["luna M=8"].cells["sst2"].published
    assert not rows["luna M=16"].cells["sst2"].published
    text = markdown(found, tmp_path)
    assert "* Rows of luna that name no other settings have M=8 joint=0." in text
    pairs = text[text.index("## Example by example") : text.index("## Runs")]
    assert "| luna M=8 | luna M=16 |" in pairs or "| luna M=16 | luna M=8 |" in pairs
    assert not any("M=16" in line and "joint" in line for line in pairs.splitlines())


def test_rows_of_luna_say_which_one_was_converted(convert: Make, runs: Path, tmp_path: Path):
    wide = {"M": 64, "L": 1, "nonneg": "exp", "share": "head"}
    for seed in (1, 2):
        convert("luna", 0.8, seed=seed, options=wide)
    convert("luna", 0.7, key="l", options=wide | {"M": 8, "L": 8, "nonneg": True})
    convert("luna", 0.7, key="e", options=wide, recipe={"stage1_steps": None})
    (found,) = conversions.build_all(records.load_records([runs]))
    rows = {row.label: row for row in found.rows[1:]}
    usual = "luna M=64 L=1 nonneg=exp"
    assert set(rows) == {usual, "luna M=8 L=8 nonneg=True", f"{usual} stage1_steps=epoch"}
    assert {label for label, row in rows.items() if row.cells["sst2"].published} == {usual}
