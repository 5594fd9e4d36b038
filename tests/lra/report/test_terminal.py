"""`lra table` on the terminal."""

from __future__ import annotations

import csv
import io
import itertools
import re
from pathlib import Path

import pytest

from lra.cli import main
from lra.data.rules import keep
from lra.metrics.metric import facts_of, get
from lra.results.export import export

from ..synthetic import Make

Capture = pytest.CaptureFixture[str]


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
    assert re.search(r"luna M=8 +42\.0 ± 1\.4 \(2\) ", luna)
    assert re.search(r"luna M=4 +38\.0 \(1\) ", luna)
    assert re.search(r"linear \(Linear attention\) +30\.0 ", linear)
    assert "linear" not in luna
    export({tmp_path / "out" / "mine.jsonl": [runs]})  # and exported records alike
    assert main(["table", "--runs", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == shown


def test_tasks_that_share_a_protocol_are_columns_of_one_table(
    make: Make, runs: Path, capsys: Capture
):
    for task, attention in itertools.product(("listops", "image", "mine"), ("luna", "linear")):
        make(attention, 0.4, task=task)
    make("luna", 0.5, task="image", lr=0.1)
    assert main(["table", "--runs", str(runs)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\nattention +listops +image +mine +average tasks", out)
    assert re.search(r"luna +40\.0 \(1\) 40\.0 \(1\) 40\.0 \(1\) +– +2/5", out)
    assert "\nimage, protocol.recipe.lr 0.1" in out, "another rate, another table"
    for task in ("mine", "yours"):
        make("rff", 0.4, task=task)
    assert main(["table", "--runs", str(runs), "--task", "mine", "yours"]) == 0
    assert "average" not in capsys.readouterr().out.split("─")[0]


def test_a_search_over_one_attention_is_one_table(make: Make, runs: Path, capsys: Capture):
    """Optuna draws another rate for every trial."""
    for i, lr in enumerate((0.001, 0.002, 0.003)):
        make("luna", 0.4 + i / 100, lr=lr)
    assert main(["table", "--runs", str(runs)]) == 0
    out = capsys.readouterr().out
    assert out.count("attention ") == 1
    assert re.findall(r"luna (lr=\S+)", out.split("─")[-1]) == ["lr=0.001", "lr=0.002", "lr=0.003"]


@pytest.mark.parametrize(
    "words", [[], ["--task", "listops"], ["--task", "image", "--attention", "luna", "linear"]]
)
def test_a_choice_of_tasks_and_attentions(
    make: Make, runs: Path, capsys: Capture, words: list[str]
):
    tasks, attentions = ("listops", "image"), ("luna", "linear", "softmax")
    for task, attention in itertools.product(tasks, attentions):
        make(attention, 0.4, task=task)
    assert main(["table", "--runs", str(runs), "--format", "csv", *words]) == 0
    lines = csv.DictReader(io.StringIO(capsys.readouterr().out))  # one head for all tables
    chosen_tasks = words[1:2] or tasks
    assert sorted((line["column"], line["row"]) for line in lines) == sorted(
        itertools.product(chosen_tasks, words[3:] or attentions)
    )


def test_a_table_is_headed_by_the_option_that_made_its_data(
    make: Make, runs: Path, capsys: Capture
):
    """And not by the lengths that follow from it."""
    make("luna", 0.41, pairs=64)
    make("luna", 0.42, pairs=128)
    assert main(["table", "--runs", str(runs)]) == 0
    heads = re.findall(r"^\w+, (.*?) *$", capsys.readouterr().out, re.M)
    assert sorted(heads) == ["task.pairs 128", "task.pairs 64"]


def test_a_narrow_terminal_folds_names(
    make: Make, runs: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    make("luna", 0.41, options={"kernel": "a_kernel_with_a_very_long_name"})
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["table", "--runs", str(runs)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^luna +41.0 .* matched\nkernel=a_kernel_with_a_very_long_name *$", out, re.M)
    assert "Not shown on 80 columns: " in out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out, "a command would be lost"


def test_rules_of_the_results_or_of_ones_own_mark_any_folder(
    make: Make, runs: Path, tmp_path: Path, capsys: Capture
):
    """By the fingerprint of the data; one's own file goes over that of the results."""
    make("luna", 0.41)
    make("linear", 0.52)
    (tmp_path / "results").mkdir()
    facts = {
        "task": "listops",
        "fingerprint": "listops-generated",
        "metric": facts_of(get("accuracy")),
    }
    command = ["table", "--runs", str(runs), "--results", str(tmp_path / "results")]

    def shown(*more: str) -> str:
        assert main([*command, *more]) == 0
        return capsys.readouterr().out

    out = shown()
    assert "∅" not in out
    assert "Rules not computed: lra data baseline listops" in out
    for place, score, marked in (("results", 45.0, 1), ("", 60.0, 2)):
        rule = {"reads": "the first operator", "test": score, "val": score}
        keep(facts | {"rules": {"first": rule}}, tmp_path / place / "rules.jsonl")
        out = shown()
        assert out.split("∅ no better")[0].count("∅") == marked
        assert "∅ no better than the best rule." in out
        assert re.search(rf"\nfirst +{score}", out)
        assert "the first operator" not in out
    assert "the first operator" in shown("--notes")


def test_no_row_is_marked_where_rules_are_missing(
    make: Make, runs: Path, tmp_path: Path, capsys: Capture
):
    """Neither by a rule nor by one answer to everything: a row without ∅ would look better."""
    make("luna", 0.41)
    make("linear", 0.01)
    facts = {"task": "listops", "fingerprint": "listops-generated"}
    rule = {"reads": "the first operator", "test": 45.0, "val": 45.0}
    line = facts | {"metric": facts_of(get("accuracy")), "rules": {"first": rule}}
    command = ["table", "--runs", str(runs), "--results", str(tmp_path / "results")]
    (tmp_path / "results").mkdir()
    for missing, marked in ((["bag", "counts"], False), ([], True)):
        keep(line | ({"missing": missing} if missing else {}), tmp_path / "rules.jsonl")
        for form, sign in (("md", "∅"), ("paper", "emptyset")):
            assert main([*command, "--format", form]) == 0
            printed = capsys.readouterr().out
            assert (sign in printed) == marked
            assert "lra table" in printed
            assert "--write" not in printed  # it has made the files below results alone
        assert main([*command, "--format", "csv"]) == 0
        (best,) = {line["rule"] for line in csv.DictReader(io.StringIO(capsys.readouterr().out))}
        assert best == ("45.0000" if marked else "")
        assert main(command) == 0
        out = capsys.readouterr().out
        assert ("∅" in out) == marked
        assert ("Rules incomplete: lra data baseline listops" in out) != marked
        assert main([*command, "--notes"]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert (
            "rules incomplete, without bag, counts: no row is held against them" in out
        ) != marked
        assert ("the best rule gives 45" in out) == marked
        (tmp_path / "rules.jsonl").unlink()


def test_notes_are_a_few_lines_unless_all_are_asked_for(
    make: Make, runs: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    long = {"kernel": "a_kernel_with_a_very_long_name"}
    for seed in (1, 2, 3):
        make("luna", 0.41 + seed / 1000, seed=seed, options=long)
        make("linear", 0.52 + seed / 1000, seed=seed)
    counts = []
    for more in ((), ("--notes",)):
        assert main(["table", "--runs", str(runs), *more]) == 0
        lines = capsys.readouterr().out.rstrip().splitlines()
        after = next(i for i, line in enumerate(lines) if line.startswith("kernel="))
        counts.append(len(lines) - 1 - after)
        assert max(map(len, lines)) <= 80
    assert counts[0] == 4 < 10 < counts[1]
    assert main(["table", "--write", "--notes"]) == 2


def test_speeds_of_a_shared_machine_are_hidden(
    make: Make, runs: Path, tmp_path: Path, capsys: Capture
):
    make("luna", 0.41)
    results = tmp_path / "results"
    export({results / "records" / "mine.jsonl": [runs]})
    spec = "- {name: mine, title: Mine, records: mine, speed: false}\n"
    (results / "tables.yaml").write_text(spec, encoding="utf-8")
    command = ["table", "--results", str(results), "--format", "csv", "--runs"]
    for folder, shown in ((runs, True), (results / "records", False)):
        assert main([*command, str(folder)]) == 0
        (line,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
        assert bool(line["steps_per_second"]) == shown


def test_conversions_alone_are_a_table(convert: Make, runs: Path, capsys: Capture):
    convert("luna", 0.8)
    assert main(["table", "--runs", str(runs)]) == 0
    assert "Conversion of minilm, GLUE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--task", "listop"], "did you mean listops?"),
        (["--attention", "lunar"], "did you mean luna?"),
        (["--vary", "protocol.recipe.rl"], "did you mean protocol.recipe.lr"),
        (["--vary", "L"], "no such setting; did you mean attention.L?"),
        (["--vary", "seed"], "tables average over seeds"),
        (["--vary", "nonsense"], "no such setting; known: attention.M\n"),
        (["--write", "--task", "listops"], "are for tables on the terminal"),
    ],
)
def test_names_that_no_run_has_are_answered_with_the_nearest(
    make: Make, runs: Path, capsys: Capture, words: list[str], answer: str
):
    make("luna", 0.41)
    make("luna", 0.42, options={"M": 16})
    assert main(["table", "--runs", str(runs), *words]) == 2
    assert answer in capsys.readouterr().err
