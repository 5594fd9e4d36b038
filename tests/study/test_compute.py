"""The committed table of costs is what is counted now."""

from __future__ import annotations

import csv

import luna
from lra.compute import table as page
from lra.compute.gate import check_budget

from ..lra.conftest import REPOSITORY, composed

STALE = ("bigbird", "hedgehog", "luna", "nystrom", "softmax")  # would show it first


def test_the_written_numbers_are_those_counted_now():
    """The shipped settings of one task; `lra compute table --write` renews the files."""
    with (REPOSITORY / "results/compute/table.csv").open(newline="") as file:
        written = {
            line["attention"]: line
            for line in csv.DictReader(file)
            if (line["task"], line["setting"]) == ("image", "shipped")
        }
    # A new method joins when the table is written.
    assert len(written) >= 29
    assert set(written) <= set(luna.names())
    for attention in STALE:
        check = check_budget(composed("task=image", f"attention={attention}"))
        row, line = page.row_of(check, "shipped", {}), written[attention]
        assert {key: str(row[key]) for key in line} == line | {"options": ""}
