"""What the tables of trainings and of conversions share: the published numbers beside cells, and a
line for each row."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lra.report.published import budget_text, published, published_score
from lra.report.table import Table

NAMES = ["row", "method", "options"]  # what naming the rows adds to runs
BESIDE = (
    "Measured / published, ordered by name. Published: {title}. These come from other protocols, "
    "budgets, data and sometimes models than the measured runs, so the two are not compared."
)
BUDGETS = (
    "Their budget is shown where the source says it and we know ours. Tokens are steps × batch × "
    "padded length (of both texts of Retrieval), theirs as ours; weights are all parameters of the "
    "network."
)


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


def beside(table: Table) -> tuple[str, pd.DataFrame]:
    """The sources, and `51.5 / 38.94`, measured and published, by name and not ranked."""
    printed = published().tables[table.spec.published or ""]
    cells = table.cells[table.cells["published"].notna()]
    pair = f"{{:.1f}} / {{:.{printed.digits}f}}".format
    both = pd.Series(map(pair, cells["score"], cells["published"]), cells.index)
    wide = both.unstack("column").reindex(columns=table.columns)
    if table.summaries and table.rows["published"].notna().any():
        first = table.summaries[0]
        means = table.rows[[first, "published"]].dropna()
        wide[first] = pd.Series(map(pair, means[first], means["published"]), means.index, dtype=str)
    wide["published by"] = cells.groupby("row")["source"].agg(lambda s: ", ".join(dict.fromkeys(s)))
    explained = published().sources
    sources = " ".join(f"{name}: {explained[name]}." for name in dict.fromkeys(cells["source"]))
    text = f"{BESIDE.format(title=printed.title)} {sources}"
    if cells["their_budget"].any():
        wide["their budget"] = their_budgets(cells, several=len(table.columns) > 1)
        text += f" {BUDGETS}"
    return text, wide.sort_index().fillna("").rename_axis("attention")


def their_budgets(cells: pd.DataFrame, *, several: bool) -> pd.Series:
    """What each published row was trained with beside ours; by column, if there are several."""
    known = cells[cells["their_budget"] != ""]
    texts = [
        f"{column}: {text}" if several else text
        for (_, column), text in known["their_budget"].items()
    ]
    return pd.Series(texts, known.index, dtype=str).groupby("row").agg("; ".join)
