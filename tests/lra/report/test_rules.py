"""The files of rules and hunts beside records: what is wrong in them is refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lra.base.digests import digest
from lra.base.errors import UserError
from lra.data import hunt
from lra.data.rules import FILE, keep, read_scores
from lra.metrics.metric import facts_of, get
from lra.report.rules import read_rules
from lra.report.study import Study

RULE: dict[str, Any] = {"reads": "nothing", "val": 44.0, "test": 45.5, "by": {"2": [4, 5]}}
LINE: dict[str, Any] = {
    "task": "listops",
    "fingerprint": "0a0a0a0a",
    "metric": facts_of(get("accuracy")),
    "options": {"seed": 0},
    "rules": {"constant": RULE},
}


def rules(**changes: Any) -> dict[str, Any]:
    """A line whose rule is changed; None leaves a fact out."""
    changed = {key: value for key, value in (RULE | changes).items() if value is not None}
    return LINE | {"rules": {"one": changed}}


def with_digest(line: Any) -> str:
    """Anybody can make a digest."""
    return json.dumps(line | {"digest": digest(line)} if isinstance(line, dict) else line)


RULES: list[tuple[Any, str]] = [
    (rules(test="0.5"), "rules.one.test"),
    (rules(test=[1]), "rules.one.test"),
    (rules(test=None), "rules.one.test"),
    (rules(reads=None), "rules.one.reads"),
    (rules(test=-1.0), "no percentages"),
    (rules(test=100.5), "no percentages"),
    (rules(test=float("inf")), "no number of JSON"),
    (rules(test=float("nan")), "no number of JSON"),
    (rules(test=10**400), "invalid"),
    (rules(val=True), "rules.one.val"),
    (rules(bound="yes"), "rules.one.bound"),
    (rules(by={"2": [5, 4]}), "more right answers than examples"),
    (rules(more=1), "rules.one.more"),
    (rules(reads="\x1b]0;a\x07"), "could steer a terminal"),
    (LINE | {"rules": {"\u202e": RULE}}, "could steer a terminal"),
    (LINE | {"rules": {"": RULE}}, "rules"),
    (LINE | {"rules": [1]}, "rules"),
    (LINE | {"task": "../x"}, "task"),
    (LINE | {"fingerprint": 5}, "fingerprint"),
    ({k: v for k, v in LINE.items() if k != "fingerprint"}, "fingerprint"),
    (LINE | {"more": 1}, "more"),
    ([1], "invalid"),
    (None, "invalid"),
]


@pytest.mark.parametrize(("line", "why"), RULES, ids=[why for _, why in RULES])
def test_a_rule_that_no_rule_scores_is_refused(tmp_path: Path, line: Any, why: str):
    (tmp_path / FILE).write_text(f"{with_digest(line)}\n", encoding="utf-8")
    with pytest.raises(UserError, match=why) as error:
        read_rules(tmp_path)
    assert str(tmp_path / FILE) in str(error.value)


def test_a_data_set_has_one_line_of_rules(tmp_path: Path):
    (tmp_path / FILE).write_text(f"{with_digest(LINE)}\n" * 2, encoding="utf-8")
    with pytest.raises(UserError, match="two lines are of the data"):
        read_rules(tmp_path)


def test_right_ones_are_read_as_they_are(tmp_path: Path):
    assert read_rules(tmp_path) == []
    keep(LINE, tmp_path / FILE)
    assert read_rules(tmp_path) == read_scores(tmp_path / FILE)
    assert [line["rules"] for line in read_rules(tmp_path)] == [LINE["rules"]]


def edited(text: str) -> str:
    return text.replace('"test": 45', '"test": 55', 1)


HUNT = {"task": "listops", "fingerprint": "0a0a0a0a", "test": 45.5, "found": False}


@pytest.mark.parametrize("how", ["edited", "without a digest"])
@pytest.mark.parametrize(("name", "line"), [(FILE, LINE), (hunt.FILE, HUNT)])
def test_an_edited_line_is_named_by_what_reads_it(
    tmp_path: Path, name: str, line: dict[str, Any], how: str
):
    """Rules by every table, both by a page that quotes them."""
    first = with_digest(line | {"fingerprint": "another"})
    second = edited(with_digest(line)) if how == "edited" else json.dumps(line)
    (tmp_path / name).write_text(f"{first}\n{second}\n", encoding="utf-8")
    sentence = f"{tmp_path / name}, line 2, is damaged or invalid (its digest does not fit"
    with pytest.raises(UserError, match=re.escape(sentence)):
        Study(tmp_path, pd.DataFrame(), pd.DataFrame(), []).lines(name, {"task": "listops"})
    with pytest.raises(UserError, match=re.escape(sentence)):
        (read_rules if name == FILE else lambda folder: hunt.read_hunts(folder / name))(tmp_path)
