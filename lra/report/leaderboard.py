"""Tables of comparable runs: their rows and cells, and what they tell.

Rows are attentions, told apart by the options in which runs of one attention differ; columns are
tasks. Which runs may share a table is decided in mixtures.py.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lra import data
from lra.config import UserError
from lra.report import published, stats
from lra.report.mixtures import refuse_mixtures
from lra.report.published import Published
from lra.report.records import Record, load
from lra.report.specs import Spec, select
from lra.report.tables import compute_class

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")  # what an average is over


@dataclasses.dataclass(frozen=True)
class Cell:
    """Runs of one row on one task, alike but for the seed."""

    records: list[Record]
    published: Published | None = None
    best: bool = False
    tie: float | None = None  # adjusted p-value, where the seeds can't tell it from the best

    @property
    def values(self) -> list[float]:
        return [100 * r.accuracy for r in self.records]

    @property
    def mean(self) -> float:
        return stats.mean(self.values)

    @property
    def deviation(self) -> float | None:
        return stats.deviation(self.values)

    @property
    def difference(self) -> float | None:
        return None if self.published is None else self.mean - self.published.value

    def cost(self, key: str) -> float:
        return stats.mean([r[key] for r in self.records])

    @property
    def learned(self) -> bool:
        """Whether it is above always giving one answer, where it is known what that gives."""
        majority = self.records[0].get("data.majority")
        # Accuracies are float32; one example of 25,000 is 0.004.
        return majority is None or self.mean > 100 * majority + 1e-3

    @property
    def match(self) -> str:
        """How the run met its compute budget."""
        return compute_class(self.records[0].facts)


@dataclasses.dataclass(frozen=True)
class Row:
    attention: str
    options: dict[str, Any]  # those that tell it from other rows of its attention
    cells: dict[str, Cell]  # by task

    @property
    def label(self) -> str:
        parts = [self.attention, *(f"{k}={v}" for k, v in self.options.items())]
        return " ".join(" ".join(parts).split())  # on one line, whatever an option holds

    @property
    def average(self) -> float | None:
        """Over the five tasks of the benchmark, and only if all five are there."""
        if not set(FIVE) <= set(self.cells):
            return None
        return stats.mean([self.cells[task].mean for task in FIVE])

    @property
    def published_average(self) -> float | None:
        """Of the published values beside the average, where it has all five as well."""
        if self.average is None:
            return None
        known = [self.cells[task].published for task in FIVE]
        values = [p.value for p in known if p is not None]
        return stats.mean(values) if len(values) == len(FIVE) else None

    @property
    def complete(self) -> int:
        """How many of the five tasks there are: the average's denominator."""
        return len(set(FIVE) & set(self.cells))


@dataclasses.dataclass(frozen=True)
class Table:
    spec: Spec
    tasks: list[str]
    rows: list[Row]
    timed: dict[str, bool]  # tasks all of whose runs were timed on one machine
    conditions: str

    @property
    def records(self) -> list[Record]:
        return [r for row in self.rows for cell in row.cells.values() for r in cell.records]


def build_all(found: Sequence[Spec], folder: Path) -> list[Table]:
    """The tables for which the folder has records."""
    tables = []
    for spec in found:
        place = folder / spec.records
        records = select(load([place]), spec.where) if place.is_dir() else []
        runs = {
            task: {r["identity"] for r in records if r["task"] == task} for task in data.names()
        }
        records = [r for r in records if len(runs[r["task"]]) >= spec.at_least]
        if records:
            tables.append(build(spec, records))
    return tables


def build(spec: Spec, records: Sequence[Record]) -> Table:
    """A table of these records; UserError if they can't be compared."""
    refuse_mixtures(spec, records)
    tasks = [t for t in data.names() if any(r["task"] == t for r in records)]
    telling = _telling(spec, records)
    groups: dict[tuple, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        name = record["attention.name"]
        options = {key: _setting(record, key) for key in telling[name]}
        groups[name, tuple(options.items())][record["task"]].append(record)
    rows = [
        Row(name, {_short(k): v for k, v in options}, {t: _cell(spec, cells[t]) for t in cells})
        for (name, options), cells in groups.items()
    ]
    rows = sorted(_marked(rows, tasks), key=_order(rows))
    timed = {t: len({_machine(r) for r in records if r["task"] == t}) == 1 for t in tasks}
    return Table(spec, tasks, rows, timed, _conditions(records[0]))


def _telling(spec: Spec, records: Sequence[Record]) -> dict[str, list[str]]:
    """Per attention, the settings that name its rows: those in which its runs on one task differ,
    and those that the table is about."""
    seen: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    keys: dict[str, dict[str, None]] = defaultdict(dict)
    for record in records:
        name = record["attention.name"]
        own = [f"attention.{option}" for option in record["settings.attention"]]
        for key in [*own, *spec.vary]:
            keys[name][key] = None
            seen[name, record["task"], key].add(str(_setting(record, key)))
    tasks = {task for _, task, _ in seen}
    return {
        name: [k for k in own if k in spec.vary or any(len(seen[name, t, k]) > 1 for t in tasks)]
        for name, own in keys.items()
    }


def _setting(record: Record, key: str) -> Any:
    return record.get(f"settings.{key}")


def _short(key: str) -> str:
    return key.rpartition(".")[2]


def _machine(record: Record) -> tuple[Any, ...]:
    """Speed is compared on one kind of machine only."""
    return tuple(record.get(f"machine.{k}") for k in ("device", "threads", "processes"))


def _cell(spec: Spec, records: list[Record]) -> Cell:
    records = sorted(records, key=lambda r: r["seed"])
    first = records[0]
    if len({r["identity"] for r in records}) > 1:
        raise UserError(
            f"table '{spec.name}': runs of {first['attention.name']} on {first['task']} differ in "
            "settings that no row shows; name them in `vary` (docs/results.md)"
        )
    return Cell(records, _published(spec.published, first))


def _published(table: str | None, record: Record) -> Published | None:
    if table is None:
        return None
    if not published.is_ablation(table):
        return published.lra(table, record["attention.name"], record["task"])
    if record["attention.name"] != "luna":
        return None
    return published.ablation(table, record["task"], record["settings.attention"])


def _marked(rows: list[Row], tasks: Sequence[str]) -> list[Row]:
    """The best cell of every task, and the cells that tie with it; where no cell is above always
    giving one answer, nothing was learned and none is best."""
    marked = [dataclasses.replace(row, cells=dict(row.cells)) for row in rows]
    for task in tasks:
        samples = {i: row.cells[task].values for i, row in enumerate(rows) if task in row.cells}
        if not any(rows[i].cells[task].learned for i in samples):
            continue
        best, tied = stats.ties(samples)
        for i in samples:
            cell = dataclasses.replace(rows[i].cells[task], best=i in best, tie=tied.get(i))
            marked[i].cells[task] = cell
    return marked


def _order(rows: Sequence[Row]) -> Callable[[Row], Any]:
    """One attention's rows by their options; several attentions by average, or by one task."""
    if len({row.attention for row in rows}) == 1:
        return lambda row: [_sortable(v) for v in row.options.values()]
    tasks = {task for row in rows for task in row.cells}
    if len(tasks) == 1:
        (task,) = tasks
        return lambda row: -row.cells[task].mean
    return lambda row: (row.average is None, -(row.average or 0), row.label)


def _sortable(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)


def _conditions(record: Record) -> str:
    protocol = record["protocol"]
    return (
        f"protocol {protocol['name']} v{protocol['version']}, model {record['model']}, "
        f"budget {record['budget']:g}, precision {record['precision']}"
    )
