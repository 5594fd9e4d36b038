"""`lra compute table`: what it prints and writes."""

from __future__ import annotations

from typing import Any

import pytest

import luna
from lra.cli import main
from lra.compute import table as page

CHOSEN = ("performer", "softmax", "t2r")


@pytest.fixture(scope="module")
def table() -> list[dict[str, Any]]:
    return list(page.rows([], tasks=["image"], attentions=CHOSEN))


def test_rows_before_and_after_solving(table):
    rows = {(row["attention"], row["setting"]): row for row in table}
    assert len(rows) == len(table)
    assert set(rows) == {(a, s) for a in CHOSEN for s in page.SETTINGS} - {("softmax", "solved")}
    assert rows["performer", "published"]["options"] == "m=128"
    assert rows["performer", "published"]["verdict"] == "under ×0.88"
    for setting in ("shipped", "solved"):
        assert rows["performer", setting]["options"] == "m=160"
        assert rows["performer", setting]["verdict"] == "matched"
    assert rows["t2r", "published"]["options"] == "r=null"
    assert rows["t2r", "solved"]["exempt"]


def test_the_page_is_printed_and_written_if_asked(monkeypatch, tmp_path, capsys, table):
    monkeypatch.setattr(page, "rows", lambda overrides: iter(table))
    monkeypatch.setattr(page, "FOLDER", tmp_path / "compute")
    assert main(["compute", "table", "--write"]) == 0
    text = (tmp_path / "compute/table.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    heads = [line for line in text.partition("## One head\n")[2].splitlines() if "`" in line]
    assert {line.split("`")[1] for line in heads} == set(luna.names())
    assert (tmp_path / "compute/table.csv").read_text(encoding="utf-8") == page.as_csv(table)


def test_one_run_by_part(capsys):
    assert main(["compute", "task=listops", "attention=luna", "attention.M=16"]) == 0
    output = capsys.readouterr().out
    assert "\nprojections " in output
    assert "over budget ×1.56" in output  # `lra compute` refuses nothing


def test_a_run_is_listed_with_the_options_that_its_method_has(capsys):
    """A mixer has no q, k and v for a gate or a norm of heads to stand around."""
    assert main(["compute", "task=listops", "attention=mamba2"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("listops: name=mamba2 state=")
    assert main(["compute", "task=listops", "attention=gla", "attention.gate=full"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("listops: name=gla ")
    assert "normalise=sum" in first
    assert "gate=full" in first
