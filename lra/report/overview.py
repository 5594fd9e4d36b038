"""All tasks beside each other: the columns that tables.yaml names under `overview`, with one row
for each method; and what was not run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from lra.looks import FAMILIES, OTHER, family_of, look_of, members
from lra.report.cell import Cell, each, rounded
from lra.report.names import task_name
from lra.report.table import Table, best_rule
from lra.report.trainings import FIVE
from lra.results.frame import usual_of
from lra.results.record import Record

SHORT = ("demo", "quick", "balanced")  # protocols with a small part of the benchmark's steps
ORDER = [family.name for family in (*FAMILIES, OTHER)]


@dataclass(frozen=True)
class Task:
    """A column among all tasks."""

    words: str
    table: Table
    column: str
    rows: dict[str, str]  # the label of the row of each method; none, if nothing was run


def tasks_of(tables: Iterable[Table]) -> list[Task]:
    """Those at the full budget of the benchmark first."""
    tasks = [
        Task(words, table, column, _rows(table, column))
        for table in tables
        for column, words in table.spec.overview.items()
    ]
    return sorted(tasks, key=lambda task: not _full(task))


def methods_of(tasks: Sequence[Task]) -> list[str]:
    """Every method of these tasks, by family; LUNA and softmax first in theirs, then those with
    most tasks."""
    methods = {method for task in tasks for method in task.rows}

    def place(method: str) -> tuple[int, bool, int, str]:
        count = sum(method in task.rows for task in tasks)
        family = ORDER.index(family_of(method).name)
        return family, method not in ("luna", "softmax"), -count, look_of(method).name

    return sorted(methods, key=place)


def _rows(table: Table, column: str) -> dict[str, str]:
    if column not in table.columns:
        return {}
    return {method: _usual(cells) for method, cells in table.column(column).groupby("attention")}


def _usual(cells: pd.DataFrame) -> str:
    """Choose one row of a method: the one with the fewest unusual options, then the one with most
    seeds. Never the best by score: that would flatter methods with many rows."""

    def unusual(cell: Cell) -> int:
        usual = usual_of(cell.records[0])
        options = {k: v for k, v in cell.options.items() if k != "code"}
        return sum(str(v) != str(usual.get(k)) for k, v in options.items())

    ranked = pd.DataFrame({"unusual": [*map(unusual, each(cells))], "few": -cells["seeds"]})
    return str(ranked.sort_values(["unusual", "few"], kind="stable").index[0])


# ---------------------------------------------------------------------- sentences


def findings(tasks: Iterable[Task]) -> list[str]:
    """What the runs at the full budget show: how many methods are better than every rule, in all
    their seeds."""
    said = []
    for task in filter(_full, tasks):
        table, column = task.table, task.column
        if table.rules.empty:
            continue
        cells = [table.cell(row, column) for row in task.rows.values()]
        name = best_rule(table.rules, column, cells[0].higher_is_better)
        if name is None:
            continue
        best = table.rules.loc[name, column]
        above = sum(
            all(cell.sign * value > cell.sign * best for value in cell.values) for cell in cells
        )
        said.append(
            f"{task.words}, the benchmark's full budget: {above or 'none'} of {len(cells)} methods "
            f"is better than the best simple rule, “{name}” ({rounded(best, 1)} %)."
        )
    return said


def not_run(tables: Sequence[Table], tasks: Sequence[Task]) -> list[str]:
    """What a reader may look for in vain."""
    full = {r["task"] for table in tables for r in table.runs["record"] if is_full(r)}
    said = []
    if lacking := [task_name(task) for task in FIVE if task not in full]:
        said.append(f"at the benchmark's full budget {_listed(lacking)}")
    if empty := [task.words for task in tasks if not task.rows]:
        said.append(_listed(empty))
    known = {method for table in tables for method in table.rows["attention"]}
    named = [method for family in FAMILIES for method in members(family)]
    if absent := [look_of(method).name for method in named if method not in known]:
        said.append(f"of the methods {_listed(absent)}")
    return said


def is_full(record: Record) -> bool:
    """Whether a run has the budget of the benchmark, on one of its tasks."""
    protocol = record.get("protocol.name")
    return record["task"] in FIVE and protocol not in SHORT and record.get("steps_share", 0) >= 1


def _full(task: Task) -> bool:
    runs = task.table.runs
    return any(map(is_full, runs.loc[runs["column"] == task.column, "record"]))


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
