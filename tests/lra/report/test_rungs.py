"""Answers told apart by what must be read: accuracies beside those of rules, in every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra.base.errors import UserError
from lra.cli import main
from lra.data.rules import keep
from lra.figures.tables import figures_of
from lra.metrics.answers import Answers
from lra.metrics.metric import facts_of, get
from lra.report.facts import _on_rung
from lra.report.render import markdown
from lra.report.rungs import EXAMPLES, in_words
from lra.results.record import Record

from ..synthetic import Make, table

GROUPS = "0012201"  # of seven test examples; nothing is in the fourth group
LABELS = np.arange(7)
GIVEN = {"softmax": LABELS, "luna": np.array([0, 1, 2, 9, 9, 9, 9])}


@pytest.fixture
def told_apart(make: Make, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs with answers, one without, and a file of rules."""
    for attention, accuracy in (("softmax", 0.5), ("luna", 0.4), ("linear", 0.3)):
        make(attention, accuracy)

    def answers(record: Record) -> Answers | None:
        given = GIVEN.get(record.attention)
        return None if given is None else Answers(given, LABELS)

    monkeypatch.setattr(Record, "answers", property(answers))
    rungs: dict[str, Any] = {"names": ["one", "two", "three", "four"], "test": GROUPS}
    rungs["rules"] = {
        "constant": [[1, 3], [0, 2], [1, 2], [0, 0]],
        "first tokens": [[3, 3], [0, 2], [0, 2], [0, 0]],
    }
    facts = {
        "task": "listops",
        "fingerprint": table(runs).runs["fingerprint"].iloc[0],
        "metric": facts_of(get("accuracy")),
        "rules": {"constant": {"reads": "nothing", "test": 10.0, "val": 10.0}},
        "rungs": rungs,
    }
    keep(facts, runs.parent / "rules.jsonl")
    return runs


def test_each_group_has_the_accuracy_of_its_examples(told_apart: Path):
    assert table(told_apart).rungs.empty  # where nobody asks for it
    found = table(told_apart, rungs=True)
    shown = in_words(found.rungs)
    assert [*shown.columns] == ["one", "two", "three"]
    assert {row: [*line] for row, line in shown.T.items()} == {
        EXAMPLES: ["3", "2", "2"],
        "softmax": ["100.0", "100.0", "100.0"],
        "luna": ["66.7", "50.0", "0.0"],
        "rule: the most frequent label": ["33.3", "0.0", "50.0"],
        "rule: first tokens": ["100.0", "0.0", "0.0"],
    }
    text = markdown(found, told_apart)
    assert "## By what must be read" in text
    assert "| luna | 66.7 | 50.0 | 0.0 |" in text


def test_only_a_protocol_may_leave_the_last_examples_out(
    told_apart: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(GIVEN, "luna", LABELS[:0])
    monkeypatch.setattr(Record, "answers", property(lambda _: Answers(LABELS[:5], LABELS[:5])))
    assert table(told_apart, rungs=True).rungs.empty
    get_fact = Record.get
    monkeypatch.setattr(
        Record,
        "get",
        lambda self, key, default=None: (
            True if key.endswith("evaluation.drop_last") else get_fact(self, key, default)
        ),
    )
    assert (table(told_apart, rungs=True).rungs.loc["luna"] == 100).all()


def test_it_is_drawn_and_printed(
    told_apart: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    # These answers are not those that the scores were made from.
    monkeypatch.setattr("lra.results.audit.without_contradictions", lambda records: records)
    (figure,) = (f for f in figures_of(table(told_apart, rungs=True)) if f.name == "rungs")
    assert {path.suffix for path in figure.write(table(told_apart, rungs=True), tmp_path)} == {
        ".png",
        ".pdf",
    }
    assert main(["table", "--runs", str(told_apart), "--rungs"]) == 0
    assert "by what must be read" in capsys.readouterr().out


def test_a_page_may_ask_for_a_group(told_apart: Path):
    found = table(told_apart, rungs=True)
    fact = _on_rung(found, "two")
    assert (fact.number, fact.examples, fact.least, fact.largest) == (2, 2, 50, 100)
    assert (fact.first_tokens, fact.constant) == (0, 0)
    one, other = _on_rung(found, "two", ["luna"]), _on_rung(found, "two", without=["luna"])
    assert (one.number, other.number) == (1, 1)
    assert {one.least, other.least} == {50, 100}
    with pytest.raises(UserError, match="tells no examples apart by 'tow'; did you mean two"):
        _on_rung(found, "tow")
