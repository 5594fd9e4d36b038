"""The same table as CSV, LaTeX and Markdown."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lra.data.rules import keep
from lra.metrics.metric import facts_of, get
from lra.report.latex import latex, paper
from lra.report.render import markdown, to_csv

from ..synthetic import Make, table


def test_latex_escapes_and_cites(make: Make, runs: Path):
    make(
        "performer_relu", 0.4, compute__verdict="over budget ×2.0", data__provenance="a\n\\input{x}"
    )
    text = latex(table(runs), runs)
    (line,) = (line for line in text.splitlines() if line.startswith("performer"))
    assert line.startswith(r"performer\_relu & 40.0 (1) & ")
    assert r"over budget $\times$2.0" in line
    assert "-seed-1" in text
    assert not any(line.startswith("\\input") for line in text.splitlines())  # still a comment


def test_a_spreadsheet_computes_no_cell_of_a_csv(make: Make, runs: Path):
    make("luna", 0.4, compute__verdict="=1+1")
    (row,) = csv.DictReader(to_csv(table(runs), runs).splitlines())
    assert (row["compute"], row["score"]) == ("'=1+1", "40.0000")
    assert [row[c] for c in ("protocol", "steps_share", "steps", "batch")] == [
        "luna",
        "0.02",
        "100",
        "32",
    ]


def test_a_verdict_names_its_measure_and_a_note_the_tokens(make: Make, runs: Path):
    ratios = {"attention": "luna", "parameters": 1.2, "flops": 0.25, "examples": 1}
    stage = {"score": 40.0, "right": 3600, "scored": 9000, "examples": 2000}
    make("luna", 0.4, compute__verdict="under ×0.25", compute__reference=ratios, stages__best=stage)
    text = markdown(table(runs), runs)
    assert "| FLOPs ×0.25 |" in text
    assert "9000 tokens of 2000 test examples" in text


def test_markdown_of_a_record_stays_text(make: Make, runs: Path):
    bad = "<img src=x>|a\nb[c](javascript:d)"
    make("luna", 0.4, data__provenance=bad, compute__verdict=bad, options={"kernel": bad})
    make("luna", 0.4)
    text = markdown(table(runs), runs)
    assert "<img" not in text
    assert "[c](" not in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {8}  # seven columns, twice


def test_rules_stand_apart_and_mark_what_they_beat(make: Make, runs: Path):
    for attention, accuracy in (("softmax", 0.55), ("luna", 0.47), ("linear", 0.1)):
        make(attention, accuracy)
    plain = table(runs)
    rules = {
        "own digits": {"reads": "the root's digits", "test": 47.0, "val": 90.0},
        "lucky": {"reads": "as much, but chosen by test it would be", "test": 60.0, "val": 80.0},
        "constant": {"reads": "nothing", "test": 10.0, "val": 10.0},
    }
    facts = {
        "task": "listops",
        "fingerprint": plain.runs["fingerprint"].iloc[0],
        "metric": facts_of(get("accuracy")),
    }
    keep(facts | {"rules": rules}, runs.parent / "rules.jsonl")
    ruled = table(runs)
    text = markdown(ruled, runs)
    assert "| luna | 47.0 (1) ∅ |" in text
    assert "| softmax | 55.0 (1) |" in text
    assert "the best rule gives 47.00 % (own digits, which reads the first operator" in text
    assert text.index("| constant | 10.0 | nothing |") < text.index("| own digits | 47.0 |")
    assert list(plain.rows.index) == list(ruled.rows.index)  # rules are not ranked
    assert not {*rules} & {*ruled.rows.index}


def test_a_column_says_what_a_head_keeps(make: Make, runs: Path):
    """Older records do not say it; a table of these alone has no such column."""
    make("luna", 0.4)
    assert "State" not in markdown(table(runs), runs)
    for method, size in (("linear", 1056), ("softmax", "grows"), ("nystrom", None)):
        make(method, 0.3, compute__state=size)
    text = markdown(table(runs), runs)
    assert "State: how many numbers a head keeps" in text
    rows = [re.split(r" *\| *", line) for line in text.partition("## ")[0].splitlines()]
    place = next(row.index("state") for row in rows if "state" in row)
    shown = {row[1]: row[place] for row in rows if len(row) > place}
    assert [shown[m] for m in ("luna", "linear", "softmax", "nystrom")] == [
        "–",
        "1,056",
        "grows",
        "–",
    ]
    lines = {
        line["row"]: line["state"]
        for line in csv.DictReader(to_csv(table(runs), runs).splitlines())
    }
    assert lines == {"luna": "", "linear": "1056", "softmax": "grows", "nystrom": ""}


def test_a_paper_has_names_in_words_scores_and_the_best_rule(make: Make, runs: Path):
    for seed in (1, 2, 3):
        make("luna", 0.40 + seed / 100, seed=seed, options={"nonneg": False})
        make("performer_relu", 0.60 + seed / 100, seed=seed)
    rule = {"reads": "the first operator", "test": 45.0, "val": 45.0}
    facts = {"task": "listops", "metric": facts_of(get("accuracy"))}
    keep(
        facts | {"fingerprint": "listops-generated", "rules": {"first": rule}},
        runs.parent / "rules.jsonl",
    )
    lines = paper(table(runs), runs).splitlines()
    assert lines[0] == r"% \usepackage{array,booktabs,graphicx}"
    comments = [line for line in lines if line.startswith("% ")]
    assert any("over 3 seeds" in line for line in comments)
    shown = [line for line in lines if line.endswith(r" \\")]
    assert shown == [
        r"attention & ListOps \\",
        r"Performer with relu & \textbf{62.0}\,{\small$\pm$\,1.0} \\",
        r"LUNA, signed & 42.0\,{\small$\pm$\,1.0}$^{\emptyset}$ \\",
        r"best simple rule & 45.0 \\",
    ]


def test_a_paper_says_how_many_seeds_where_they_differ(make: Make, runs: Path):
    make("luna", 0.4)
    for seed in (1, 2):
        make("linear", 0.3, seed=seed)
        make("softmax", 0.2, seed=seed)
    text = paper(table(runs), runs)
    assert "over 2 seeds, or as many as stand in brackets." in text
    assert "LUNA as published & 40.0 (1)" in text
    assert r"30.0\,{\small$\pm$\,0.0} \\" in text
    assert "best simple rule &" not in text


def test_a_paper_tells_codes_apart_by_their_time_and_has_no_hash(make: Make, runs: Path):
    make("luna", 0.3, codes=["b" * 8])
    make("luna", 0.4, codes=["a" * 8], times__started="2026-01-01T00:00:30+0000")
    make("linear", 0.2, codes=["c" * 8])
    text = paper(table(runs), runs)
    assert "LUNA as published, later code & 40.0" in text
    assert "LUNA as published, earlier code & 30.0" in text
    assert "Linear attention & 20.0" in text
    assert not any(letter * 8 in text for letter in "abc")


def test_long_names_of_a_paper_have_space_between_them(make: Make, runs: Path):
    make("luna", 0.4, options={"nonneg": False, "normalise": "rms", "share": "head"})
    make("linear", 0.3)
    make("softmax", 0.2)
    assert paper(table(runs), runs).count(r"\addlinespace") == 2


# Prints how far a table is made smaller.
DOCUMENT = r"""\documentclass[twocolumn]{article}
\usepackage{array,booktabs,graphicx}
\let\resized\resizebox
\renewcommand{\resizebox}[3]{\sbox0{#3}\resized{#1}{#2}{#3}%
\typeout{needs \the\wd0, has \the\linewidth.}}
\begin{document}
\begin{table}\input{wide}\end{table}
\end{document}
"""


def smaller(text: str, folder: Path) -> float:
    """Compile a table in an article of two columns, and say how much smaller its letters are."""
    (folder / "wide.tex").write_text(text, encoding="utf-8")
    (folder / "main.tex").write_text(DOCUMENT, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    (needs, has) = re.findall(r"needs ([\d.]+)pt, has ([\d.]+)pt", done.stdout)[0]
    return min(1, float(has) / float(needs))


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_a_paper_compiles_within_a_column(make: Make, runs: Path, tmp_path: Path):
    """Names that are long, and more columns than a column of text has room for."""
    for task in ("listops", "text", "retrieval", "image", "pathfinder"):
        for seed in (1, 2):
            options = {"nonneg": False, "normalise": "rms", "share": "head"}
            make("luna", 0.4 + seed / 100, task=task, seed=seed, options=options)
            make("nystrom", 0.4, task=task, seed=seed)
    assert 0.5 < smaller(paper(table(runs), runs), tmp_path) <= 1
