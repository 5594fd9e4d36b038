"""Tables of comparable runs: which runs may share one, its rows and cells, and what they tell.

A table is one protocol, one model size, one budget and, for each task, one data set: mixing them is
refused with the list of what differs. Rows are attentions, told apart by the options in which runs
of one attention differ; columns are tasks.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lra import data
from lra.config import UserError, nearest
from lra.report import published, stats
from lra.report.published import Published
from lra.report.records import Record, load

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")  # what an average is over
SPECS = Path(__file__).with_name("tables.yaml")

OF_TABLE = ("protocol.name", "protocol.version", "model", "budget", "precision",
            "compute.budget.reference", "compute.budget.tolerance")  # fmt: skip
OF_TASK = ("data.source", "data.fingerprint", "test.select", "test.examples")
GROUPS_OF_TASK = ("compute.budget", "settings.task", "settings.model", "settings.protocol")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """What a table is made of; tables.yaml explains the fields."""

    name: str
    title: str
    records: str = ""
    where: dict[str, Any] = dataclasses.field(default_factory=dict)
    vary: list[str] = dataclasses.field(default_factory=list)
    published: str | None = None


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
    def match(self) -> str:
        """How the run met its compute budget: matched, or by how much it did not."""
        verdict = self.records[0].get("compute.verdict") or "not checked"
        excused = verdict != "matched" and self.records[0].get("compute.exempt")
        return f"{verdict} (exempt)" if excused else verdict


@dataclasses.dataclass(frozen=True)
class Row:
    attention: str
    options: dict[str, Any]  # those that tell it from other rows of its attention
    cells: dict[str, Cell]  # by task

    @property
    def label(self) -> str:
        return " ".join([self.attention, *(f"{k}={v}" for k, v in self.options.items())])

    @property
    def average(self) -> float | None:
        """Over the five tasks of the benchmark, and only if all five are there."""
        if not set(FIVE) <= set(self.cells):
            return None
        return stats.mean([self.cells[task].mean for task in FIVE])

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


def specs(results: Path) -> list[Spec]:
    """The tables of a results folder: its tables.yaml, or the usual ones."""
    path = results / "tables.yaml"
    path = path if path.exists() else SPECS
    try:
        found = [Spec(**entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]
    except (TypeError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} is no list of tables: {error}") from error
    twice = {s.name for s in found if [t.name for t in found].count(s.name) > 1}
    if twice:
        raise UserError(f"{path} has two tables named {', '.join(sorted(twice))}")
    return found


def choose(all_specs: Sequence[Spec], names: Sequence[str]) -> list[Spec]:
    known = {s.name: s for s in all_specs}
    for name in names:
        if name not in known:
            raise UserError(f"no table '{name}'{nearest(name, known)}")
    return [known[n] for n in names] or list(all_specs)


def build_all(found: Sequence[Spec], folders: Sequence[Path]) -> list[Table]:
    """The tables for which there are records; `folders` are searched for each."""
    tables = []
    for spec in found:
        places = [p / spec.records for p in folders if (p / spec.records).is_dir()]
        records = select(load(places), spec.where)
        if records:
            tables.append(build(spec, records))
    return tables


def select(records: Iterable[Record], where: Mapping[str, Any]) -> list[Record]:
    return [r for r in records if all(_holds(r, key, value) for key, value in where.items())]


def _holds(record: Record, key: str, allowed: Any) -> bool:
    value = record.get(key, record.get(f"settings.{key}"))
    if isinstance(value, dict):  # attention: luna, protocol: luna
        value = value.get("name")
    if value is None and key.startswith("attention."):
        return True
    return value in allowed if isinstance(allowed, list) else value == allowed


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


def refuse_mixtures(spec: Spec, records: Sequence[Record]) -> None:
    """UserError with everything in which the runs of one table differ."""
    found = _differences(records, lambda r: {k: r.get(k) for k in OF_TABLE}, spec.vary)
    for task in dict.fromkeys(r["task"] for r in records):
        among = [r for r in records if r["task"] == task]
        differ = _differences(among, _task_facts, spec.vary)
        found += [f"on {task}, {line}" for line in differ]
    if found:
        raise UserError(
            f"table '{spec.name}' would mix runs that cannot be compared: {'; '.join(found)}. "
            "Narrow it with --where, or with `where` in tables.yaml"
        )


def _task_facts(record: Record) -> dict[str, Any]:
    facts = {key: record.get(key) for key in OF_TASK}
    for group in GROUPS_OF_TASK:
        facts |= {k.removeprefix("settings."): v for k, v in _flat(record.get(group), group)}
    return facts


def _flat(value: Any, name: str) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}")
    else:
        yield name, value


def _differences(
    records: Sequence[Record], facts: Callable[[Record], dict[str, Any]], allowed: Sequence[str]
) -> list[str]:
    """`key is this (linear, luna) or that (softmax)`, for every key with more than one value."""
    told = []
    by_record = [facts(r) for r in records]
    for key in dict.fromkeys(k for f in by_record for k in f):
        names: dict[str, set[str]] = defaultdict(set)
        for record, its in zip(records, by_record, strict=True):
            names[str(its.get(key, "absent"))].add(record["attention.name"])
        if len(names) > 1 and key not in allowed:
            parts = [f"{value} ({', '.join(sorted(of))})" for value, of in sorted(names.items())]
            told.append(f"{key} is {' or '.join(parts)}")
    return told


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
    if len({r.key for r in records}) != len({r["seed"] for r in records}):
        raise UserError(
            f"table '{spec.name}': {first['attention.name']} on {first['task']} has runs of one "
            "seed that differ in settings which no row shows; add them to `vary`"
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
    """The best cell of every task, and the cells that tie with it."""
    marked = [dataclasses.replace(row, cells=dict(row.cells)) for row in rows]
    for task in tasks:
        samples = {i: row.cells[task].values for i, row in enumerate(rows) if task in row.cells}
        best, tied = stats.ties(samples)
        for i in samples:
            cell = dataclasses.replace(rows[i].cells[task], best=i == best, tie=tied.get(i))
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
