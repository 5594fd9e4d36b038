"""The same table as CSV, LaTeX and Markdown."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from lra.report.render import latex, markdown, to_csv
from lra.results.export import export

from ..synthetic import Make, table


def test_latex_escapes_and_cites(make: Make, runs: Path):
    make(
        "performer_relu", 0.4, compute__verdict="over budget ×2.0", data__provenance="a\n\\input{x}"
    )
    text = latex(table(runs), runs)
    (line,) = (line for line in text.splitlines() if line.startswith("performer"))
    assert line.startswith(r"performer\_relu & $40.0$ (1) & ")
    assert r"over budget $\times$2.0" in line
    assert "-seed-1" in text
    assert not any(line.startswith("\\input") for line in text.splitlines())  # still a comment


def test_dead_queries_are_shown_where_there_are_any(make: Make, runs: Path):
    make("linear", 0.4, test__dead_rows=None)
    for seed, dead in ((1, 0.2), (2, 0.3)):
        make("luna", 0.3, seed=seed, test__dead_rows=dead)
    shown = table(runs)
    assert "| attention | listops | dead queries | parameters |" in markdown(shown, runs)
    rows = list(csv.DictReader(to_csv(shown, runs).splitlines()))
    assert {r["attention"]: r["dead"] for r in rows} == {"luna": "25.0000", "linear": ""}
    make("luna", 0.3, task="image")
    other = markdown(table(runs), runs).split("## Cost on image")[1].split("##")[0]
    assert "dead queries" not in other


def test_markdown_links_committed_records(make: Make, runs: Path, tmp_path: Path):
    make("luna", 0.4)
    results = tmp_path / "results"
    export({results / "records" / "mine.jsonl": [runs]})
    text = markdown(table(results / "records"), results)
    (target,) = [p.split(")")[0] for p in text.split("](../")[1:]]
    assert (results / target).exists()


def test_a_spreadsheet_computes_no_cell_of_a_csv(make: Make, runs: Path):
    make("luna", 0.4, compute__verdict="=1+1")
    (row,) = csv.DictReader(to_csv(table(runs), runs).splitlines())
    assert (row["compute"], row["score"]) == ("'=1+1", "40.0000")


def test_markdown_of_a_record_stays_text(make: Make, runs: Path):
    bad = "<img src=x>|a\nb[c](javascript:d)"
    make("luna", 0.4, data__provenance=bad, compute__verdict=bad, options={"kernel": bad})
    make("luna", 0.4)
    text = markdown(table(runs), runs)
    assert "<img" not in text
    assert "[c](" not in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {8}  # seven columns, twice
