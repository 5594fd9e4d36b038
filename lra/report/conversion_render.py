"""A table of conversions as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from lra.report import paired, published
from lra.report.conversion import CONTROL, TEACHER, Cell, Row, Table
from lra.report.converted import Converted
from lra.report.latex import beside_tabular, escape_tex, line, tabular
from lra.report.render import (
    GENERATED,
    Beside,
    anchor,
    beside_md,
    cited,
    difference,
    escape_md,
    grid,
)
from lra.report.stats import LEVEL

STAGES = ("teacher", "swap", "stage1", "best", "last")
MEASURES = ("mean of ratios", "ratio of means", "headroom")
CSV_COLUMNS = ("table", "row", "task", "score", "deviation", "seeds", "best", "tie_p", "teacher",
               "floor", "published", "published_source", "difference", "runs")  # fmt: skip


def score(cell: Cell) -> str:
    """`86.7 ± 0.2 (3)`; a teacher is one model."""
    if not cell.records:
        return f"{cell.mean:.1f}"
    spread = "" if cell.deviation is None else f" ± {cell.deviation:.1f}"
    return f"{cell.mean:.1f}{spread} ({len(cell.records)})"


def measures(table: Table, row: Row) -> dict[str, float | None]:
    """Recovery in percent of the teacher; None for a row that lacks a task of the table."""
    if set(row.cells) != set(table.tasks):
        return dict.fromkeys(MEASURES)
    return {
        "mean of ratios": row.mean_of_ratios(table.teacher),
        "ratio of means": row.ratio_of_means(table.teacher),
        "headroom": row.headroom(table.teacher, table.floor),
    }


def _told(table: Table, row: Row) -> list[str]:
    numbers = ("–" if v is None else f"{v:.1f}" for v in measures(table, row).values())
    return [*numbers, f"{len(row.cells)}/{len(table.tasks)}"]


def notes(table: Table) -> list[str]:
    floors = ", ".join(f"{task} {value:.1f}" for task, value in table.floor.items())
    return [
        "Dev scores in %, of the best epoch on the same dev set: mean ± sample deviation (seeds).",
        f"{CONTROL}: the teacher with the same second stage and its own attention.",
        "Recovery in % of the teacher, of rows that have every task. Mean of ratios: "
        "mean over tasks of score / teacher. Ratio of means: mean score / mean teacher.",
        "Headroom: the share of what the teacher has above always giving one answer "
        f"({floors}), mean over tasks.",
        "Bold: best conversion of its column. ≈: the seeds can't tell it from that one (Welch's "
        "test, Holm-corrected, p ≥ 0.05); a single seed is not tested.",
        f"Stage 2: {table.budget}. {_made_on(table)}",
        *(f"{name} alone: {settings}." for name, settings in table.usual.items()),
        *(["t2r with both stages is T2R-HH, with stage 2 only T2R."] if _has(table, "t2r") else []),
        *(["Images: top-1 accuracy."] if table.published == "vit" else []),
    ]


def _has(table: Table, attention: str) -> bool:
    return any(r["attention"] == attention for _, _, cell in cells_of(table) for r in cell.records)


def _made_on(table: Table) -> str:
    records = [r.facts for _, _, cell in cells_of(table) for r in cell.records]
    machines = {(f.get("device") or "unknown device", f.get("torch") or "?") for f in records}
    told = ", ".join(f"{device} (torch {torch})" for device, torch in sorted(machines))
    return f"Run on {told}."


def markdown(table: Table, results: Path) -> str:
    head = ["attention", *table.tasks, *MEASURES, "tasks"]
    body = [
        [escape_md(row.label), *(_linked(row, t) for t in table.tasks), *_told(table, row)]
        for row in table.rows
    ]
    parts = [f"# {escape_md(table.title)}", GENERATED, grid(head, body)]
    parts.append("\n".join(f"* {escape_md(note)}" for note in notes(table)))
    parts += [*beside_md(beside(table)), *_pairs_of_rows(table)]
    columns = ("attention", "task", "run", "seed", "score", "stages", "data", "revision")
    return "\n\n".join([*parts, "## Runs", grid(columns, _runs(table, results))]) + "\n"


def _linked(row: Row, task: str) -> str:
    cell = row.cells.get(task)
    if cell is None:
        return ""
    text = f"**{score(cell)}**" if cell.best else score(cell)
    link = f"[{text}](#{anchor(row.label, task)})" if cell.records else text
    return link + (" ≈" if cell.tie is not None else "")


def _runs(table: Table, results: Path) -> Iterator[list[str]]:
    for row, task, cell in cells_of(table):
        target = f'<a id="{anchor(row.label, task)}"></a>'
        for record in cell.records:
            data = escape_md(record.facts.get("data") or "as the task names it")
            seed = cited(record["seed"], record.path, results)
            yield [target + escape_md(row.label), task, record["key"], seed, f"{record.score:.2f}",
                   stages(record, 1), data, record.revision[:10] or "–"]  # fmt: skip
            target = ""


def beside(table: Table) -> Beside | None:
    body: list[list[str]] = []
    used: dict[str, None] = {}
    for row in table.rows:
        cells = []
        for task in table.tasks:
            cell, known = row.cells.get(task), published_score(table, row, task)
            if cell is None or known is None:
                cells.append("")
            else:
                cells.append(difference(cell.mean, known.value, 1))
                used[known.source] = None
        known = published_score(table, row, "recovery")
        mine = measures(table, row)["mean of ratios"]
        if any(cells):
            both = "" if mine is None or known is None else f"{mine:.1f} / {known.value:.1f}"
            body.append([row.label, *cells, both])
    if not body:
        return None
    return Beside(
        f"Measured, published ({published.title(table.published)}) and the difference. "
        "The model, the budget and the teacher may be others: they are not ranked together. The "
        "published recovery is over all its tasks.",
        ["attention", *table.tasks, "recovery"],
        body,
        [f"{source}: {published.sources()[source]}" for source in used],
    )


def _pairs_of_rows(table: Table) -> list[str]:
    """Example by example: every two rows that have all tasks, and every row with the usual one of
    its attention. Columns are tasks."""
    whole = {row.label for row in table.rows if len(row.cells) == len(table.tasks)}

    def asked(a: str, b: str) -> bool:
        return {a, b} <= whole or any(b.startswith((f"{a} ", f"{a},")) for a, b in ((a, b), (b, a)))

    found: dict[tuple[str, str], dict[str, paired.Pair]] = defaultdict(dict)
    for task in table.tasks:
        cells = {r.label: r.cells[task].records for r in table.rows if task in r.cells}
        for pair in paired.compare(cells, asked):
            found[pair.a, pair.b][task] = pair
    if not found:
        return []
    body = [
        [*map(escape_md, names), *(_difference(by_task.get(task)) for task in table.tasks)]
        for names, by_task in found.items()
    ]
    return [
        "## Example by example",
        "How far the first is above the second, in points of accuracy (STS-B: of squared error, "
        "times -100), with p of a paired test by random signs over the dev examples, each averaged "
        "over its seeds, Holm-corrected in its column; bold: p < 0.05.",
        grid(["first", "second", *table.tasks], body),
    ]


def _difference(pair: paired.Pair | None) -> str:
    if pair is None:
        return ""
    text = f"{pair.difference:+.1f} (p {pair.p:.2g})"
    return f"**{text}**" if pair.p < LEVEL else text


def published_score(table: Table, row: Row, task: str) -> published.Published | None:
    return published.conversion(table.published, row.method, task)


def stages(record: Converted, digits: int) -> str:
    """Scores in the order in which they were reached."""
    scores = record["scores"]
    known = [stage for stage in STAGES if stage in scores]
    return " → ".join(f"{s} {100 * scores[s]['score']:.{digits}f}" for s in known)


def cells_of(table: Table) -> Iterator[tuple[Row, str, Cell]]:
    for row in table.rows:
        for task, cell in row.cells.items():
            yield row, task, cell


def to_csv(table: Table, results: Path) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row, task, cell in cells_of(table):
        known = published_score(table, row, task)
        runs = " ".join(f"{r['key']}/seed-{r['seed']}" for r in cell.records)
        writer.writerow([
            table.name, row.label, task, _number(cell.mean), _number(cell.deviation),
            len(cell.records) or "", "yes" if cell.best else "", _number(cell.tie),
            _number(table.teacher[task]), _number(table.floor[task]),
            known.value if known else "", known.source if known else "",
            _number(cell.mean - known.value if known else None), runs,
        ])  # fmt: skip
    return text.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def latex(table: Table, results: Path) -> str:
    lines = []
    for row in table.rows:
        cells = [_tex_cell(row.cells.get(task)) for task in table.tasks]
        told = _told(table, row)[: len(MEASURES)]
        lines.append(line([escape_tex(row.label), *cells, *map(escape_tex, told)]))
        for task, cell in row.cells.items():
            runs = " ".join(f"{r['key']}/seed-{r['seed']}" for r in cell.records)
            lines += [f"% {row.label}, {task}: {runs}"] if runs else []
        lines += [r"\midrule"] if row.label == TEACHER else []
    return tabular(table.title, notes(table), ["attention", *table.tasks, *MEASURES], lines)


def _tex_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    text = escape_tex(score(cell))
    text = rf"\textbf{{{text}}}" if cell.best else text
    return text + (r" $\approx$" if cell.tie is not None else "")


def latex_beside(table: Table, results: Path) -> str:
    return beside_tabular(table.title, beside(table))


WRITERS: dict[str, Callable[[Table, Path], str]] = {
    "md": markdown,
    "csv": to_csv,
    "tex": latex,
    "published.tex": latex_beside,
}
