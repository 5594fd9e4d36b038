"""A table as Markdown, CSV and LaTeX. Every accuracy leads to its runs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from lra.report import published
from lra.report.leaderboard import FIVE, Cell, Row, Table
from lra.report.records import Record
from lra.report.stats import LEVEL

GENERATED = "Made by `lra table --write` from the records; `lra table --check` compares."
COSTS = ("parameters", "GFLOPs", "compute", "steps/s", "peak MiB")
CSV_COLUMNS = (
    "table", "row", "attention", "options", "task", "accuracy", "deviation", "seeds", "best",
    "tie_p", "parameters", "gflops", "compute", "steps_per_second", "peak_memory_mib",
    "published", "published_source", "difference", "data_source", "fingerprint", "runs",
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
    if len(table.tasks) > 1:
        told.append("Averages are over all five tasks or not given; (k/5): how many there are.")
    return [*told, *(_of_task(table, task) for task in table.tasks)]


def _of_task(table: Table, task: str) -> str:
    records = [r for row in table.rows if task in row.cells for r in row.cells[task].records]
    first = records[0]
    machines = sorted({f"{r['machine.device']}, threads {r.get('machine.threads')}"
                       for r in records})  # fmt: skip
    line = (
        f"{task}: data {first['data.source']} ({first.get('data.provenance', 'source as named')}), "
        f"fingerprint {first['data.fingerprint']}; {first['steps']} steps of {first['batch']}; "
        f"{first['test.examples']} test examples, {first['test.select']} checkpoint; always "
        f"answering the majority class gives {100 * first.get('data.majority', 0):.1f}; "
        f"machine {' / '.join(machines)}"
    )
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
        body.append([escape_md(row.label), *(_linked(row, t) for t in table.tasks), *tail])
    parts = [f"# {escape_md(table.spec.title)}", GENERATED, grid(head, body)]
    parts.append("\n".join(f"* {escape_md(note)}" for note in notes(table)))
    if not single:
        parts += _cost_tables(table)
    parts += _beside_published(table)
    parts += ["## Runs", grid(RUN_COLUMNS, _runs(table, results))]
    return "\n\n".join(parts) + "\n"


def _linked(row: Row, task: str) -> str:
    cell = row.cells.get(task)
    if cell is None:
        return ""
    text = f"**{accuracy(cell)}**" if cell.best else accuracy(cell)
    return f"[{text}](#{anchor(row, task)})" + (" ≈" if cell.tie is not None else "")


def _cost_tables(table: Table) -> Iterable[str]:
    for task in table.tasks:
        rows = [r for r in table.rows if task in r.cells]
        body = [[escape_md(r.label), *costs(r.cells[task], timed=table.timed[task])] for r in rows]
        yield f"## Cost on {task}"
        yield grid(["attention", *COSTS], body)


def _beside_published(table: Table) -> list[str]:
    """Measured and published numbers in rows by name: not a ranking."""
    rows = [r for r in table.rows if any(c.published for c in r.cells.values())]
    if not rows or table.spec.published is None:
        return []
    if len({r.attention for r in table.rows}) > 1:
        rows = sorted(rows, key=lambda r: r.label)
    body: list[list[str]] = []
    used: list[str] = []
    for row in rows:
        compared = [_compared(row.cells.get(t)) for t in table.tasks]
        from_ = dict.fromkeys(c.published.source for c in row.cells.values() if c.published)
        used += from_
        body.append([escape_md(row.label), *compared, ", ".join(from_)])
    sources = [f"* {s}: {published.sources()[s]}." for s in dict.fromkeys(used)]
    return [
        "## Beside the published numbers",
        f"Measured, published ({escape_md(published.title(table.spec.published))}) and the "
        "difference, by name. The published numbers come from other protocols, budgets and data "
        "than these runs: they are not ranked together.",
        grid(["attention", *table.tasks, "published by"], body),
        "\n".join(sources),
    ]


def _compared(cell: Cell | None) -> str:
    if cell is None or cell.published is None or cell.difference is None:
        return ""
    return f"{cell.mean:.1f} / {cell.published.value:.2f} ({cell.difference:+.1f})"


RUN_COLUMNS = ("attention", "task", "run", "seeds", "accuracy", "data", "revision")


def _runs(table: Table, results: Path) -> Iterable[list[str]]:
    for row in table.rows:
        for task, cell in row.cells.items():
            by_run: dict[str, list[Record]] = {}
            for record in cell.records:
                by_run.setdefault(record["identity"], []).append(record)
            target = f'<a id="{anchor(row, task)}"></a>'
            for identity, records in by_run.items():
                yield [
                    target + escape_md(row.label),
                    task,
                    identity,
                    " ".join(_cited(r, results) for r in records),
                    " ".join(f"{100 * r.accuracy:.2f}" for r in records),
                    records[0]["data.fingerprint"],
                    " ".join(dict.fromkeys(revision(r) for r in records)),
                ]
                target = ""


def _cited(record: Record, results: Path) -> str:
    """A seed, as a link to its record where that is committed beside the table."""
    if not record.path.resolve().is_relative_to(results.resolve()):
        return str(record["seed"])
    place = record.path.resolve().relative_to(results.resolve()).as_posix()
    return f"[{record['seed']}](../{place})"


def revision(record: Record) -> str:
    git = record.get("git.revision")
    if not git:
        return "unknown"
    return git[:10] + ("+changes" if record.get("git.dirty") else "")


def anchor(row: Row, task: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{row.label}-{task}".lower()).strip("-")


def grid(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escape_md(text: str) -> str:
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", text).replace("<", "&lt;")


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
        " ".join(f"{r['identity']}/seed-{r['seed']}" for r in cell.records),
    ]  # fmt: skip


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


# ---------------------------------------------------------------------- LaTeX


def latex(table: Table, results: Path) -> str:
    """A booktabs tabular; the runs of each row stand in comments beside it."""
    single = table.tasks[0] if len(table.tasks) == 1 else None
    head = ["attention", *table.tasks, *(COSTS if single else ["average"])]
    lines = [
        f"% {table.spec.title}. {GENERATED.replace('`', '')}",
        *(f"% {note}" for note in notes(table)),
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        " & ".join(map(escape_tex, head)) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = [_tex_cell(row.cells.get(t)) for t in table.tasks]
        tail = costs(row.cells[single], timed=table.timed[single]) if single else [average(row)]
        lines.append(" & ".join([escape_tex(row.label), *cells, *map(escape_tex, tail)]) + r" \\")
        for task, cell in row.cells.items():
            runs = " ".join(f"{r['identity']}/seed-{r['seed']}" for r in cell.records)
            lines.append(f"% {row.label}, {task}: {runs}")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    spread = "" if cell.deviation is None else rf" \pm {cell.deviation:.1f}"
    mean = rf"\mathbf{{{cell.mean:.1f}}}" if cell.best else f"{cell.mean:.1f}"
    tie = r"^{\approx}" if cell.tie is not None else ""
    return f"${mean}{spread}{tie}$ ({len(cell.records)})"


def escape_tex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
               "×": r"$\times$", "–": "--"}  # fmt: skip
    return re.sub(r"[\\&%$#_{}~^×–]", lambda m: special.get(m[0], "\\" + m[0]), text)


WRITERS: dict[str, Callable[[Table, Path], str]] = {
    "md": markdown,
    "csv": to_csv,
    "tex": latex,
}
