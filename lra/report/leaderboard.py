"""Tables of training runs: rows are attentions, named by the options in which runs of one attention
differ; columns are tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lra import data
from lra.config import UserError
from lra.groups import usual_options
from lra.records import TRAINING, Record, load
from lra.report import published, stats
from lra.report.published import Published
from lra.report.specs import Spec, select
from lra.report.table import Cell, Row, Table, differences, differing, marked, one_line

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")  # what an average is over

# Facts that all runs of a table share, and those that its runs on one task share. The fingerprint
# covers every option of the data.
OF_TABLE = ("protocol.name", "protocol.version", "model", "budget", "precision",
            "compute.budget.reference", "compute.budget.tolerance")  # fmt: skip
OF_TASK = ("data.source", "data.fingerprint", "test.select", "test.examples",
           "compute.budget.parameters", "compute.budget.flops")  # fmt: skip
GROUPS_OF_TASK = ("settings.model", "settings.protocol")


def build_all(found: Sequence[Spec], folder: Path) -> list[Table]:
    """The tables for which the folder has records."""
    tables = []
    for spec in found:
        place = folder / spec.records
        records = select(load([place], TRAINING), spec.where) if place.is_dir() else []
        runs = {t: {r["identity"] for r in records if r["task"] == t} for t in data.names()}
        records = [r for r in records if len(runs[r["task"]]) >= spec.at_least]
        if records:
            tables.append(build(spec, records))
    return tables


def build(spec: Spec, records: Sequence[Record]) -> Table:
    """A table of these records; UserError if they cannot be compared."""
    refuse_mixtures(spec, records)
    tasks = [t for t in data.names() if any(r["task"] == t for r in records)]
    naming = _naming(spec, records)
    groups: dict[tuple, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        named = list(naming[record.attention])
        if record.get("settings.processes"):  # several: dropout differs from that of one
            named.append("processes")
        options = {key: _setting(record, key) for key in named}
        groups[record.attention, tuple(options.items())][record["task"]].append(record)
    built = [_row(spec, name, options, by) for (name, options), by in groups.items()]
    rows = marked(built, tasks)
    rows.sort(key=_order(rows))
    machines = {t: {_machine(r) for r in records if r["task"] == t} for t in tasks}
    timed = {t: spec.speed and len(machines[t]) == 1 for t in tasks}
    return Table(
        name=spec.name,
        title=spec.title,
        tasks=tasks,
        rows=rows,
        notes=_notes(spec, rows, tasks, timed, _conditions(records[0])),
        summaries=("average",),
        published=spec.published,
        timed=timed,
        conditions=_conditions(records[0]),
        caveat=one_line(spec.caveat),
    )


def _naming(spec: Spec, records: Sequence[Record]) -> dict[str, list[str]]:
    """Per attention, the settings that name its rows: those in which its runs on one task differ,
    options that differ from what `attention=<name>` sets, and what the table is about."""

    def settings(record: Record) -> dict[str, Any]:
        own = [f"attention.{option}" for option in record["settings.attention"]]
        return {key: _setting(record, key) for key in own if key not in spec.vary}

    found = differing(records, settings)
    for record in records:
        usual = usual_options(record.attention, record["task"], record["protocol.name"])
        options = record["settings.attention"].items()
        unusual = [f"attention.{key}" for key, value in options if value != usual.get(key, value)]
        found[record.attention] += unusual
    return {name: list(dict.fromkeys([*keys, *spec.vary])) for name, keys in found.items()}


def _setting(record: Record, key: str) -> Any:
    return record.get(f"settings.{key}")


def _row(spec: Spec, attention: str, options: tuple, by_task: dict[str, list[Record]]) -> Row:
    short = {key.rpartition(".")[2]: value for key, value in options}
    cells = {task: _cell(spec, records) for task, records in by_task.items()}
    there = [cells[task] for task in FIVE if task in cells]
    whole = len(there) == len(FIVE)
    printed = [c.published.value for c in there if c.published]
    return Row(
        label=one_line(" ".join([attention, *(f"{k}={v}" for k, v in short.items())])),
        attention=attention,
        options=short,
        cells=cells,
        summary={"average": stats.mean([c.mean for c in there]) if whole else None},
        published_summary=stats.mean(printed) if whole and len(printed) == len(FIVE) else None,
        tasks=f"{len(there)}/{len(FIVE)}",
    )


def _cell(spec: Spec, records: list[Record]) -> Cell:
    records = sorted(records, key=lambda r: r["seed"])
    first = records[0]
    if len({r["identity"] for r in records}) > 1:
        raise UserError(
            f"table '{spec.name}': runs of {first.attention} on {first['task']} differ in "
            "settings that no row shows; name them in `vary` (docs/results.md)"
        )
    return Cell([r.score for r in records], records, _published(spec.published, first))


def _published(table: str | None, record: Record) -> Published | None:
    if table is None:
        return None
    if not published.is_ablation(table):
        return published.lra(table, record.attention, record["task"])
    if record.attention != "luna":
        return None
    return published.ablation(table, record["task"], record["settings.attention"])


def _machine(record: Record) -> tuple[Any, ...]:
    """Speed is compared on one kind of machine only."""
    return tuple(record.get(f"machine.{k}") for k in ("device", "threads", "processes"))


def _order(rows: Sequence[Row]) -> Callable[[Row], Any]:
    """One attention's rows by their options; several attentions by average, or by one task."""
    if len({row.attention for row in rows}) == 1:
        return lambda row: [_sortable(v) for v in row.options.values()]
    tasks = {task for row in rows for task in row.cells}
    if len(tasks) == 1:
        (task,) = tasks
        return lambda row: -row.cells[task].mean
    return lambda row: (row.summary["average"] is None, -(row.summary["average"] or 0), row.label)


def _sortable(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)


def _conditions(record: Record) -> str:
    protocol = record["protocol"]
    return (
        f"protocol {protocol['name']} v{protocol['version']}, model {record['model']}, "
        f"budget {record['budget']:g}, precision {record['precision']}"
    )


# ---------------------------------------------------------------------- notes


def _notes(
    spec: Spec,
    rows: Sequence[Row],
    tasks: Sequence[str],
    timed: dict[str, bool],
    conditions: str,
) -> list[str]:
    """What a reader must know to read the numbers."""
    cells = [cell for row in rows for cell in row.cells.values()]
    seeds = [len(cell.records) for cell in cells]
    notes = [f"Runs of {conditions}. Test accuracy in %: mean ± sample deviation (seeds)."]
    if len(rows) > 1:
        notes.append("Bold: best mean of its column, where it is that of several seeds.")
    if len(rows) > 1 and max(seeds) > 1:
        notes.append(
            "≈: the seeds cannot tell it from the best (Welch's test, Holm-corrected, "
            f"p ≥ {stats.LEVEL:g})."
        )
    if len(rows) > 1 and min(seeds) == 1:
        notes.append("Rows of a single seed are not tested: their differences may be chance.")
    if any(compute_class(cell.records[0]["compute"]) != "-" for cell in cells):
        notes.append(
            'Compute: "matched" means within the tolerance of the budget named below; "×1.34" is '
            'the worse of the two ratios to that budget; "exempt" means that no setting of the '
            "method meets it, and its runs say why."
        )
    if len(tasks) > 1:
        notes.append("An average is over all five tasks or not given; k/5 says how many there are.")
    if not spec.speed:
        notes.append("Speed and memory are left out: the runs shared their machine with others.")
    untimed = [task for task in tasks if spec.speed and not timed[task]]
    return [*notes, *(_task_note(rows, task, task not in untimed) for task in tasks)]


def _task_note(rows: Sequence[Row], task: str, one_machine: bool) -> str:
    cells = [row.cells[task] for row in rows if task in row.cells]
    records = [r for cell in cells for r in cell.records]
    first = records[0]
    machines = sorted({f"{r['machine.device']}, threads {r.get('machine.threads')}"
                       for r in records})  # fmt: skip
    parts = [
        f"data {first['data.source']} ({first.get('data.provenance') or 'source as named'}), "
        f"fingerprint {first['data.fingerprint']}",
        f"{first['steps']} steps of {first['batch']}",
        f"{first['test.examples']} test examples, {first['test.select']} checkpoint",
    ]
    if first.floor is not None:
        floor = f"always answering the majority class gives {first.floor:.2f}"
        learned = any(cell.learned for cell in cells)
        parts.append(floor + ("" if learned else ", no row is above that and none is best"))
    parts += [f"compute budget {budget_name(first)}", f"machine {' / '.join(machines)}"]
    if not one_machine:
        parts.append("speed and memory are left out, they come from different machines")
    return one_line(f"{task}: {'; '.join(parts)}.")


def budget_name(record: Record) -> str:
    """The compute budget that a run was held to."""
    budget = record.get("compute.budget")
    if budget is None:
        return "none, compute=off"
    parameters = f"{budget['parameters']:,} parameters" if budget.get("parameters") else ""
    flops = f"{budget['flops'] / 1e9:.3f} GFLOPs" if budget.get("flops") else ""
    return f"{budget.get('reference')}: " + ", ".join(filter(None, (parameters, flops)))


def compute_class(compute: Mapping[str, Any]) -> str:
    """`matched`, `over budget ×N` or `under ×N`, and whether it is exempt by declaration."""
    verdict = compute.get("verdict") or "-"
    exempt = compute.get("exempt") and verdict != "matched"
    return f"exempt, {verdict}" if exempt else verdict


# ---------------------------------------------------------------------- which runs share a table


def refuse_mixtures(spec: Spec, records: Sequence[Record]) -> None:
    """UserError with everything in which the runs of one table differ."""

    def kept(facts: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in facts.items() if key not in spec.vary}

    found = differences(records, lambda r: kept({k: r.get(k) for k in OF_TABLE}))
    for task in dict.fromkeys(r["task"] for r in records):
        among = [r for r in records if r["task"] == task]
        differ = differences(among, lambda r: kept(_task_facts(r)))
        found += [f"on {task}, {line}" for line in differ]
    if found:
        raise UserError(
            f"table '{spec.name}' would mix runs that cannot be compared; narrow it with `where` "
            f"(docs/results.md). They differ:\n  " + "\n  ".join(found)
        )


def comparable(records: Sequence[Record]) -> list[tuple[list[Record], dict[str, str]]]:
    """The runs of each task in groups that may share a table, and for each group the facts that
    tell it from other groups of its task."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    known: dict[tuple[str, str], dict[str, str]] = {}
    for record in records:
        facts = {key: record.get(key) for key in OF_TABLE} | _task_facts(record)
        key = record["task"], str(sorted(facts.items()))
        groups[key].append(record)
        known[key] = {name: str(value) for name, value in facts.items()}
    return [(group, _apart(key, known)) for key, group in groups.items()]


def _apart(this: tuple[str, str], known: dict[tuple[str, str], dict[str, str]]) -> dict[str, str]:
    task, own = this[0], known[this]
    others = [facts for (of, _), facts in known.items() if of == task]
    names = dict.fromkeys(name for facts in others for name in facts)
    differ = [name for name in names if len({facts.get(name) for facts in others}) > 1]
    return {name: own.get(name, "absent") for name in differ}


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
