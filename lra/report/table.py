"""A table as every format shows it: rows of cells, with the best and what ties with it marked.

Two builders make tables: leaderboard.py of training runs, conversions.py of converted models. What
they share is here; render.py, terminal.py and page.py show any table.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lra.records import Record
from lra.report import published, stats
from lra.report.published import Published

SHOWN = 3  # names listed for each value of a difference
Settings = Callable[[Record], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Cell:
    """Runs of one row on one task that differ in nothing but the seed."""

    values: list[float]  # percent, one per run
    records: list[Record]  # those runs; empty for the score of a teacher
    published: Published | None = None
    best: bool = False
    tie: float | None = None  # adjusted p-value, where the seeds cannot tell it from the best

    @property
    def mean(self) -> float:
        return stats.mean(self.values)

    @property
    def deviation(self) -> float | None:
        return stats.deviation(self.values)

    @property
    def difference(self) -> float | None:
        return None if self.published is None else self.mean - self.published.value

    @property
    def text(self) -> str:
        """`41.0 ± 0.5 (3)`: mean, sample deviation, number of seeds."""
        spread = "" if self.deviation is None else f" ± {self.deviation:.1f}"
        seeds = f" ({len(self.records)})" if self.records else ""
        return f"{self.mean:.1f}{spread}{seeds}"

    @property
    def floor(self) -> float | None:
        return self.records[0].floor if self.records else None

    @property
    def learned(self) -> bool:
        """Whether it is above always giving one answer, where it is known what that gives."""
        # Accuracies are float32; one example of 25,000 is 0.004.
        return self.floor is None or self.mean > self.floor + 1e-3

    def cost(self, key: str) -> float:
        return stats.mean([r[key] for r in self.records])


@dataclasses.dataclass(frozen=True)
class Row:
    label: str
    attention: str
    cells: dict[str, Cell]  # by task
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # in the label
    summary: dict[str, float | None] = dataclasses.field(default_factory=dict)  # over all tasks
    published_summary: float | None = None  # what stands beside the first summary
    tasks: str = ""  # how many of the tasks of the summary there are: 3/5
    ranked: bool = True  # False: a reference, never the best of its column


@dataclasses.dataclass(frozen=True)
class Table:
    name: str
    title: str
    tasks: list[str]
    rows: list[Row]
    notes: list[str]  # what a reader must know to read the numbers; plain sentences
    summaries: tuple[str, ...]  # columns over all tasks
    published: str | None = None  # the published table shown beside this one
    # Tasks whose cells have costs -> whether all of the task's runs were timed on one machine.
    timed: dict[str, bool] = dataclasses.field(default_factory=dict)
    conditions: str = ""  # what all runs share, in a few words
    caveat: str = ""  # what these runs cannot show
    pairs: list[list[str]] = dataclasses.field(default_factory=list)  # example-by-example tests

    @property
    def single(self) -> str | None:
        """The only task of a table whose runs have costs: it has room for them as columns."""
        return self.tasks[0] if self.timed and len(self.tasks) == 1 else None

    @property
    def records(self) -> list[Record]:
        return [r for _, _, cell in self.cells() for r in cell.records]

    def cells(self) -> Iterator[tuple[Row, str, Cell]]:
        for row in self.rows:
            for task, cell in row.cells.items():
                yield row, task, cell


def marked(rows: Sequence[Row], tasks: Sequence[str]) -> list[Row]:
    """The same rows with the best cell of every task, and the cells that tie with it, marked.
    Where no cell is above always giving one answer, nothing was learned and none is best; nor is
    a best mean of a single seed, whose lead may be chance."""
    rows = [dataclasses.replace(row, cells=dict(row.cells)) for row in rows]
    for task in tasks:
        cells = {i: r.cells[task] for i, r in enumerate(rows) if r.ranked and task in r.cells}
        if not any(cell.learned for cell in cells.values()):
            continue
        best, tied = stats.ties({i: cell.values for i, cell in cells.items()})
        for i, cell in cells.items():
            first = i in best and len(cell.values) > 1
            rows[i].cells[task] = dataclasses.replace(cell, best=first, tie=tied.get(i))
    return rows


# ---------------------------------------------------------------------- which runs, which rows


def differing(records: Sequence[Record], settings: Settings) -> dict[str, list[str]]:
    """Per attention, the settings in which its runs on one task differ: they name its rows."""
    seen: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for r in records:
        for key, value in settings(r).items():
            seen[r.attention, key][r["task"]].add(str(value))
    found: dict[str, list[str]] = {r.attention: [] for r in records}
    for (attention, key), by_task in seen.items():
        if any(len(values) > 1 for values in by_task.values()):
            found[attention].append(key)
    return found


def differences(
    records: Sequence[Record], facts: Settings, *, absent: str | None = "absent"
) -> list[str]:
    """`key is this (linear, luna) or that (softmax)`, for every fact with more than one value. A
    run without a fact counts as having the value `absent`, or is passed over if that is None."""
    by_record = [facts(r) for r in records]
    found = []
    for key in dict.fromkeys(k for f in by_record for k in f):
        names: dict[str, set[str]] = defaultdict(set)
        for record, its in zip(records, by_record, strict=True):
            value = its.get(key, absent)
            if key in its or absent is not None:
                names[str(value)].add(record.attention)
        if len(names) > 1:
            found.append(
                f"{key} is {' or '.join(_held_by(v, of) for v, of in sorted(names.items()))}"
            )
    return found


def _held_by(value: str, names: set[str]) -> str:
    more = f", {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{value} ({', '.join(sorted(names)[:SHOWN])}{more})"


def pairs_of(values: Mapping[str, Any]) -> str:
    """`M=8 L=8`"""
    return " ".join(f"{k}={v}" for k, v in values.items())


def one_line(text: str) -> str:
    return " ".join(text.split())


# ---------------------------------------------------------------------- published numbers beside


class Beside(NamedTuple):
    """Measured and published numbers and their difference, by name: not a ranking."""

    explained: str
    head: list[str]
    body: list[list[str]]
    sources: list[str]


def beside(table: Table) -> Beside | None:
    rows = [r for r in table.rows if any(c.published for c in r.cells.values())]
    if not rows or table.published is None:
        return None
    if table.timed and len({r.attention for r in table.rows}) > 1:
        rows = sorted(rows, key=lambda r: r.label)
    averaged = any(row.published_summary is not None for row in rows)
    digits = published.digits(table.published)
    body: list[list[str]] = []
    used: dict[str, None] = {}
    for row in rows:
        cells = [_compared(row.cells.get(t), digits) for t in table.tasks]
        if averaged:
            mine = row.summary.get(table.summaries[0])
            cells.append(_difference(mine, row.published_summary, digits))
        named = dict.fromkeys(c.published.source for c in row.cells.values() if c.published)
        used |= named
        body.append([row.label, *cells, ", ".join(named)])
    return Beside(
        f"Measured, published ({published.title(table.published)}) and the difference, by "
        "name. The published numbers come from other protocols, budgets, data and sometimes "
        "models than these runs: they are not ranked together.",
        ["attention", *table.tasks, *(table.summaries[:1] if averaged else []), "published by"],
        body,
        [f"{source}: {published.sources()[source]}" for source in used],
    )


def _compared(cell: Cell | None, digits: int) -> str:
    if cell is None or cell.published is None:
        return ""
    return _difference(cell.mean, cell.published.value, digits)


def _difference(measured: float | None, printed: float | None, digits: int) -> str:
    """`51.5 / 38.94 (+12.6)`, with as many digits as were printed."""
    if measured is None or printed is None:
        return ""
    return f"{measured:.1f} / {printed:.{digits}f} ({measured - printed:+.1f})"
