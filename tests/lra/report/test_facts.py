"""What pages may call, each against numbers by hand."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lra.base.errors import UserError
from lra.data.rules import keep
from lra.report import between, facts
from lra.report.cell import Cell
from lra.report.conversions import CONTROL, conversions
from lra.report.study import Study

from ..synthetic import Make, frame, table


@pytest.fixture
def study(make: Make, runs: Path, tmp_path: Path) -> Study:
    for seed, (luna, linear) in enumerate([(0.41, 0.3), (0.43, 0.32)], start=1):
        make("luna", luna, seed=seed)
        make("linear", linear, seed=seed)
    return read(runs, tmp_path)


def read(runs: Path, place: Path) -> Study:
    folder = place / "results"
    folder.mkdir(exist_ok=True)
    all_runs = frame(runs)
    return Study(folder, all_runs, all_runs, [table(runs)])


def fields(fact: Any, *names: str) -> list[Any]:
    return [getattr(fact, name) for name in names]


def test_a_cell_and_a_column(study: Study):
    cell = facts.cell(study, "t", "luna")
    assert fields(cell, "score", "least", "largest", "seeds", "list") == (
        [pytest.approx(42), pytest.approx(41), pytest.approx(43), 2, "41.0, 43.0"]
    )
    assert f"{cell}" == "42.0 ± 1.4"
    every = facts.cells(study, "t")
    assert fields(every, "number", "methods", "runs", "methods_leapt") == [2, 2, 4, 0]
    assert fields(every, "least", "largest", "least_seed", "largest_seed") == (
        pytest.approx([31, 42, 30, 43])
    )
    assert facts.cells(study, "t", without=["luna"]).largest == pytest.approx(31)
    assert facts.cells(study, "t", rows=["luna"]).least == pytest.approx(42)
    with pytest.raises(UserError, match="no row 'lunar'; did you mean luna"):
        facts.cells(study, "t", without=["lunar"])


def test_two_rows_are_tested_with_and_without_their_pairs_of_seeds(study: Study):
    """Of 41, 43 and 30, 32: t is 11 / √2 with two degrees of freedom; each pair differs by 11."""
    tested = between.welch(study, "t", "luna", "linear")
    assert tested.difference == pytest.approx(11)
    assert tested.p == pytest.approx(1 - 11 / math.sqrt(11**2 + 4))
    assert tested.low == pytest.approx(11 - 4.30265 * math.sqrt(2), abs=1e-4)
    both = between.welch(study, "t", "linear", ["luna", "linear"])
    assert fields(both, "seeds", "mean", "difference") == pytest.approx([4, 36.5, 31 - 36.5])
    paired = between.paired(study, "t", "luna", "linear")
    assert fields(paired, "low", "high") == pytest.approx([11, 11])
    assert f"{paired}" == "+11.0 (11.0 to 11.0)"


def test_a_test_needs_two_seeds_and_pairs_the_same_ones(
    make: Make, study: Study, runs: Path, tmp_path: Path
):
    make("softmax", 0.5, seed=3)
    one = read(runs, tmp_path)
    for test in (between.welch, between.paired):
        with pytest.raises(UserError, match="needs two seeds of each row"):
            test(one, "t", "luna", "softmax")
    make("softmax", 0.5, seed=1)
    with pytest.raises(UserError, match="have different seeds"):
        between.paired(read(runs, tmp_path), "t", "luna", "softmax")


def test_lines_of_a_file_have_a_least_and_a_largest_number(study: Study):
    (study.folder / "steps.csv").write_text("case,size\na,9\nb,10\nb,2.5\n", encoding="utf-8")
    sizes = facts.lines(study, "steps.csv", "size", case="b")
    assert fields(sizes, "number", "least", "largest") == [2, 2.5, 10]
    with pytest.raises(UserError, match=r"steps\.csv: no line has case=c"):
        facts.lines(study, "steps.csv", "size", case="c")
    with pytest.raises(UserError, match=r"steps\.csv has no 'cost'"):
        facts.lines(study, "steps.csv", "size", cost=1)
    with pytest.raises(UserError, match=r"'case' is no number in every line"):
        facts.lines(study, "steps.csv", "case")


def test_a_field_within_a_line_of_rules(study: Study):
    line = {"task": "t", "fingerprint": "f", "metric": {}, "rules": {"bag": {"test": 41.05}}}
    keep(line, study.folder / "rules.jsonl")
    assert facts.lines(study, "rules.jsonl", "rules > bag > test", task="t").least == 41.05
    with pytest.raises(UserError, match="'rules > rag > test' is no number in every line"):
        facts.lines(study, "rules.jsonl", "rules > rag > test", task="t")


@pytest.mark.parametrize("file", ["../x.csv", "/etc/passwd", "link.csv", "pipe.csv"])
def test_a_file_lies_in_the_folder(study: Study, file: str):
    (study.folder.parent / "x.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    (study.folder / "link.csv").symlink_to(study.folder.parent / "x.csv")
    os.mkfifo(study.folder / "pipe.csv")
    with pytest.raises(UserError, match="there is no file"):
        facts.lines(study, file, "b", a=1)
    shutil.copy(study.folder.parent / "x.csv", study.folder)
    assert facts.lines(study, "x.csv", "b", a=1).least == 2


def test_records_are_counted_and_chosen(study: Study):
    every = facts.records(study)
    assert fields(every, "number", "attentions", "without_answers") == [4, 2, 4]
    assert f"{every}" == "4"
    luna = facts.records(study, where={"attention": "luna", "seed": [2]})
    assert fields(luna, "number", "mean") == [1, pytest.approx(43)]
    with pytest.raises(UserError, match="no run of records/ is of"):
        facts.records(study, where={"attention": "performer"})


def test_published_scores_are_of_a_row_or_of_all_others(study: Study):
    one = facts.published(study, "listops", row="S4-LegS")
    assert fields(one, "number", "least", "largest") == [1, 59.6, 59.6]
    others = facts.published(study, "listops", outside=["states"], without=["H-Transformer-1D"])
    assert others.largest < 40
    with pytest.raises(UserError, match="nothing is published of S4-Legs on listops"):
        facts.published(study, "listops", row="S4-Legs")


def test_leaps_are_steps_of_a_third_and_two_thirds_of_the_way():
    cells = [
        Cell(steps_to_third="750 1000", steps_to_two_thirds="1000 never"),
        Cell(steps_to_third="never", steps_to_two_thirds="never"),
        Cell(score=1.0),  # of a table without rules
    ]
    assert facts.leaps_of(cells) == {
        "leapt": 2,
        "arrived": 1,
        "unfinished": 1,
        "stayed": 1,
        "first_leap": 750,
        "last_leap": 1000,
        "leaps": "750 to 1,000",
        "slowest": 250,
    }
    assert facts.leaps_of(cells[1:])["leaps"] == "none"


def test_conversions_are_compared_example_by_example(convert: Make, runs: Path):
    """All rows against one, and a pair as its table has it; a positive number is below the row."""
    labels = {"dev": [1] * 20}
    convert("softmax", 0.9, predictions=labels, labels=labels)
    convert("hedgehog", 0.5, predictions={"dev": [1] * 10 + [0] * 10}, labels=labels)
    convert("t2r", 0.2, predictions={"dev": [1] * 4 + [0] * 16}, labels=labels)
    (made,) = conversions(frame(runs))
    study, name = Study(runs, frame(runs), frame(runs), [made]), made.spec.name
    against = between.against(study, name, CONTROL)
    assert fields(against, "number", "nearest", "farthest") == pytest.approx([2, 50, 80])
    assert 0 < against.p < 0.05
    upwards = between.against(study, name, "t2r")
    assert fields(upwards, "nearest", "farthest") == pytest.approx([-80, -30])
    first, second = made.pairs[["first", "second"]].iloc[0]
    pair = between.pair(study, name, first, second)
    assert abs(pair.difference) == pytest.approx(30) or abs(pair.difference) in (50, 80)
    with pytest.raises(UserError, match="no line has first="):
        between.pair(study, name, second, first)
