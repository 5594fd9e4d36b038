"""Published numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.report import published
from lra.report.leaderboard import FIVE

from ..synthetic import Make, table


def test_the_published_ablations_are_found_by_their_options(make: Make, runs: Path):
    make("luna", 0.5, task="image", options={"M": 32})
    make("luna", 0.5, task="listops", options={"M": 32})
    cells = table(runs, published="M").rows[0].cells
    rff = {"M": 8, "L": 8, "kernel": "rff"}
    assert cells["image"].published.value == 59.15
    assert cells["listops"].published is None
    assert published.published_score("kernel", "luna", "image", rff).value == 35.72
    assert published.published_score("M", "luna", "image", {"M": 8, "L": 4}) is None


def test_the_published_table_is_the_paper_s():
    printed = {"luna": 65.44, "softmax": 58.14, "lotformer": 62.9, "polaformer": 60.72}
    printed |= {"luna2021": 61.95, "luna2021, as others quote it": 61.24, "flowformer": 56.48}
    for name, average in printed.items():
        values = [published.published_score("lra", name, task).value for task in FIVE]
        assert sum(values) / 5 == pytest.approx(average, abs=0.0051)
    tables = published.contents()["tables"]
    assert len(tables["lra"]["rows"]) == 18 + 3  # of other papers
    cited = {row["source"] for found in tables.values() for row in found["rows"].values()}
    assert cited <= set(published.sources())
