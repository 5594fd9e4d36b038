"""A table as Markdown and CSV, and what every format says of it. Accuracies lead to their runs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from lra.report import published
from lra.report.leaderboard import FIVE, Cell, Row, Table
from lra.report.records import Record
from lra.report.stats import LEVEL
from lra.report.tables import budget_name

GENERATED = "Made by `lra table --write` from the records; `lra table --check` compares."
COSTS = ("parameters", "GFLOPs", "compute", "steps/s", "peak MiB")
CSV_COLUMNS = (
    "table", "row", "attention", "options", "task", "accuracy", "deviation", "seeds", "best",
    "tie_p", "parameters", "gflops", "compute", "steps_per_second", "peak_memory_mib",
    "published", "published_source", "difference", "data_source", "fingerprint", "revisions",
    "runs",
)  # fmt: skip


def accuracy(cell: Cell) -> str:
    """`41.0 ± 0.5 (3)`: mean, sample deviation, seeds."""
    spread = "" if cell.deviation is None else f" ± {cell.deviation:.1f}"
    return f"{cell.mean:.1f}{spread} ({len(cell.records)})"


def average(row: Row) -> str:
    """With its denominator; without a number unless all five tasks are there."""
    number = "–" if row.average is None else f"{row.average:.1f}"
    return f"{number} ({row.complete}/{len(FIVE)})"


def costs(cell: Cell, *, timed: bool) -> list[str]:
    """What a run of the cell costs; speed and memory only where they can be compared."""
    speed = [f"{cell.cost('steps_per_second'):.1f}", f"{cell.cost('peak_memory_mib'):.0f}"]
    return [
        f"{cell.cost('compute.parameters'):,.0f}",
        f"{cell.cost('compute.flops') / 1e9:.3f}",
        cell.match,
        *(speed if timed else ["", ""]),
    ]


def notes(table: Table) -> list[str]:
    """What a reader must know to read the numbers; plain sentences."""
    told = [f"Runs of {table.conditions}. Test accuracy in %: mean ± sample deviation (seeds)."]
    samples = [len(c.records) for row in table.rows for c in row.cells.values()]
    if len(table.rows) > 1:
        told.append("Bold: best mean of its column.")
    if len(table.rows) > 1 and max(samples) > 1:
        told.append(
            "≈: the seeds can't tell it from the best (Welch's test, Holm-corrected, "
            f"p ≥ {LEVEL:g})."
        )
    if len(table.rows) > 1 and min(samples) == 1:
        told.append("Rows of a single seed are not tested: their differences may be chance.")
    if any(c.match != "-" for row in table.rows for c in row.cells.values()):
        told.append(
            "Compute: matched is within the tolerance of the budget named below, ×N how far what "
            "is furthest out lies from it. Exempt: no setting of the method matches it, its runs "
            "say why."
        )
    if len(table.tasks) > 1:
        told.append("Averages are over all five tasks or not given; (k/5): how many there are.")
    return [*told, *(one_line(_of_task(table, task)) for task in table.tasks)]


def _of_task(table: Table, task: str) -> str:
    records = [r for row in table.rows if task in row.cells for r in row.cells[task].records]
    first = records[0]
    machines = sorted({f"{r['machine.device']}, threads {r.get('machine.threads')}"
                       for r in records})  # fmt: skip
    majority = first.get("data.majority")
    line = (
        f"{task}: data {first['data.source']} "
        f"({first.get('data.provenance') or 'source as named'}), "
        f"fingerprint {first['data.fingerprint']}; {first['steps']} steps of {first['batch']}; "
        f"{first['test.examples']} test examples, {first['test.select']} checkpoint; "
    )
    if majority is not None:
        line += f"always answering the majority class gives {100 * majority:.2f}"
        learned = any(row.cells[task].learned for row in table.rows if task in row.cells)
        line += "; " if learned else ", no row is above that and none is marked as best; "
    line += f"compute budget {budget_name(first.get('compute.budget'))}; "
    line += f"machine {' / '.join(machines)}"
    if not table.timed[task]:
        line += "; speed and memory are left out, they come from different machines"
    return line + "."


# ---------------------------------------------------------------------- Markdown


def markdown(table: Table, results: Path) -> str:
    single = table.tasks[0] if len(table.tasks) == 1 else None
    head = ["attention", *table.tasks, *(COSTS if single else ["average"])]
    body = []
    for row in table.rows:
        tail = costs(row.cells[single], timed=table.timed[single]) if single else [average(row)]
        linked = (_linked(row, task) for task in table.tasks)
        body.append([escape_md(row.label), *linked, *map(escape_md, tail)])
    parts = [f"# {escape_md(table.spec.title)}", GENERATED, grid(head, body)]
    parts.append("\n".join(f"* {escape_md(note)}" for note in notes(table)))
    if not single:
        parts += _cost_tables(table)
    parts += beside_md(beside(table))
    parts += ["## Runs", grid(RUN_COLUMNS, _runs(table, results))]
    return "\n\n".join(parts) + "\n"


def _linked(row: Row, task: str) -> str:
    cell = row.cells.get(task)
    if cell is None:
        return ""
    text = f"**{accuracy(cell)}**" if cell.best else accuracy(cell)
    return f"[{text}](#{anchor(row.label, task)})" + (" ≈" if cell.tie is not None else "")


def _cost_tables(table: Table) -> Iterable[str]:
    for task in table.tasks:
        rows = [r for r in table.rows if task in r.cells]
        timed = table.timed[task]
        body = [map(escape_md, [r.label, *costs(r.cells[task], timed=timed)]) for r in rows]
        yield f"## Cost on {task}"
        yield grid(["attention", *COSTS], body)


def beside_md(found: Beside | None) -> list[str]:
    """Measured and published numbers in rows by name: not a ranking."""
    if found is None:
        return []
    return [
        "## Beside the published numbers",
        escape_md(found.explained),
        grid(found.head, [[escape_md(row[0]), *row[1:]] for row in found.body]),
        "\n".join(f"* {source}." for source in found.sources),
    ]


class Beside(NamedTuple):
    """Measured, published and difference, as every format shows them."""

    explained: str
    head: list[str]
    body: list[list[str]]
    sources: list[str]


def beside(table: Table) -> Beside | None:
    rows = [r for r in table.rows if any(c.published for c in r.cells.values())]
    if not rows or table.spec.published is None:
        return None
    if len({r.attention for r in table.rows}) > 1:
        rows = sorted(rows, key=lambda r: r.label)
    averaged = any(row.published_average is not None for row in rows)
    body: list[list[str]] = []
    used: dict[str, None] = {}
    for row in rows:
        cells = [_compared(row.cells.get(t)) for t in table.tasks]
        if averaged:
            cells.append(difference(row.average, row.published_average))
        from_ = dict.fromkeys(c.published.source for c in row.cells.values() if c.published)
        used |= from_
        body.append([row.label, *cells, ", ".join(from_)])
    return Beside(
        f"Measured, published ({published.title(table.spec.published)}) and the difference, by "
        "name. The published numbers come from other protocols, budgets and data than these runs: "
        "they are not ranked together.",
        ["attention", *table.tasks, *(["average"] if averaged else []), "published by"],
        body,
        [f"{source}: {published.sources()[source]}" for source in used],
    )


def _compared(cell: Cell | None) -> str:
    if cell is None or cell.published is None:
        return ""
    return difference(cell.mean, cell.published.value)


def difference(measured: float | None, printed: float | None, digits: int = 2) -> str:
    """`51.5 / 38.94 (+12.6)`, with as many digits as were printed."""
    if measured is None or printed is None:
        return ""
    return f"{measured:.1f} / {printed:.{digits}f} ({measured - printed:+.1f})"


RUN_COLUMNS = ("attention", "task", "run", "seeds", "accuracy", "data", "revision")


def _runs(table: Table, results: Path) -> Iterable[list[str]]:
    for row in table.rows:
        for task, cell in row.cells.items():
            yield [
                f'<a id="{anchor(row.label, task)}"></a>{escape_md(row.label)}',
                task,
                cell.records[0]["identity"],
                " ".join(cited(r["seed"], r.path, results) for r in cell.records),
                " ".join(f"{100 * r.accuracy:.2f}" for r in cell.records),
                cell.records[0]["data.fingerprint"],
                " ".join(dict.fromkeys(revision(r) for r in cell.records)),
            ]


def cited(seed: int, path: Path, results: Path) -> str:
    """A seed, as a link to its record where that is committed beside the table."""
    place = committed(path, results)
    return str(seed) if place is None else f"[{seed}](../{place})"


def committed(path: Path, results: Path) -> str | None:
    """The address of a record, seen from the results folder that it is in."""
    path, results = path.resolve(), results.resolve()
    return quote(path.relative_to(results).as_posix()) if path.is_relative_to(results) else None


def revision(record: Record) -> str:
    git = record.get("git.revision")
    if not git:
        return "unknown"
    return git[:10] + ("+changes" if record.get("git.dirty") else "")


def anchor(label: str, task: str) -> str:
    """What a cell's link and its first run are called in a Markdown table."""
    told = f"{label}-{task}".lower().replace("=-", "-minus-")
    return re.sub(r"[^a-z0-9]+", "-", told).strip("-")


def grid(head: Sequence[str], body: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escape_md(text: str) -> str:
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", one_line(text)).replace("<", "&lt;")


def one_line(text: str) -> str:
    return " ".join(text.split())


# ---------------------------------------------------------------------- CSV


def to_csv(table: Table, results: Path) -> str:
    """One line a cell, all digits; opens in any spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in table.rows:
        for task, cell in row.cells.items():
            writer.writerow(_csv_line(table, row, task, cell))
    return text.getvalue()


def _csv_line(table: Table, row: Row, task: str, cell: Cell) -> list[str]:
    first = cell.records[0]
    parameters, gflops, match, speed, memory = costs(cell, timed=table.timed[task])
    return [
        table.spec.name, row.label, row.attention,
        " ".join(f"{k}={v}" for k, v in row.options.items()), task,
        f"{cell.mean:.4f}", _number(cell.deviation), str(len(cell.records)),
        "yes" if cell.best else "", _number(cell.tie),
        parameters.replace(",", ""), gflops, match, speed, memory,
        f"{cell.published.value}" if cell.published else "",
        cell.published.source if cell.published else "", _number(cell.difference),
        first["data.source"], first["data.fingerprint"],
        " ".join(dict.fromkeys(revision(r) for r in cell.records)),
        " ".join(f"{r['identity']}/seed-{r['seed']}" for r in cell.records),
    ]  # fmt: skip


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
