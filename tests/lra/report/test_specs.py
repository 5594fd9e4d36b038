"""Which records a table is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.config import UserError

from ..synthetic import Make, table


def test_where_narrows_a_table(make: Make, runs: Path):
    make("luna", 0.4)
    make("luna", 0.5, budget=0.1)
    make("linear", 0.5, budget=0.1)
    assert len(table(runs, where={"budget": 0.1}).rows) == 2
    assert len(table(runs, where={"budget": 0.1, "attention": "luna"}).rows) == 1


def test_where_on_an_option_of_one_attention_asks_no_other(make: Make, runs: Path):
    make("luna", 0.4)
    make("luna", 0.5, options={"M": 4})
    make("linear", 0.5, options={"M": 99})
    found = table(runs, where={"luna.M": 8})
    assert [r.label for r in found.rows] == ["linear", "luna"]
    found = table(runs, where={"attention.M": [4, 99]})
    assert [r.label for r in found.rows] == ["linear", "luna M=4"]  # 4 is not what it ships with


def test_where_refuses_a_key_that_nothing_has(make: Make, runs: Path):
    make("luna", 0.4)
    with pytest.raises(UserError, match="no record has the fact 'protocl'"):
        table(runs, where={"protocl": "luna"})
