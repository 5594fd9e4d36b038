"""All tasks beside each other: the columns that tables.yaml names under `overview`, with each
method as it is by default and at its best setting; and what was not run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lra.looks import FAMILIES, OTHER, family_of, in_words, look_of, members
from lra.report.cell import Cell, rounded
from lra.report.names import task_name
from lra.report.table import Table, best_rule
from lra.report.trainings import FIVE, RATE
from lra.results.frame import usual_of
from lra.results.record import Record

SHORT = ("demo", "quick", "balanced")  # protocols with a small part of the benchmark's steps
BEST = " best"  # behind a method, in the key of its second line
ORDER = [family.name for family in (*FAMILIES, OTHER)]


class Place(NamedTuple):
    """A cell, by its table."""

    table: Table
    row: str
    column: str

    @property
    def cell(self) -> Cell:
        return self.table.cell(self.row, self.column)

    @property
    def unusual(self) -> dict[str, Any]:
        """The options that are not the method's usual ones."""
        usual = usual_of(self.cell.records[0])
        options = {k: v for k, v in self.cell.options.items() if k not in ("code", "tune")}
        return {k: v for k, v in options.items() if str(v) != str(usual.get(k))}


@dataclass(frozen=True)
class Task:
    """A column among all tasks; of a task that has not run its places are empty."""

    words: str
    table: Table
    column: str
    need: str  # what a reader needs who looks at this task; empty without
    usual: dict[str, Place]  # each method as it is by default
    best: dict[str, Place]  # of methods that another setting brings further on dev


def tasks_of(tables: Sequence[Table]) -> list[Task]:
    """Those at the full budget of the benchmark first. A task has the rows of every table whose
    runs had the same data and the same training, its own table's before others."""
    alike = defaultdict[tuple[Any, ...], list[Place]](list)
    for table in tables:
        for row, column in table.cells.index:
            place = Place(table, row, column)
            if place.cell.record is not None and place.cell.fingerprint:
                alike[_training(place.cell)].append(place)
    tasks = []
    for table in tables:
        for column, words in table.spec.overview.items():
            own = [Place(table, row, c) for row, c in table.cells.index if c == column]
            trainings = dict.fromkeys(_training(place.cell) for place in own)
            known = [place for key in trainings for place in alike[key]]
            others = [place for place in known if place.table is not table]
            usual = _of_methods(others) | _of_methods(own)
            best = {}
            for method, place in usual.items():
                same = [p for p in (*own, *others) if p.cell.attention == method]
                if (found := _best_on_dev(same, place)) is not place:
                    best[method] = found
            need = table.spec.needs.get(column, "")
            tasks.append(Task(words, table, column, need, usual, best))
    return sorted(tasks, key=lambda task: not full(task))


def _training(cell: Cell) -> tuple[Any, ...]:
    """What must be the same where scores of two tables stand in one column."""
    model = cell.record and cell.record.get("model")
    return cell.fingerprint, cell.protocol, model, cell.steps, cell.batch


def _of_methods(places: Sequence[Place]) -> dict[str, Place]:
    """One place for each method: the row with the fewest unusual options, then the one with most
    seeds, then the first. Never the best by score: that would flatter methods with many rows."""

    def rank(place: Place) -> tuple[int, int]:
        return len(place.unusual), -place.cell.seeds

    found: dict[str, Place] = {}
    for place in sorted(places, key=rank):
        found.setdefault(place.cell.attention, place)
    return found


def _best_on_dev(places: Sequence[Place], usual: Place) -> Place:
    """The place with the best mean on dev, of other settings and not of other code; a single seed
    wins against single seeds only."""

    def on_dev(place: Place) -> float:
        scores = [record.get("dev.score") for record in place.cell.records]
        known = [score for score in scores if score is not None]
        return place.cell.sign * sum(known) / len(known) if known else -math.inf

    least = min(2, usual.cell.seeds)
    others = [place for place in places if place.cell.identity != usual.cell.identity]
    return max([usual, *(p for p in others if p.cell.seeds >= least)], key=on_dev)


def setting_of(place: Place, usual: Place | None = None) -> str:
    """What is unusual in it, in words; beside the usual place of its method at least the rate."""
    words = in_words(place.unusual)
    rate = place.cell.records[0].get(RATE)
    return words or (f"rate {rate:g}" if usual and usual is not place and rate else "")


@dataclass(frozen=True)
class Line:
    """A row of all tasks: a method by default, or with the best setting of each task."""

    key: str
    name: str
    method: str
    places: list[Place | None]  # by task


def lines_of(tables: Sequence[Table], tasks: Sequence[Task]) -> list[Line]:
    """Two lines of a method that has a better setting than its usual one, on one task or more."""
    shown = [task for task in tasks if task.usual]
    lines = []
    for method in methods_of(tables, tasks):
        usual = [task.usual.get(method) for task in shown]
        lines.append(Line(method, look_of(method, {}).name, method, usual))
        if any(method in task.best for task in shown):
            best = [task.best.get(method, place) for task, place in zip(shown, usual, strict=True)]
            lines.append(Line(f"{method}{BEST}", f"{look_of(method).name}, best", method, best))
    return lines


def methods_of(tables: Sequence[Table], tasks: Sequence[Task]) -> list[str]:
    """Every method that has run, by family; LUNA and softmax first in theirs, then those with most
    tasks."""
    methods = {method for table in tables for method in table.rows["attention"]}

    def place(method: str) -> tuple[int, bool, int, str]:
        count = sum(method in task.usual for task in tasks)
        family = ORDER.index(family_of(method).name)
        return family, method not in ("luna", "softmax"), -count, look_of(method).name

    return sorted(methods, key=place)


# ---------------------------------------------------------------------- sentences


def findings(tasks: Iterable[Task]) -> list[str]:
    """What the runs at the full budget show: how many methods are better than every rule, in all
    their seeds."""
    said = []
    for task in filter(full, tasks):
        table, column = task.table, task.column
        if table.rules.empty:
            continue
        cells = [place.cell for place in task.usual.values()]
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
    if empty := [task.words for task in tasks if not task.usual]:
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


def full(task: Task) -> bool:
    runs = task.table.runs
    return any(map(is_full, runs.loc[runs["column"] == task.column, "record"]))


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
