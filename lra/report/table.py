"""A table as every format shows it. Two builders make it from a data frame of runs: training.py and
conversions.py; render.py, terminal.py, page.py and lra/figures show any table."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lra.base.config import UserError
from lra.report import published, stats

LISTED = 3  # attentions listed for each value of a difference
LEAST_DEAD = 0.05  # percent of queries: what is printed as 0.1
COSTS = ("parameters", "flops", "steps_per_second", "peak_memory_mib")  # means over a cell's runs


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows and cells of a table as data frames.

    rows:  a line per row in the order shown, by label: attention, options (a dict), the summaries,
           coverage (3/5: how many columns of the summary it has), ranked (False: a reference)
    cells: a line per cell, by (row, column): see `cells_of`
    runs:  a line per run shown, with its row and column; otherwise as in docs/columns.md
    """

    name: str
    title: str
    columns: list[str]  # tasks, or values of a setting
    rows: pd.DataFrame
    cells: pd.DataFrame
    runs: pd.DataFrame
    notes: list[str] = dataclasses.field(default_factory=list)  # what a reader must know
    summaries: tuple[str, ...] = ()  # names of the columns over all columns
    published: str | None = None  # the published table shown beside this one
    costs: bool = False  # parameters, FLOPs and class of compute are shown
    timed: tuple[str, ...] = ()  # columns whose runs were all timed on one machine
    axis: str = ""  # what the columns are values of: pairs of `pairs=16`; "" for tasks
    conditions: str = ""  # what all runs share, in a few words
    caveat: str = ""  # what these runs cannot show
    repeated: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)  # attempts not shown
    unchosen: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)  # at other rates, say
    effects: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)  # effects.py
    agreements: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)  # effects.py
    pairs: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)  # paired tests of rows

    @property
    def single(self) -> str | None:
        """The column of a table that has one: its costs are columns of the table."""
        return self.columns[0] if self.costs and len(self.columns) == 1 else None

    def column(self, name: str) -> pd.DataFrame:
        """Give the cells of a column by row, in the order of the rows."""
        cells = self.cells.xs(name, level="column")
        return cells.reindex([row for row in self.rows.index if row in cells.index])

    def dead(self, column: str) -> bool:
        """Tell if a cell of this column shows dead queries: a tenth of a percent of them."""
        return bool((self.column(column)["dead"] >= LEAST_DEAD).any())


def cells_of(runs: pd.DataFrame, scored: Sequence[str] | None = None) -> pd.DataFrame:
    """Aggregate the runs of every row and column: score and deviation in percent, seeds, the runs'
    names and values, floor, costs, and how it compares with the best of its column among the
    `scored` rows (all, if None). UserError where runs of a cell differ in more than the seed."""
    groups = runs.groupby(["row", "column"], sort=False)
    for (_, column), cell in groups:
        if len(cell[["identity", "code"]].drop_duplicates()) > 1:
            raise UserError(
                f"runs of {cell['attention'].iloc[0]} on {column} differ in settings that no row "
                "shows; name them in `vary` (docs/results.md)"
            )
    cells = groups.agg(
        score=("score", "mean"),
        deviation=("score", "std"),
        seeds=("seed", "size"),
        values=("score", list),
        floor=("floor", "first"),
        runs=("run", list),
        record=("record", "first"),
        **{name: (name, "mean") for name in COSTS},
    )
    cells["dead"] = 100 * groups["dead_queries"].mean()
    cells["examples"] = groups["examples"].first()
    # Accuracies are float32; one example of 25,000 is 0.004. Unknown floors are passed.
    cells["learned"] = ~(cells["score"] <= cells["floor"] + 1e-3)
    cells[["best", "worse", "p", "needs"]] = False, False, np.nan, np.nan
    # Cells at the floor, where nothing was learned, take no part.
    ranked = cells["learned"] & (scored is None or cells.index.isin(scored, level="row"))
    for _, column in cells[ranked].groupby("column", sort=False):
        tested = {key: None if pd.isna(n) else int(n) for key, n in column["examples"].items()}
        verdicts = stats.compare_with_best(column["values"].to_dict(), tested)
        for key, verdict in verdicts.items():
            # The lead of a single seed may be chance.
            cells.loc[key, "best"] = verdict.best and cells.loc[key, "seeds"] > 1
            cells.loc[key, "worse"] = verdict.worse
            cells.loc[key, "p"] = np.nan if verdict.p is None else verdict.p
            cells.loc[key, "needs"] = verdict.seeds_needed or np.nan
    return cells


def text_of(cell: pd.Series) -> str:
    """`41.0 ± 0.5 (3)`: mean, sample deviation, number of seeds."""
    spread = "" if pd.isna(cell["deviation"]) else f" ± {cell['deviation']:.1f}"
    return f"{cell['score']:.1f}{spread}" + (f" ({cell['seeds']})" if cell["seeds"] else "")


def mark_of(cell: pd.Series) -> str:
    """Behind a mean: shown to be worse than the best, or no better than one answer."""
    return " ∅" if not cell["learned"] else " ↓" if cell["worse"] else ""


# ---------------------------------------------------------------------- which runs share a table


def refuse_mixtures(
    name: str,
    runs: pd.DataFrame,
    of_table: Sequence[str],
    of_column: Sequence[str],
    *,
    remedy: str,
    absent: str | None = "absent",
) -> None:
    """UserError with every fact in which the runs of one table, or of one column of it, differ. A
    run without a fact has the value `absent`; if that is None, the run is ignored."""
    lines = _differences(runs, of_table, absent)
    for column, group in runs.groupby("column", sort=False):
        lines += [f"on {column}, {line}" for line in _differences(group, of_column, absent)]
    if lines:
        raise UserError(
            f"table '{name}' would mix runs that cannot be compared; {remedy} (docs/results.md). "
            "They differ:\n  " + "\n  ".join(lines)
        )


def _differences(runs: pd.DataFrame, facts: Iterable[str], absent: str | None) -> list[str]:
    """`key is this (linear, luna) or that (softmax)`, for every fact with more than one value."""
    lines = []
    for fact in facts:
        values = (runs[fact].dropna() if absent is None else runs[fact].fillna(absent)).map(str)
        if values.nunique() > 1:
            methods = runs["attention"].groupby(values).unique()
            values_of = (f"{value} ({_listed(names)})" for value, names in methods.items())
            lines.append(f"{fact} is {' or '.join(values_of)}")
    return lines


def _listed(names: Iterable[str]) -> str:
    first, more = sorted(names)[:LISTED], len(set(names)) - LISTED
    return ", ".join(first) + (f", {more} more" if more > 0 else "")


def differing(runs: pd.DataFrame, facts: Iterable[str]) -> list[str]:
    """The facts in which runs of one column of the table differ; a lack is a value too."""
    counts = runs[[*facts]].map(str).groupby(runs["column"]).nunique()
    return [fact for fact in counts if (counts[fact] > 1).any()]


# ---------------------------------------------------------------------- words


def pairs_of(values: Mapping[str, Any]) -> str:
    """`M=8 L=8`"""
    return " ".join(f"{k}={v}" for k, v in values.items())


def short_name(setting: str) -> str:
    """`M` for `attention.M`, `protocol` for `protocol.name`."""
    return setting.removesuffix(".name").rpartition(".")[2]


def sortable(value: Any) -> tuple[bool, float, str]:
    """A key that orders numbers by size, before all other values."""
    number = isinstance(value, numbers.Real)  # those of numpy, too
    return not number, float(value) if number else 0.0, str(value)


def one_line(text: str) -> str:
    return " ".join(text.split())


# ---------------------------------------------------------------------- published numbers beside


def beside(table: Table) -> tuple[pd.DataFrame, list[str]] | None:
    """Set measured beside published numbers, `51.5 / 38.94`, in the order of names and not ranked;
    with the sources. None where no cell has a published one."""
    cells = table.cells[table.cells["published"].notna()] if "published" in table.cells else None
    if cells is None or cells.empty or table.published is None:
        return None
    pair = f"{{:.1f}} / {{:.{published.table(table.published)['digits']}f}}".format
    both = pd.Series(map(pair, cells["score"], cells["published"]), cells.index)
    wide = both.unstack("column").reindex(columns=table.columns)
    first = table.summaries[0]
    lines = table.rows[[first, "published"]].dropna()
    if table.rows["published"].notna().any():
        wide[first] = pd.Series(map(pair, lines[first], lines["published"]), lines.index, dtype=str)
    wide["published by"] = cells.groupby("row")["source"].agg(lambda s: ", ".join(dict.fromkeys(s)))
    sources = dict.fromkeys(cells["source"])
    explained = published.contents()["sources"]
    return wide.sort_index().fillna(""), [f"{s}: {explained[s]}" for s in sources]
