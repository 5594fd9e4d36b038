"""Tables of training runs: rows are attentions, named by the options in which runs of one attention
differ; columns are tasks."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lra import data
from lra.base.code import PRETRAINING, Code
from lra.base.config import UserError
from lra.report import published, stats
from lra.report.agreement import agreements
from lra.report.compare import differing, refuse_mixtures
from lra.report.effects import effects
from lra.report.notes import notes
from lra.report.published import Published
from lra.report.specs import TableSpec, select
from lra.report.table import (
    Cell,
    Table,
    TableRow,
    cells_by_row,
    mark_best,
    one_line,
    options_of,
    pairs_of,
    refuse_same_names,
    setting_of,
    short_name,
    sortable,
    usual_of,
)  # fmt: skip
from lra.results.record import TRAINING, Key, Record, first_attempts, unique_runs
from lra.results.schema import flat

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")  # the tasks of an average
AVERAGE = "average"
SPELT = 3  # where more options than these differ, rows are named by those with unusual values
RowName = tuple[str, tuple[tuple[str, Any], ...]]  # attention, and the options of the label

# Facts that all runs of a table share, and those that its runs on one task share. The fingerprint
# covers every option of the data. A budget that an attention measures follows from what is varied.
OF_TABLE = ("protocol.name", "protocol.version", "model", "budget", "precision",
            "compute.budget.reference", "compute.budget.tolerance")  # fmt: skip
FOLLOW = ("compute.budget.parameters", "compute.budget.flops")
OF_TASK = ("data.source", "data.fingerprint", "test.select", "test.examples", *FOLLOW)
GROUPS_OF_TASK = ("settings.model", "settings.protocol")


def selected(spec: TableSpec, records: Sequence[Record], folder: Path) -> list[Record]:
    """The runs that an entry of tables.yaml takes from the records of a folder."""
    place = folder / spec.records
    there = [r for r in records if r.path.with_suffix("").is_relative_to(place)]
    return select(unique_runs(there, TRAINING), spec.where)


def build_all(
    specs: Sequence[TableSpec], everything: Sequence[Record], folder: Path
) -> list[Table]:
    """The tables for which there are records, all of which come from `folder`."""
    tables: dict[str, Table] = {}
    for spec in specs:
        records = selected(spec, everything, folder)
        runs: dict[str, set[str]] = defaultdict(set)
        for r in records:
            runs[r["task"]].add(r["identity"])
        records = [r for r in records if len(runs[r["task"]]) >= spec.at_least]
        if records:
            tables[spec.name] = build(spec, records)
    for spec in specs:
        if spec.name in tables and spec.against in tables:
            orders = agreements(tables[spec.name], tables[spec.against])
            tables[spec.name] = dataclasses.replace(tables[spec.name], agreements=orders)
    return list(tables.values())


def build(spec: TableSpec, records: Sequence[Record]) -> Table:
    """A table of these records; UserError if they cannot be compared."""
    for key in filter(None, (spec.choose, spec.columns)):
        if all(setting_of(r, key) is None for r in records):
            raise UserError(f"table '{spec.name}': no record has the setting '{key}'")
    records, repeated = first_attempts(records)
    best, tried = _chosen(records, spec.choose)
    shown = {r.key for r in best}
    unchosen = [r for r in records if r.key not in shown]
    records = [_in_column(r, spec.columns) for r in best]

    def without_varied(facts: dict[str, Any]) -> dict[str, Any]:
        ignored = (*may_differ(spec.vary), spec.choose)
        return {key: value for key, value in facts.items() if key not in ignored}

    refuse_mixtures(
        spec.name,
        records,
        of_table=lambda r: without_varied(_table_facts(r)),
        of_task=lambda r: without_varied(_task_facts(r)),
        remedy="narrow it with `where`",
    )
    naming = _naming(spec, records)
    cells = cells_by_row(
        records, lambda r: _name(r, naming), lambda r, _: _published(spec.published, r)
    )
    tasks = _columns(records, spec.columns)
    averaged = tasks if spec.columns else FIVE
    rows = [_row(*name, by_task, averaged, naming) for name, by_task in cells.items()]
    refuse_same_names(spec.name, rows)
    rows = mark_best(rows, tasks)
    rows.sort(key=_order(rows))
    machines = {t: {_machine(r) for r in records if r["task"] == t} for t in tasks}
    timed = {t: spec.speed and len(machines[t]) == 1 for t in tasks}
    conditions = _conditions(records)
    return Table(
        name=spec.name,
        title=spec.title,
        tasks=tasks,
        rows=rows,
        notes=notes(spec, rows, tasks, timed, conditions, repeated),
        summaries=(AVERAGE,),
        published=spec.published,
        timed=timed,
        axis=spec.columns.rpartition(".")[2],
        conditions=conditions,
        repeated=repeated,
        unchosen=unchosen,
        caveat=one_line(spec.caveat),
        effects=effects(records, [*spec.vary, spec.columns], spec.together, tried)
        if spec.effects
        else [],
    )


# --------------------------------------------------------------------- columns, and what is in them


def _chosen(records: Sequence[Record], key: str) -> tuple[Sequence[Record], dict[Key, Any]]:
    """The runs with the best value of this setting: the one with the best mean dev accuracy over
    seeds, among runs that differ in nothing else; and the values that it was chosen from, by run.
    A value with fewer seeds than another is not chosen: it was tried with one seed only, or runs
    diverged, which leave no record."""
    if not key:
        return records, {}
    groups: dict[str, dict[Any, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        others = [(k, v) for k, v in flat(record["settings"], "") if k != key]
        kind = str((record["data.fingerprint"], record.code, others))
        groups[kind][setting_of(record, key)].append(record)
    selected: list[Record] = []
    tried: dict[Key, Any] = {}
    for values in groups.values():
        seeds = {value: len({r["seed"] for r in runs}) for value, runs in values.items()}
        whole = (runs for value, runs in values.items() if seeds[value] == max(seeds.values()))
        best = max(whole, key=lambda runs: stats.mean([r["dev.accuracy"] for r in runs]))
        tried |= dict.fromkeys([r.key for r in best], sorted(values, key=sortable))
        selected += best
    return selected, tried


def _in_column(record: Record, setting: str) -> Record:
    """The record under the name of its column, `pairs=16`, where columns are not tasks."""
    if not setting:
        return record
    column = f"{setting.rpartition('.')[2]}={setting_of(record, setting)}"
    return dataclasses.replace(record, facts=record.facts | {"task": column})


def _columns(records: Sequence[Record], setting: str) -> list[str]:
    order = {r["task"]: sortable(setting_of(r, setting)) for r in records}
    place = {name: i for i, name in enumerate(data.builtin_tasks())}  # others follow, by name
    return sorted(order, key=order.__getitem__ if setting else lambda t: (place.get(t, 99), t))


# ---------------------------------------------------------------------- rows


def _naming(spec: TableSpec, records: Sequence[Record]) -> dict[str, list[str]]:
    """Per attention, the settings that name its rows: those in which its runs on one task differ,
    options that differ from what `attention=<name>` sets, and those that the table varies."""

    def settings(record: Record) -> dict[str, Any]:
        options = {f"attention.{option}": value for option, value in options_of(record).items()}
        facts = {key: value for key, value in options.items() if key not in spec.vary}
        return facts | {"code": _code(record)}

    naming = differing(records, settings)
    pretrained = [r for r in records if r.get("settings.pretrain")]
    for name, keys in differing(pretrained, lambda r: {"code": r.code}).items():
        naming[name] += keys
    for record in records:
        usual, options = usual_of(record), options_of(record).items()
        unusual = [f"attention.{key}" for key, value in options if value != usual.get(key, value)]
        naming[record.attention] += unusual
    return {name: list(dict.fromkeys([*keys, *spec.vary])) for name, keys in naming.items()}


def _code(record: Record) -> str:
    """The code that runs with and without pretraining share."""
    parts = record.get("code") or {}
    shared = {part: value for part, value in parts.items() if part not in PRETRAINING}
    return record.code if shared == parts else Code(shared).hash


def _name(record: Record, naming: Mapping[str, Sequence[str]]) -> RowName:
    keys = list(naming[record.attention])
    if record.get("settings.processes"):  # several processes draw other dropout than one
        keys.append("processes")
    if record.get("settings.pretrain") and "pretrain.name" not in keys:
        keys.append("pretrain.name")
    absent = {"code": record.code, "pretrain.name": "none"}
    values = (setting_of(record, key, absent.get(key)) for key in keys)
    return record.attention, tuple(zip(map(short_name, keys), values, strict=True))


def _published(table: str | None, record: Record) -> Published | None:
    options = record["settings.attention"]
    return published.published_score(table, record.attention, record["task"], options)


def _row(
    attention: str,
    options: tuple[tuple[str, Any], ...],
    cells: dict[str, Cell],
    averaged: Sequence[str],
    naming: Mapping[str, Sequence[str]],
) -> TableRow:
    usual = [usual_of(cell.records[0]) for cell in cells.values()]
    spelt = len(naming[attention]) <= SPELT
    named = {k: v for k, v in options if spelt or any(v != of_task.get(k) for of_task in usual)}
    there = [cells[task] for task in averaged if task in cells]
    complete = len(there) == len(averaged)
    printed = [c.published.value for c in there if c.published]
    return TableRow(
        label=one_line(f"{attention} {pairs_of(named)}"),
        attention=attention,
        options=dict(options),
        cells=cells,
        summary={AVERAGE: stats.mean([c.mean for c in there]) if complete else None},
        published_summary=stats.mean(printed) if len(printed) == len(averaged) else None,
        tasks=f"{len(there)}/{len(averaged)}",
    )


def _order(rows: Sequence[TableRow]) -> Callable[[TableRow], Any]:
    """Rows of one attention by their options; several attentions by average, or by their task."""
    if len({row.attention for row in rows}) == 1:
        return lambda row: [sortable(v) for v in row.options.values()]
    tasks = {task for row in rows for task in row.cells}
    if len(tasks) == 1:
        (task,) = tasks
        return lambda row: -row.cells[task].mean
    return lambda row: (row.summary[AVERAGE] is None, -(row.summary[AVERAGE] or 0), row.label)


def _machine(record: Record) -> tuple[Any, ...]:
    """Facts that two runs must share for their speeds to be compared."""
    return tuple(record.get(f"machine.{k}") for k in ("device", "threads", "processes"))


def _conditions(records: Sequence[Record]) -> str:
    """Describe what the runs share in a few words; name every protocol, where a table varies it."""

    def every(show: Callable[[Record], str]) -> str:
        return " and ".join(sorted({show(r) for r in records}))

    protocols = every(lambda r: f"{r['protocol.name']} v{r['protocol.version']}")
    return (
        f"protocol {protocols}, model {every(lambda r: r['model'])}, budget "
        f"{every(lambda r: format(r['budget'], 'g'))}, precision {every(lambda r: r['precision'])}"
    )


# ---------------------------------------------------------------------- which runs share a table


def comparable(
    records: Sequence[Record], vary: Sequence[str] = ()
) -> list[tuple[list[Record], dict[str, str]]]:
    """The runs of each task in groups that may share a table, in which the settings of `vary` may
    differ; each with the facts in which it differs from other groups of its task."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    facts_of: dict[tuple[str, str], dict[str, str]] = {}
    for record in records:
        facts = {k: str(v) for k, v in compared(record).items() if k not in may_differ(vary)}
        key = record["task"], str(sorted(facts.items()))
        groups[key].append(record)
        facts_of[key] = facts
    together = []
    for key, group in groups.items():
        of_task = [facts for other, facts in facts_of.items() if other[0] == key[0]]
        names = dict.fromkeys(name for facts in of_task for name in facts)
        differ = [name for name in names if len({facts.get(name) for facts in of_task}) > 1]
        together.append((group, {name: facts_of[key].get(name, "absent") for name in differ}))
    return together


def may_differ(vary: Sequence[str]) -> tuple[str, ...]:
    """The facts in which runs of one table may differ if it varies these settings."""
    return (*vary, *FOLLOW) if vary else ()


def compared(record: Record) -> dict[str, Any]:
    """The facts that decide whether two runs of one task may share a table."""
    return _table_facts(record) | _task_facts(record)


def _table_facts(record: Record) -> dict[str, Any]:
    return {key: record.get(key) for key in OF_TABLE}


def _task_facts(record: Record) -> dict[str, Any]:
    facts = {key: record.get(key) for key in OF_TASK}
    for group in GROUPS_OF_TASK:
        facts |= {k.removeprefix("settings."): v for k, v in flat(record.get(group), group)}
    return facts
