"""Facts: kinds, missing ones, files."""

from __future__ import annotations

from typing import Any

import pytest

from lra.base.config import UserError
from lra.results import schema


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (schema.SHARE, [0, 0.5, 1], [-0.1, 41.0, True, "0.5", float("nan")]),
        (schema.SCORE, [-1, 0.5, 1], [-1.1, 7.0, True, float("nan")]),
        (schema.NUMBER, [0, 1e17], [-1, 10**400, float("inf"), float("nan"), True]),
        (schema.WHOLE, [0, 7], [7.0, -1, True]),
        (schema.NAME, ["luna", "vit-b16", "a.b_c"], ["", "../../etc", "a/b", ".a", "a b", 5]),
        (schema.TIME, ["2026-01-01T00:00:00+0100"], ["2026-01-01T00:00:00", "soon", 5]),
        (schema.FLAG, [True], [0, "true"]),
        (schema.GROUP, [{}], [[1], None]),
        (schema.TEXT, [""], [5]),
    ],
)
def test_kinds(kind: schema.FactKind, good: list[Any], bad: list[Any]):
    assert all(map(kind.fits, good))
    assert not any(map(kind.fits, bad))


def test_the_first_wrong_fact_is_named():
    kinds = {"a.b": schema.SHARE, "?c": schema.FLAG}
    schema.check_facts("record x", {"a": {"b": 0.5}}, kinds)
    schema.check_facts("record x", {"a": {"b": 0.5}, "c": None}, kinds)
    with pytest.raises(UserError, match=r"record x is damaged: a\.b is missing"):
        schema.check_facts("record x", {"a": 5}, kinds)
    with pytest.raises(UserError, match="record x is damaged: c is 5, not true or false"):
        schema.check_facts("record x", {"a": {"b": 0.5}, "c": 5}, kinds)


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_file_without_facts_is_refused_by_name(tmp_path, content: str):
    (tmp_path / "result.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"result\.json"):
        schema.read_facts(tmp_path / "result.json")
