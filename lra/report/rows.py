"""What the tables of trainings and of conversions share: the published numbers beside cells, and a
line for each row."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lra.report.published import budget_text, published_score

NAMES = ["row", "method", "options"]  # what naming the rows adds to runs


def with_published(cells: pd.DataFrame, name: str | None) -> pd.DataFrame:
    """The cells with the published score of each, its source, and what it was trained on."""
    facts = zip(cells["method"], cells["task"], cells["record"], strict=True)
    found = [
        published_score(name, method, task, record["settings.attention"] if record else {})
        for method, task, record in facts
    ]
    scores = [(printed.score, printed.source) for printed in found]
    cells = cells.join(pd.DataFrame(scores, cells.index, ["published", "source"], dtype=object))
    ours = cells.to_dict("records")
    cells["their_budget"] = [budget_text(*pair) for pair in zip(found, ours, strict=True)]
    return cells


def rows_and_scores(
    cells: pd.DataFrame, counted: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A line per row, with how many of the columns that count it has; its scores in these."""
    rows = cells.groupby("row", sort=False)[["attention", "options"]].first()
    scores = cells["score"].unstack("column").reindex(rows.index, columns=counted)
    rows["coverage"] = scores.notna().sum(axis=1).map(str) + f"/{len(counted)}"
    return rows, scores
