"""`lra table` on the terminal."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from lra.cli import main
from lra.results.export import export

from ..synthetic import Make


def test_the_terminal_splits_what_cannot_be_compared(
    make: Make, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    make("luna", 0.41)
    make("luna", 0.43, seed=2)
    make("luna", 0.38, options={"M": 4})
    make("linear", 0.30, lr=0.1)
    assert main(["table", "--runs", str(runs)]) == 0
    shown = capsys.readouterr().out
    linear, luna = shown.split("protocol.recipe.lr 0.002")
    assert "protocol.recipe.lr 0.1" in linear
    assert re.search(r"luna M=8 +42\.0 ± 1\.4 .* 1 2 *\n", luna)
    assert re.search(r"luna M=4 +38\.0 .* 1 *\n", luna)
    assert re.search(r"linear +30\.0 ", linear)
    assert "linear" not in luna
    export({tmp_path / "out" / "mine.jsonl": [runs]})  # and exported records alike
    assert main(["table", "--runs", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == shown


def test_a_choice_of_tasks_and_attentions_in_another_order(
    make: Make, runs: Path, capsys: pytest.CaptureFixture[str]
):
    def shown(*words: str) -> list[str]:
        assert main(["table", "--runs", str(runs), "--format", "csv", *words]) == 0
        lines = csv.DictReader(io.StringIO(capsys.readouterr().out))
        return [f"{line['column']} {line['row']}" for line in lines]

    for task in ("listops", "image"):
        for attention, accuracy in (("luna", 0.4), ("linear", 0.3), ("softmax", 0.5)):
            make(attention, accuracy, task=task)
    listops = ["listops softmax", "listops luna", "listops linear"]
    assert sorted(shown()) == sorted([*listops, *(x.replace("listops", "image") for x in listops)])
    assert shown("--task", "listops") == listops
    assert shown("--task", "listops", "--attention", "luna", "linear") == listops[1:]
    assert shown("--task", "listops", "--sort", "parameters") == [listops[i] for i in (1, 2, 0)]
    assert shown("--task", "listops", "--sort", "steps_per_second") == [
        listops[i] for i in (0, 2, 1)
    ]


def test_settings_that_may_differ_name_the_rows(
    make: Make, runs: Path, capsys: pytest.CaptureFixture[str]
):
    for lr in (0.002, 0.1):
        make("luna", 0.4 + lr, lr=lr)
    words = ["table", "--runs", str(runs), "--vary", "protocol.recipe.lr", "--format"]
    assert main([*words, "json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)
    assert [row["row"] for row in table["rows"]] == ["luna lr=0.002", "luna lr=0.1"]


def test_every_format_on_standard_output(
    make: Make, runs: Path, convert: Make, capsys: pytest.CaptureFixture[str]
):
    def printed(format: str) -> str:
        assert main(["table", "--runs", str(runs), "--format", format]) == 0
        return capsys.readouterr().out

    make("luna", 0.41)
    make("luna", 0.43, seed=2)
    make("linear", 0.30, task="image")
    convert("luna", 0.87, task="sst2")
    tables = {table["table"]: table for table in json.loads(printed("json"))}
    (cell,) = tables["listops"]["cells"]
    assert (cell["score"], cell["seeds"]) == (pytest.approx(42.0), 2)
    assert cell["deviation"] == pytest.approx(2**0.5)
    assert (cell["parameters"], cell["compute"]) == (84_000, "matched")
    assert tables["image"]["cells"][0]["deviation"] is None
    assert len(tables) == 3
    assert printed("csv").count("table,row,attention") == 1
    assert printed("tex").count(r"\begin{tabular}") == 3
    assert "](../" not in printed("md")  # no link to a record, which lies elsewhere


def test_names_that_no_run_has_are_answered_with_the_nearest(
    make: Make, runs: Path, capsys: pytest.CaptureFixture[str]
):
    make("luna", 0.41)
    for words, answer in (
        (["--task", "listop"], "did you mean listops?"),
        (["--attention", "lunar"], "did you mean luna?"),
        (["--vary", "protocol.recipe.rl"], "did you mean protocol.recipe.lr"),
        (["--sort", "paramters"], "did you mean parameters?"),
        (["--write", "--sort", "score"], "are for tables on the terminal"),
    ):
        assert main(["table", "--runs", str(runs), *words]) == 2
        assert answer in capsys.readouterr().err
