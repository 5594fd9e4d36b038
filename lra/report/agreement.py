"""Do two tables put methods in the same order? Spearman's rank correlation of their means."""

from __future__ import annotations

import itertools

import pandas as pd

from lra.report.stats import interval_of_spearman, spearman
from lra.report.table import Table

LEAST = 5  # methods, for a correlation


def agreements(table: Table, other: Table) -> pd.DataFrame:
    """Every column of a table beside every column of another that shares enough methods with it:
    column, other and title (of the table), with (its column), methods (a data frame: here and
    there, by attention), correlation, low and high of its 95 % interval."""
    lines = []
    for column, task in itertools.product(table.columns, other.columns):
        methods = _shared(table, column, other, task)
        if len(methods) >= LEAST:
            r = spearman(methods["here"], methods["there"])
            low, high = interval_of_spearman(r, len(methods)) or (None, None)
            lines.append({"column": column, "other": other.name, "title": other.title, "with": task,
                          "methods": methods, "correlation": r, "low": low,
                          "high": high})  # fmt: skip
    return pd.DataFrame(lines)


def _shared(table: Table, column: str, other: Table, task: str) -> pd.DataFrame:
    """The methods that have one row in the other table, and one or more here. If more, the row
    counts whose options differ least from those in the other table; of equal ones the first by
    label, because a choice by score would favour the method."""
    here, there = table.column(column), other.column(task)
    names = other.rows.loc[there.index, "attention"]
    lines = {}
    for row, attention in names.items():
        rows = [r for r in here.index if table.rows.loc[r, "attention"] == attention]
        if rows and (names == attention).sum() == 1:
            theirs = there.loc[row]
            best = min(rows, key=lambda r: (_differing(here.loc[r, "record"], theirs["record"]), r))
            lines[attention] = {"here": here.loc[best, "score"], "there": theirs["score"]}
    return pd.DataFrame.from_dict(lines, orient="index")


def _differing(a: pd.Series, b: pd.Series) -> int:
    """Count the options of the attention that differ, of those that both records hold."""
    one, two = (record["settings.attention"] for record in (a, b))
    return sum(one[key] != two[key] for key in one if key in two)
