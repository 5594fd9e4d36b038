"""A table as every format shows it: trainings.py and conversions.py make it from a data frame of
runs; render.py, terminal.py, page.py and lra/figures show it."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from lra.base.errors import UserError
from lra.report import stats
from lra.report.cell import Cell, Role, aggregate, each
from lra.report.leaps import Kinds, two_kinds
from lra.report.specs import TableSpec

LEAST_DEAD = 0.05  # percent of queries: what is printed as 0.1


@dataclasses.dataclass
class Table:
    """Rows and cells of a table as data frames.

    rows:  a line per row in the order shown, by label: attention, options (a dict), the summaries,
           coverage (3/5: how many columns of the summary it has)
    cells: a line per cell, by (row, column), with columns of `Cell` (cell.py)
    runs:  a line per run shown, with its row and column; otherwise as in docs/python.md
    """

    spec: TableSpec
    columns: list[str]  # tasks, or values of a setting
    rows: pd.DataFrame
    cells: pd.DataFrame
    runs: pd.DataFrame
    taken: pd.DataFrame  # `runs`, and those not shown: repeated, or of a rate that is not the best
    summaries: tuple[str, ...] = ()  # names of the columns over all columns
    costs: bool = False  # parameters, FLOPs and class of compute are shown
    notes: Sequence[str] = ()  # what a reader must know
    # what rules without attention score (lra/data/rules.py): a line per rule, by column
    rules: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)
    # the rules that were not fitted, by column: then none is the best, and no row has the mark ∅
    missing: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    effects: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)  # effects.py
    agreements: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)  # effects.py
    rungs: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)  # rungs.py
    rungs_of_runs: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    pairs: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)  # paired tests of rows

    @property
    def axis(self) -> str:
        """What the columns are values of: `pairs` of `pairs=16`; empty for tasks."""
        return short_name(self.spec.columns)

    @property
    def single(self) -> str | None:
        """The column of a table that has one: its costs are columns of the table."""
        return self.columns[0] if self.costs and len(self.columns) == 1 else None

    def best_rule(self, column: str, bound: bool = False) -> str | None:
        """`best_rule` of a column; None where rules are missing."""
        if self.rules.empty or column in self.missing:
            return None
        higher = self.column(column)["higher_is_better"].iloc[0]
        return best_rule(self.rules, column, higher, bound)

    def column(self, name: str) -> pd.DataFrame:
        """Give the cells of a column, in the order of the rows."""
        cells = self.cells.xs(name, level="column")
        return cells.reindex([row for row in self.rows.index if row in cells.index])

    def cell(self, row: str, column: str) -> Cell:
        return self._typed[row, column]

    @cached_property
    def _typed(self) -> dict[tuple[str, str], Cell]:
        return dict(zip(self.cells.index, each(self.cells), strict=True))


def cells_of(
    runs: pd.DataFrame, unranked: Collection[str] = (), known: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Aggregate the runs of every row and column, and compare with the best of the column among the
    rows that are ranked; `known` are all runs of these settings, in this table or another.
    UserError where runs of a cell differ in more than the seed."""
    cells = aggregate(runs, Role.name, Role.score, Role.verdict, Role.cost, Role.time, Role.source)
    networks = runs.assign(network=runs["identity"] + runs["code"]).groupby(["row", "column"])
    if (mixed := networks["network"].nunique() > 1).any():
        row, column = mixed.idxmax()
        raise UserError(
            f"runs of {row} on {column} differ in settings that no row shows; name them in `vary` "
            "(docs/tables.md)"
        )
    # Larger is better, of scores and of what they are compared with.
    cells["sign"] = cells["higher_is_better"].map({True: 1, False: -1}).astype(int)
    sign = cells["sign"]
    # A mean of equal scores may differ from them in its last digit. Unknown floors are passed.
    cells["learned"] = ~(sign * cells["score"] <= sign * cells["floor"] + 1e-9)
    cells[["best", "worse", "leaps"]] = False
    cells[["p", "needs", "leapt", "limit"]] = math.nan
    # Cells at the floor, where nothing was learned, take no part.
    ranked = cells[cells["learned"] & ~cells.index.isin(unranked, level="row")]
    seeds_of = _all_seeds(runs if known is None else known)
    for _, column in ranked.groupby("column", sort=False):
        compared = to_compare(column)
        verdicts = stats.compare_with_best(**compared, digits=column["digits"].iloc[0])
        cells.loc[column.index, verdicts.columns] = verdicts.to_numpy()
        if kinds := _kinds_of(column, compared["noise"], seeds_of):
            cells.loc[column.index, "limit"] = kinds.limit
            cells.loc[column.index, "leapt"] = _leapt(column, kinds, seeds_of)
    cells = cells.astype(dict.fromkeys(("best", "worse", "leaps"), bool))
    cells = cells.astype(dict.fromkeys(("p", "needs", "leapt", "limit"), float))
    cells["best"] &= cells["seeds"] > 1  # the lead of a single seed may be chance
    return cells


def to_compare(column: pd.DataFrame) -> dict[str, Any]:
    """What `stats` compares of the cells of a column; higher is better."""
    sign = column["sign"].iloc[0]
    return {
        "samples": [[sign * score for score in of_row] for of_row in column["values"]],
        "noise": [cell.of_redrawn_examples() for cell in each(column)],
    }


def _all_seeds(known: pd.DataFrame) -> dict[str, list[float]]:
    """The scores of all runs of each identity: of its settings and data, whatever the code."""
    once = known.drop_duplicates("run")
    return {str(name): [*scores] for name, scores in once.groupby("identity")["score"]}


def _kinds_of(
    column: pd.DataFrame, noise: Sequence[float], seeds_of: Mapping[str, list[float]]
) -> Kinds | None:
    """The two kinds of runs of a column, by all known seeds of its settings: three of a row that
    scatters evenly may look like two kinds."""
    several = [i for i, n in enumerate(column["seeds"]) if n > 1]
    if not several:
        return None
    sign, floor = column["sign"].iloc[0], column["floor"].iloc[0]
    return two_kinds(
        [[sign * score for score in seeds_of[column["identity"].iloc[i]]] for i in several],
        noise=max(noise[i] for i in several),
        floor=None if pd.isna(floor) else sign * floor,
    )


def _leapt(column: pd.DataFrame, kinds: Kinds, seeds_of: Mapping[str, list[float]]) -> list[float]:
    """How many seeds of each row leapt; none of a row whose known seeds scatter between."""
    counts = []
    for cell in each(column):
        all_seeds = [cell.sign * score for score in seeds_of[cell.identity]]
        leapt = sum(cell.sign * score > kinds.limit for score in cell.values)
        counts.append(math.nan if kinds.between(np.array(all_seeds)).any() else float(leapt))
    return counts


# ---------------------------------------------------------------------- which runs share a table


def refuse_mixtures(
    name: str, runs: pd.DataFrame, of_table: Sequence[str], of_column: Sequence[str]
) -> None:
    """UserError with every fact in which the runs of one table, or of one column of it, differ; a
    run without a fact is ignored."""
    parts = [("", runs, of_table)]
    parts += [(f"on {c}, ", part, of_column) for c, part in runs.groupby("column", sort=False)]
    lines = []
    for place, part, facts in parts:
        for fact in facts:
            methods = part["attention"].groupby(part[fact].dropna().map(str)).unique()
            if len(methods) > 1:
                listed = (
                    f"{value} ({', '.join(sorted(names)[:3])}{', ...' * (len(names) > 3)})"
                    for value, names in methods.items()
                )
                lines.append(f"{place}{fact} is {' or '.join(listed)}")
    if lines:
        raise UserError(
            f"table '{name}' would mix runs that cannot be compared; narrow it with `where`, or "
            "export them to different files (docs/tables.md). They differ:\n  " + "\n  ".join(lines)
        )


def differing(runs: pd.DataFrame, facts: Iterable[str]) -> list[str]:
    """The facts in which runs of one column of the table differ; a lack is a value too."""
    counts = runs[[*facts]].map(str).groupby(runs["column"]).nunique()
    return [fact for fact in counts if (counts[fact] > 1).any()]


# ---------------------------------------------------------------------- rules


def best_rule(rules: pd.DataFrame, column: str, higher: bool, bound: bool = False) -> str | None:
    """The rule of a column that is best on dev, or the bound that is; None without any. The best
    on test of so many would be luck, against the methods."""
    on_dev = rules.loc[rules["bound"] == bound, on_dev_of(column)].dropna()
    if on_dev.empty:
        return None
    return str(on_dev.idxmax() if higher else on_dev.idxmin())


def on_dev_of(column: str) -> str:
    """Name the column of rules that has their scores on dev."""
    return f"{column}, on dev"


# ---------------------------------------------------------------------- words


def pairs_of(values: Mapping[str, Any]) -> str:
    """`M=8 L=8`"""
    return " ".join(f"{k}={v}" for k, v in values.items())


def is_option(setting: str) -> bool:
    """Whether this is an option of an attention, which other attentions need not have."""
    return setting.startswith("attention.")


def short_name(setting: str) -> str:
    """`M` for `attention.M`, `protocol` for `protocol.name`."""
    return setting.removesuffix(".name").rpartition(".")[2]


def sortable(value: Any) -> tuple[bool, float, str]:
    """A key that orders numbers by size, before all other values."""
    number = isinstance(value, numbers.Real)  # those of numpy, too
    return not number, float(value) if number else 0.0, str(value)
