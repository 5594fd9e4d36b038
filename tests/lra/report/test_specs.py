"""Which records a table is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.base.config import UserError
from lra.report.specs import specs

from ..synthetic import Make, table


def test_where_on_an_option_of_one_attention_asks_no_other(make: Make, runs: Path):
    make("luna", 0.4)
    make("luna", 0.5, options={"M": 4})
    make("linear", 0.5, options={"M": 99})
    shown = table(runs, where={"luna.M": 8})
    assert list(shown.rows.index) == ["linear", "luna"]
    shown = table(runs, where={"attention.M": [4, 99]})
    assert list(shown.rows.index) == ["linear", "luna M=4"]  # 4 is not what it ships with


def test_where_refuses_a_key_that_nothing_has(make: Make, runs: Path):
    make("luna", 0.4)
    with pytest.raises(UserError, match="no record has the fact 'protocl'"):
        table(runs, where={"protocl": "luna"})


@pytest.mark.parametrize("key", ["choose", "columns"])
def test_a_setting_that_no_run_has_is_named(make: Make, runs: Path, key: str):
    make("luna", 0.4)
    with pytest.raises(UserError, match=r"no record has the setting 'protocol\.recipe\.rate'"):
        table(runs, **{key: "protocol.recipe.rate"})


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("vary: protocol.recipe.lr", r"0\.vary Input should be a valid list"),
        ("effects: often", r"0\.effects Input should be a valid boolean"),
        ("name: ../../README", r"0\.name String should match pattern"),
        ("titel: T", r"0\.titel Extra inputs are not permitted"),
        ("together: [attention.M]", "has `together`, which needs `effects`"),
        ('caveat: "\\x1b[2J"', r"'.x1b\[2J' holds characters that could steer a terminal"),
        ("against: b", "is set against 'b', which is no table"),
        ("caveat: C}\n- {name: t, title: T", "two tables are named t"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, field: str, message: str):
    (tmp_path / "tables.yaml").write_text(f"- {{name: t, title: T, {field}}}", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        specs(tmp_path)
