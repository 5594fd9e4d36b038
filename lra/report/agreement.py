"""Do two tables put methods in the same order? Spearman's rank correlation of their means."""

from __future__ import annotations

from lra.report.stats import interval_of_spearman, spearman
from lra.report.table import Agreement, Cell, Shared, Table

LEAST = 5  # methods, for a correlation


def agreements(table: Table, other: Table) -> list[Agreement]:
    """Every column of a table beside every task of another, where they share enough methods."""
    orders = []
    for column in table.tasks:
        for task in other.tasks:
            shared = _shared(table, column, other, task)
            if len(shared) >= LEAST:
                r = spearman([s.here.mean for s in shared], [s.there.mean for s in shared])
                interval = interval_of_spearman(r, len(shared))
                orders.append(Agreement(column, other, task, shared, r, interval))
    return orders


def _shared(table: Table, column: str, other: Table, task: str) -> list[Shared]:
    """The methods that have one row in the other table, and one or more here. If more, the row
    counts whose options differ least from those in the other table; of equal ones the first by
    label, because a choice by score would favour the method."""
    there = [row for row in other.rows if task in row.cells]
    names = [row.attention for row in there]
    methods = []
    for row in there:
        rows = [r for r in table.rows if r.attention == row.attention and column in r.cells]
        if rows and names.count(row.attention) == 1:
            theirs = row.cells[task]
            ours = min(rows, key=lambda r: (_differing(r.cells[column], theirs), r.label))
            methods.append(Shared(row.attention, ours.cells[column], theirs))
    return methods


def _differing(a: Cell, b: Cell) -> int:
    """How many options of the attention differ, of those that both records hold."""
    one, two = (cell.records[0]["settings.attention"] for cell in (a, b))
    return sum(one[key] != two[key] for key in one if key in two)
