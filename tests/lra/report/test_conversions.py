"""Conversions: records, the control, both recoveries, published numbers beside, and the page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lra.cli import main
from lra.config import UserError
from lra.records import CONVERSION, load
from lra.report import conversions
from lra.report.render import markdown, to_csv
from lra.report.table import Table

RECIPE = {"stage1": "ce", "stage1_lr": 0.01, "stage1_steps": 250, "batch": 8, "lr": 1e-5,
          "phi_lr": None, "epochs": 10, "patience": 3}  # fmt: skip
TEACHERS = {"sst2": 0.9, "mrpc": 0.8}

Convert = Callable[..., Path]


@pytest.fixture
def convert(runs: Path) -> Convert:
    """convert("luna", 0.87, task="sst2", ...): the folder that convert.py leaves."""

    def write(attention: str | None, score: float, *, task: str = "sst2", seed: int = 1,
              key: str = "k", **more: Any) -> Path:  # fmt: skip
        facts: dict[str, Any] = {
            "schema": 1,
            "status": "finished",
            "task": task,
            "attention": attention,
            "options": {"layers": "all"} | more.pop("options", {}),
            "recipe": RECIPE | more.pop("recipe", {}),
            "seed": seed,
            "teacher": f"hash-{task}",
            "scores": {"teacher": {"score": TEACHERS[task]}, "best": {"score": score}},
            "score": score,
            "floor": 0.5,
            "stage1": None if attention == "softmax" else {"loss": 1},
            "stage2": {"epochs": []},
            "phi_parameters": 1000,
        } | more
        place = runs / "convert" / task / "minilm" / (attention or "teacher") / key
        folder = place / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(facts), encoding="utf-8")
        return folder / "result.json"

    return write


@pytest.fixture
def table(convert: Convert, runs: Path) -> Table:
    """luna on two tasks, t2r with and without stage 1, the control, and the teacher's record."""
    convert(None, 0.9)
    for seed in (1, 2):
        convert("softmax", 0.91, seed=seed)
        convert("luna", 0.83 + seed / 50, seed=seed)
        convert("luna", 0.60, task="mrpc", seed=seed)
    convert("t2r", 0.86)
    convert("t2r", 0.81, key="other", stage1=None, recipe={"stage1": None})
    (found,) = conversions.build_all(runs)
    return found


def test_rows_are_methods_with_their_stages_and_the_control_comes_first(table: Table):
    assert [row.label for row in table.rows] == [
        "softmax, the teacher", "softmax, trained on (control)", "t2r", "t2r, stage 2 only", "luna",
    ]  # fmt: skip
    assert table.tasks == ["sst2", "mrpc"]
    luna = table.rows[-1].cells["sst2"]
    assert luna.mean == pytest.approx(86)
    assert luna.deviation == pytest.approx(2**0.5)


def test_both_recoveries_and_the_headroom(table: Table):
    told = table.rows[-1].summary  # 86 of 90, 60 of 80
    assert told["mean of ratios"] == pytest.approx(50 * (86 / 90 + 60 / 80))
    assert told["ratio of means"] == pytest.approx(100 * (86 + 60) / (90 + 80))
    assert told["headroom"] == pytest.approx(50 * (36 / 40 + 10 / 30))
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
    assert "they are not ranked together" in text


def test_other_budgets_and_teachers_are_refused_by_name(convert: Convert, runs: Path):
    convert("luna", 0.8)
    convert("hedgehog", 0.8, recipe={"epochs": 2}, teacher="another", data="copy")
    convert("t2r", 0.8, data="original")
    with pytest.raises(UserError) as refusal:
        conversions.build_all(runs)
    assert "epochs is 10 (luna, t2r) or 2 (hedgehog)" in str(refusal.value)
    assert "teacher is another (hedgehog) or hash-sst2 (luna, t2r)" in str(refusal.value)
    assert "data is copy (hedgehog) or original (t2r)" in str(refusal.value)


def test_options_that_differ_name_the_rows(convert: Convert, runs: Path):
    convert("luna", 0.8, options={"M": 8})
    convert("luna", 0.9, options={"M": 16}, key="l")
    (found,) = conversions.build_all(runs)
    assert [row.label for row in found.rows[1:]] == ["luna M=16", "luna M=8"]


def test_the_usual_settings_have_the_shortest_name_and_the_published_value(
    convert: Convert, runs: Path, tmp_path: Path
):
    """What most runs of an attention have; the others are named by what they have instead, and
    compared with it."""
    answers = {"predictions": {"dev": [1] * 9 + [0] * 9}, "labels": {"dev": [1] * 18}}
    for seed in (1, 2):
        convert("luna", 0.8, seed=seed, options={"M": 8}, **answers)
        convert("luna", 0.7, seed=seed, task="mrpc", options={"M": 8}, **answers)
    convert("luna", 0.9, key="wide", options={"M": 16}, **answers)
    convert("luna", 0.9, key="joint", options={"M": 8}, recipe={"joint": 0.5}, **answers)
    (found,) = conversions.build_all(runs)
    rows = {row.label: row for row in found.rows[1:]}
    assert set(rows) == {"luna M=8", "luna M=16", "luna M=8 joint=0.5"}
    assert rows["luna M=8"].cells["sst2"].published
    assert not rows["luna M=16"].cells["sst2"].published
    text = markdown(found, tmp_path)
    assert "* luna without more words: M=8 joint=0." in text
    pairs = text[text.index("## Example by example") : text.index("## Runs")]
    assert "| luna M=8 | luna M=16 |" in pairs or "| luna M=16 | luna M=8 |" in pairs
    assert not any("M=16" in line and "joint" in line for line in pairs.splitlines())


def test_rows_of_luna_say_which_one_was_converted(convert: Convert, runs: Path, tmp_path: Path):
    wide = {"M": 64, "L": 1, "nonneg": "exp", "share": "head"}
    for seed in (1, 2):
        convert("luna", 0.8, seed=seed, options=wide)
    convert("luna", 0.7, key="l", options=wide | {"M": 8, "L": 8, "nonneg": True})
    convert("luna", 0.7, key="e", options=wide, recipe={"stage1_steps": None})
    (found,) = conversions.build_all(runs)
    rows = {row.label: row for row in found.rows[1:]}
    usual = "luna M=64 L=1 nonneg=exp"
    assert set(rows) == {usual, "luna M=8 L=8 nonneg=True", f"{usual} stage1_steps=epoch"}
    assert {label for label, row in rows.items() if row.cells["sst2"].published} == {usual}


def test_from_runs_to_files_and_back(convert: Convert, runs: Path, tmp_path: Path, capsys):
    convert("luna", 0.8, options={"M": "<script>"})
    results = tmp_path / "results"
    assert main(["records", "export", str(results / "records"), "--runs", str(runs)]) == 0
    assert "1 new records" in capsys.readouterr().out
    assert main(["table", "--write", "--results", str(results)]) == 0
    assert {p.name for p in (results / "tables").iterdir()} == {
        f"glue_minilm.{end}" for end in ("md", "csv", "tex", "published.tex")}  # fmt: skip
    assert (results / "index.html").read_text(encoding="utf-8").count(
        "<script>"
    ) == 1  # the page's own
    assert main(["table", "--check", "--results", str(results)]) == 0
    (exported,) = (results / "records").rglob("*.json")
    exported.write_text(
        exported.read_text(encoding="utf-8").replace('"score": 0.8', '"score": 0.9'),
        encoding="utf-8",
    )
    capsys.readouterr()
    assert main(["table", "--check", "--results", str(results)]) == 2
    assert f"{exported} is damaged or was edited" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"score": float("nan")}, "score is nan, which is no score"),
        ({"score": 7.0}, "score is 7.0, which is no score"),
        ({"score": 0.81}, "its score is not that of 'best'"),
        ({"task": "../../../../etc"}, "task is '../../../../etc', which is no word"),
        ({"scores": {"teacher": {"score": 0.9}, "best": 3}}, "scores.best.score is missing"),
        ({"status": "running"}, "is foreign: schema 1, status running"),
        ({"seconds": "soon"}, "seconds.total is 'soon', which is no number"),
        ({"labels": {"dev": [1, 0]}, "predictions": {"dev": [1]}}, "are not those of its labels"),
    ],
)
def test_a_damaged_record_is_refused_by_name(
    convert: Convert, runs: Path, tmp_path: Path, change: dict[str, Any], told: str
):
    path = convert("luna", 0.8)
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8"
    )
    with pytest.raises(UserError, match=told) as refusal:
        load([runs])
    assert str(path) in str(refusal.value)


def test_a_run_that_two_machines_recorded_counts_once(
    convert: Convert, runs: Path, tmp_path: Path, capsys
):
    """Its key is made of the teacher's path, and so is another on each; the first to finish
    stands, or what is there where that was not recorded."""
    first, second = convert("luna", 0.8), convert("luna", 0.9, key="elsewhere")
    assert len(load([runs], CONVERSION)) == 1
    second.rename(second.with_suffix(".later"))
    assert main(["records", "export", str(tmp_path / "out"), "--runs", str(runs)]) == 0
    second.with_suffix(".later").rename(second)
    first.unlink()
    assert main(["records", "import", str(runs), "--into", str(tmp_path / "out")]) == 0
    assert "with another outcome: the first to finish stands" in capsys.readouterr().out
    assert [r["score"] for r in load([tmp_path / "out"], CONVERSION)] == [0.8]


@pytest.mark.parametrize("there", [0.8, 0.9])
def test_the_conversion_that_finished_first_stands_whichever_came_first(
    convert: Convert, runs: Path, tmp_path: Path, there: float
):
    out = tmp_path / "out"
    for n, score in enumerate(sorted([0.8, 0.9], key=lambda s: s != there)):
        hour = 10 if score == 0.8 else 11
        place = convert("luna", score, key=f"k{n}", git={"revision": f"r{hour}"},
                        times={"finished": f"2026-01-01T{hour}:00:00+00:00"})  # fmt: skip
        assert main(["records", "import", str(runs), "--into", str(out)]) == 0
        place.unlink()
    (record,) = load([out], CONVERSION)
    assert (record["score"], record.revision) == (0.8, "r10")


def test_a_damaged_run_and_no_conversion_is_imported(
    convert: Convert, make, runs: Path, tmp_path: Path, capsys
):
    convert("luna", 0.8)
    make("luna", 0.4).write_text("{", encoding="utf-8")
    assert main(["records", "import", str(runs), "--into", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_runs_of_the_arena_are_kept_apart(convert: Convert, make, runs: Path):
    convert("luna", 0.8)
    make("luna", 0.4)
    assert [r.attention for r in load([runs], "training")] == ["luna"]
    assert [r["task"] for r in load([runs], CONVERSION)] == ["sst2"]
