"""The same table as CSV, LaTeX and Markdown."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from lra.report.leaderboard import FIVE, build
from lra.report.render import latex, latex_cost, latex_published, markdown, to_csv, to_json
from lra.report.specs import TableSpec
from lra.results import record as records

from ..synthetic import Make, table


def test_csv_has_every_cell_and_its_runs(make: Make, runs: Path):
    make("luna", 0.40)
    make("luna", 0.42, seed=2)
    (line,) = csv.DictReader(io.StringIO(to_csv(table(runs), runs)))
    identity = records.load_records([runs])[0]["identity"]
    assert line["score"] == "41.0000"
    assert line["seeds"] == "2"
    assert line["runs"] == f"{identity}-seed-1 {identity}-seed-2"
    assert line["fingerprint"] == "listops-generated"


def tabular(text: str) -> list[list[str]]:
    """The cells of a LaTeX tabular; its braces pair and every row has a cell for each column."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    begin, *body, end = lines
    columns = re.fullmatch(r"\\begin\{tabular\}\{(lr*)\}", begin)
    assert columns, f"no tabular of one left and then right columns: {begin}"
    assert end == r"\end{tabular}"
    assert [line for line in body if line.endswith("rule")][0::2] != []
    rows = []
    for line in (line for line in body if not line.startswith((r"\toprule", r"\mid", r"\bottom"))):
        assert line.endswith(r" \\"), line
        plain = re.sub(r"\\[{}\\]", "", line)
        assert plain.count("{") == plain.count("}")
        assert len(re.findall(r"(?<!\\)\$", line)) % 2 == 0
        cells = re.split(r"(?<!\\)&", line.removesuffix(r" \\"))
        spanned = re.match(r"\\multicolumn\{(\d+)\}", line)
        assert len(columns[1]) == (int(spanned[1]) if spanned else len(cells))
        rows.append([cell.strip() for cell in cells])
    return rows


def test_latex_escapes_and_cites(make: Make, runs: Path):
    make(
        "performer_relu", 0.4, compute__verdict="over budget ×2.0", data__provenance="a\n\\input{x}"
    )
    text = latex(table(runs), runs)
    head, row_ = tabular(text)
    assert head == ["attention", "listops", "parameters", "GFLOPs", "compute", "steps/s",
                    "peak MiB"]  # fmt: skip
    assert row_[:2] == [r"performer\_relu", "$40.0$ (1)"]
    assert row_[4] == r"over budget $\times$2.0"
    assert "-seed-1" in text
    assert not any(line.startswith("\\input") for line in text.splitlines())  # still a comment


def test_latex_of_several_tasks_has_costs_and_published_values(make: Make, runs: Path):
    for task in FIVE:
        for seed in (1, 2):
            make("luna", 0.5 + seed / 100, task=task, seed=seed)
    make("linear", 0.3)
    found = table(runs, published="lra")
    assert tabular(latex(found, runs))[1] == ["luna", *[r"$\mathbf{51.5} \pm 0.7$ (2)"] * 5,
                                              "51.5", "5/5"]  # fmt: skip
    costs = tabular(latex_cost(found, runs))
    assert [r[0] for r in costs[1:4]] == [r"\multicolumn{6}{l}{\emph{listops}}", "luna", "linear"]
    assert costs[2][1:3] == ["84,000", "0.019"]
    head, first, second = tabular(latex_published(found, runs))
    assert head[-2:] == ["average", r"published by"]
    assert first[0] == "linear"  # by name: no ranking
    assert second[1] == "51.5 / 38.94 (+12.6)"
    assert second[-2:] == ["51.5 / 65.44 (-13.9)", "luna"]
    assert "% luna: measured by LUNA's authors" in latex_published(found, runs)


def test_queries_without_attention_have_a_column_where_there_are_any(make: Make, runs: Path):
    """Beside the costs of the tasks where a run left one without; in points of percent."""
    make("linear", 0.4, test__dead_rows=None)
    for seed, dead in ((1, 0.2), (2, 0.3)):
        make("luna", 0.3, seed=seed, test__dead_rows=dead)
    found = table(runs)
    text = markdown(found, runs)
    assert "| attention | listops | dead queries | parameters |" in text
    assert "(#luna-listops) | 25.0% | 84,000 |" in text
    assert "(#linear-listops) | – | 86,000 |" in text
    assert "Dead queries: queries of the last test batch" in text
    rows = list(csv.DictReader(to_csv(found, runs).splitlines()))
    assert {r["attention"]: r["dead_queries"] for r in rows} == {"luna": "25.0", "linear": ""}
    assert [r["parameters"] for r in rows] == ["86000", "84000"]
    cells = {r["attention"]: r["cells"]["listops"] for r in to_json(found)["rows"]}
    assert cells["luna"]["dead_queries"] == pytest.approx(25)
    make("luna", 0.3, task="image")
    both = table(runs)
    assert "dead queries" not in markdown(both, runs).split("## Cost on image")[1].split("##")[0]
    head, *rows_ = tabular(latex_cost(both, runs))
    assert head[1] == "dead queries"
    assert [r[1] for r in rows_ if r[0] == "luna"] == [r"25.0\%", ""]


def test_markdown_links_committed_records(make: Make, runs: Path, tmp_path: Path):
    make("luna", 0.4)
    results = tmp_path / "results"
    records.export([runs], results / "records")
    found = build(TableSpec(name="t", title="T"), records.load_records([results / "records"]))
    text = markdown(found, results)
    (target,) = [p.split(")")[0] for p in text.split("](../")[1:]]
    assert (results / target).exists()


def test_markdown_of_a_record_stays_text(make: Make, runs: Path):
    bad = "<img src=x>|a\nb[c](javascript:d)"
    make("luna", 0.4, data__provenance=bad, compute__verdict=bad, options={"kernel": bad})
    make("luna", 0.4)
    text = markdown(table(runs), runs)
    assert "<img" not in text
    assert "[c](" not in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {8}  # seven columns, twice


def test_negative_options_have_links_of_their_own(make: Make, runs: Path):
    make("luna", 0.4, options={"L": 1})
    make("luna", 0.4, options={"L": -1})
    links = re.findall(r"\(#([^)]+)\)", markdown(table(runs), runs))
    assert len(set(links)) == 2
