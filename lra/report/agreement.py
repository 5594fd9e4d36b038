"""Do two tables put methods in the same order? Spearman's rank correlation of their means."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
                orders.append(Agreement(column, other, task, shared, r, interval(r, len(shared))))
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


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Pearson's correlation of the ranks; 0 where one side has no order at all."""
    a, b = ranks(xs), ranks(ys)
    middle = (len(a) + 1) / 2

    def product(s: Sequence[float], t: Sequence[float]) -> float:
        return math.fsum((x - middle) * (y - middle) for x, y in zip(s, t, strict=True))

    spread = math.sqrt(product(a, a) * product(b, b))
    return product(a, b) / spread if spread else 0.0


def ranks(values: Sequence[float]) -> list[float]:
    """From 1; equal values share the mean of their ranks."""
    return [
        sum(v < value for v in values) + (1 + sum(v == value for v in values)) / 2
        for value in values
    ]


def interval(r: float, n: int) -> tuple[float, float] | None:
    """The 95 % interval of the rank correlation r of n methods, as if they were drawn at random:
    atanh(r) has the variance 1.06 / (n - 3) (Fieller, Hartley and Pearson 1957). The spread of
    seeds is not in it. None for a perfect order, whose atanh(r) is infinite."""
    if abs(r) == 1:
        return None
    z, half = math.atanh(r), 1.96 * math.sqrt(1.06 / (n - 3))
    return math.tanh(z - half), math.tanh(z + half)
