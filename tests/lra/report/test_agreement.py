"""Whether two tables have methods in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.report.build import build_all
from lra.report.render import markdown
from lra.report.specs import TableSpec
from lra.report.table import Table

from ..synthetic import Make, frame

METHODS = ("softmax", "hedgehog", "performer", "linear", "cosformer")
LUNA = {"M": 8, "L": 8, "nonneg": True}


def probe(runs: Path) -> Table:
    """The probe's table, set against ListOps."""
    tables = build_all(
        [
            TableSpec(name="probe", title="Probe", where={"task": "recall"}, columns="task.pairs",
                      against="short"),
            TableSpec(name="short", title="Short", where={"task": "listops"}),
        ],
        frame(runs),
        runs,
    )  # fmt: skip
    return tables[0]


def test_methods_that_both_tables_have_are_ranked_by_column(make: Make, runs: Path):
    """LUNA has two rows here: the one with the other table's options counts. A method does not
    count that one table lacks, or that the other has twice."""
    for place, method in enumerate(METHODS):
        make(method, 0.9 - place / 10, pairs=16, task="recall")
        make(method, 0.2 + place / 10, pairs=32, task="recall")
        make(method, 0.5 - place / 100)
    make("luna", 0.95, pairs=16, task="recall", options=LUNA)
    make("luna", 0.10, pairs=16, task="recall", options=LUNA | {"nonneg": False})
    make("luna", 0.6, options=LUNA)
    make("t2r", 0.1)
    make("based", 0.1, pairs=16, task="recall")
    table = probe(runs)
    orders = table.agreements.set_index("column")
    shared = orders.loc["pairs=16", "methods"]
    assert list(shared.index) == ["luna", *METHODS]
    assert shared.loc["luna", "here"] == 95
    assert orders.loc["pairs=16", "correlation"] == pytest.approx(1)
    assert len(orders.loc["pairs=32", "methods"]) == 5
    assert orders.loc["pairs=32", "correlation"] == pytest.approx(-1)
    assert "| pairs=32 | listops | 5 | -1.00 | – |" in markdown(table, runs)
    make("luna", 0.2, options=LUNA | {"nonneg": False})
    assert len(probe(runs).agreements["methods"][0]) == 5
