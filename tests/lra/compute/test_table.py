"""`lra compute table`: what it prints and writes."""

from __future__ import annotations

import csv

import pytest

import luna
from lra.cli import main
from lra.compute import table as page
from lra.compute.budget import budget_of, times
from lra.compute.count import count_run

from ..conftest import REPOSITORY, composed

CHOSEN = ("performer", "softmax", "t2r")
STALE = ("bigbird", "hedgehog", "luna", "nystrom", "softmax")  # would show it first


@pytest.fixture(scope="module")
def table() -> list[page.CostRow]:
    return list(page.rows([], tasks=["image"], attentions=CHOSEN))


def test_rows_before_and_after_solving(table):
    rows = {(row.attention, row.setting): row for row in table}
    assert len(rows) == len(table)
    assert set(rows) == {(a, s) for a in CHOSEN for s in page.SETTINGS} - {("softmax", "solved")}
    assert rows["performer", "published"].options == {"m": 128}
    assert rows["performer", "published"].verdict == "under ×0.88"
    for setting in ("shipped", "solved"):
        assert rows["performer", setting].options == {"m": 160}
        assert rows["performer", setting].verdict == "matched"
    assert rows["t2r", "published"].options == {"r": None}
    assert rows["t2r", "solved"].run.compute.exempt


def test_the_page_holds_every_setting_and_verdict(table):
    text = page.markdown(table, [])
    line = next(line for line in text.splitlines() if line.startswith("| `performer` | m=128"))
    assert line.split(" | ")[3:5] == ["×0.88", "under ×0.88"]
    assert line.endswith("| m=160 | ×0.98 | ×0.99 | matched |")
    assert "| `softmax` | - | ×0.98 | ×2.19 | exempt, over budget ×2.19 |" in text
    assert "* `softmax` is exempt: no option changes its cost" in text
    assert "| `softmax` | 134.2 | 536.9 | 2,147.5 | 34,359.7 |" in text
    assert all(f"| `{name}` |" in text for name in luna.names())  # one head of each


def test_the_numbers_of_the_page_are_those_of_its_csv(table):
    lines = list(csv.DictReader(page.as_csv(table).splitlines()))
    assert len(lines) == len(table)
    for line, row in zip(lines, table, strict=True):
        assert int(line["flops"]) == row.count.flops
        assert int(line["attention_parameters"]) == row.count.slot.parameters
        assert line["verdict"] == row.verdict
        assert times(float(line["flops_ratio"])) == times(row.ratios["flops"])


def test_the_written_page_is_what_would_be_written():
    """Of the shipped settings of one task; `lra compute table --write` brings it up to date."""
    with (REPOSITORY / "results/compute/table.csv").open(newline="") as file:
        written = {
            line["attention"]: line
            for line in csv.DictReader(file)
            if (line["task"], line["setting"]) == ("image", "shipped")
        }
    assert len(written) >= 29
    assert set(written) <= set(luna.names())
    budget = budget_of(composed("task=image"))
    for attention in STALE:
        run = composed("task=image", f"attention={attention}")
        count, line = count_run(run), written[attention]
        assert int(line["parameters"]) == count.parameters, attention
        assert int(line["flops"]) == count.flops, attention
        assert int(line["training_flops"]) == count.total.training_flops, attention
        ratios = {"parameters": count.parameters / budget.cost.parameters,
                  "flops": count.flops / budget.cost.flops}  # fmt: skip
        assert line["verdict"] == budget.verdict(ratios), attention


def test_the_page_is_printed_and_written_if_asked(monkeypatch, tmp_path, capsys, table):
    monkeypatch.setattr(page, "rows", lambda overrides: iter(table))
    monkeypatch.setattr(page, "FOLDER", tmp_path / "compute")
    assert main(["compute", "table"]) == 0
    assert not (tmp_path / "compute").exists()
    assert main(["compute", "table", "--write"]) == 0
    printed = capsys.readouterr().out
    text = (tmp_path / "compute/table.md").read_text(encoding="utf-8")
    assert text in printed
    assert (tmp_path / "compute/table.csv").read_text(encoding="utf-8") == page.as_csv(table)


def test_one_run_by_part(capsys):
    assert main(["compute", "task=listops", "attention=luna", "attention.M=16"]) == 0
    output = capsys.readouterr().out
    for part in ("attention", "projections", "mlp", "embedding", "head", "norms", "total"):
        assert f"\n {part} " in output
    assert "over budget ×1.56" in output  # `lra compute` refuses nothing
    assert "the code executes 56.0% fewer FLOPs than are counted" in output
