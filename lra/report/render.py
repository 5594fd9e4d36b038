"""A table as Markdown, CSV, JSON and LaTeX (booktabs, one file per tabular, for `\\input`)."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lra.report.notes import compute_class
from lra.report.table import (
    Agreement,
    Beside,
    Cell,
    Effect,
    Table,
    TableRow,
    beside,
    one_line,
    pairs_of,
)  # fmt: skip
from lra.results.record import STAGES, Record

GENERATED = (
    "Made from the records of finished runs by `lra table --write`; `lra table --check` compares."
)
DEAD = "dead queries"
COSTS = ("parameters", "GFLOPs", "compute")
MEASURED = {"steps/s": ("steps_per_second", 1), "peak MiB": ("peak_memory_mib", 0)}
RUN_COLUMNS = ("attention", "task", "run", "seeds", "score", "stages", "data", "revision")
CSV_COLUMNS = (
    "table", "row", "attention", "options", "task", "score", "deviation", "seeds", "best", "tie_p",
    "floor", "above_floor", "dead_queries", "parameters", "gflops", "compute", "steps_per_second",
    "peak_memory_mib",
    "published", "published_source", "difference", "data_source", "fingerprint", "revisions",
    "runs",
)  # fmt: skip
CSV_NAMES = {
    DEAD: "dead_queries", "parameters": "parameters", "GFLOPs": "gflops", "compute": "compute",
    **{column: key for column, (key, _) in MEASURED.items()},
}  # fmt: skip
PAIRS = (
    "Score of the first row minus score of the second, in points of accuracy (on STS-B: minus 100 "
    "times the squared error), and the p-value of a paired test: signs of the differences between "
    "dev examples, averaged over seeds, are drawn at random; Holm's correction in each column. "
    "*: p < 0.05."
)
EFFECTS = (
    "Mean difference in points of accuracy over pairs of rows that differ in this one setting and "
    "share every other (but for a rate chosen on dev, which each row has of its own); its 95 % "
    "interval; the number of pairs of rows and of runs; the smallest and the largest difference "
    "between two runs. The interval is Student's over the pairs of rows, each the mean of its "
    "seeds, so an effect that depends on other settings widens it; for one or two pairs it is over "
    "their seeds and says nothing of other settings. It is not corrected for the number of lines."
)
AGREEMENTS = (
    "Spearman's correlation of the ranks that methods have here, by column, with those that they "
    "have in [{name}]({name}.md): 1 is the same order, 0 none. The 95 % interval is that of "
    "methods drawn at random; the spread of seeds is not in it."
)
AGREEMENT_COLUMNS = ("column", "with", "methods", "correlation", "95 % interval")
EFFECT_COLUMNS = ("setting", "difference", "95 % interval", "pairs (runs)", "range")
TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "×": r"$\times$",
    "±": r"$\pm$",
    "≈": r"$\approx$",
    "∅": r"$\emptyset$",
    "–": "--",
}


def costs(table: Table, task: str, row: TableRow) -> list[str]:
    cell = row.cells[task]
    dead = ["–" if cell.dead is None else f"{cell.dead:.1f}%"] if table.dead(task) else []
    return [
        *dead,
        f"{cell.cost('compute.parameters'):,.0f}",
        f"{cell.cost('compute.flops') / 1e9:.3f}",
        compute_class(cell.records[0]["compute"]),
        *(f"{cell.cost(k):.{digits}f}" for k, digits in MEASURED.values() if table.timed[task]),
    ]


def tail_columns(table: Table) -> list[str]:
    """The columns after the tasks: costs where there is one task, else the summaries."""
    if table.single:
        return cost_columns(table, table.single)
    return [*table.summaries, "tasks"]


def cost_columns(table: Table, *tasks: str) -> list[str]:
    """Queries without attention, if there are any; parameters, FLOPs and class of compute; speed
    and memory, if they were timed."""
    dead = [DEAD] if any(map(table.dead, tasks)) else []
    return [*dead, *COSTS, *(MEASURED if any(table.timed[task] for task in tasks) else ())]


def tail(table: Table, row: TableRow) -> list[str]:
    if table.single:
        return costs(table, table.single, row)
    numbers = (row.summary[name] for name in table.summaries)
    return [*("–" if n is None else f"{n:.1f}" for n in numbers), row.tasks]


def stages(record: Record, digits: int) -> str:
    """The scores of a conversion, stage by stage; empty for a training run."""
    scores = record.get("scores") or {}
    measured = [stage for stage in STAGES if stage in scores]
    return " → ".join(f"{s} {100 * scores[s]['score']:.{digits}f}" for s in measured)


def committed(path: Path, results: Path) -> str | None:
    """The address of a record relative to the results folder; None if it lies elsewhere."""
    path, results = path.resolve(), results.resolve()
    return quote(path.relative_to(results).as_posix()) if path.is_relative_to(results) else None


# ---------------------------------------------------------------------- Markdown


def markdown(table: Table, results: Path) -> str:
    body = [
        [escape_md(row.label), *(_linked(row, t) for t in table.tasks),
         *map(escape_md, tail(table, row))]
        for row in table.rows
    ]  # fmt: skip
    parts = [f"# {escape_md(table.title)}", GENERATED]
    parts += [f"**{escape_md(table.caveat)}**"] if table.caveat else []
    parts.append(grid(["attention", *table.tasks, *tail_columns(table)], body))
    parts.append("\n".join(f"* {escape_md(note)}" for note in table.notes))
    if not table.single:
        parts += _cost_tables(table)
    parts += _beside_md(beside(table))
    if table.effects:
        parts += ["## Effect of each setting", EFFECTS]
        parts.append(grid(EFFECT_COLUMNS, (map(escape_md, effect(e)) for e in table.effects)))
    if table.agreements:
        name = table.agreements[0].other.name
        parts += [f"## The order in {name}", AGREEMENTS.format(name=name)]
        orders = (map(escape_md, agreement(line)) for line in table.agreements)
        parts.append(grid(AGREEMENT_COLUMNS, orders))
    if table.pairs:
        head, *pairs = table.pairs
        pairs = [[*map(escape_md, row[:2]), *row[2:]] for row in pairs]
        parts += ["## Example by example", PAIRS, grid(head, pairs)]
    columns = [c for c in RUN_COLUMNS if c != "stages" or not table.timed]
    runs = ([line[c] for c in columns] for line in _runs(table, results))
    return "\n\n".join([*parts, "## Runs", grid(columns, runs)]) + "\n"


def effect(line: Effect) -> list[str]:
    """The cells of one line: `positions: rope against none`, and its numbers."""
    low, high = min(line.differences), max(line.differences)
    half = line.half_width
    interval = "–" if half is None else f"{line.mean - half:+.1f} to {line.mean + half:+.1f}"
    name = f"{line.setting}: {line.level} against {line.base}"
    pairs = f"{len(line.cells)} ({len(line.differences)})"
    return [name, f"{line.mean:+.1f}", interval, pairs, f"{low:+.1f} to {high:+.1f}"]


def agreement(order: Agreement) -> list[str]:
    interval = "{:+.2f} to {:+.2f}".format(*order.interval) if order.interval else "–"
    methods = str(len(order.shared))
    return [order.column, order.task, methods, f"{order.correlation:+.2f}", interval]


def _linked(row: TableRow, task: str) -> str:
    cell = row.cells.get(task)
    if cell is None:
        return ""
    text = f"**{cell.text}**" if cell.best else cell.text
    link = f"[{text}](#{anchor(row.label, task)})" if cell.records else text
    return link + mark(cell)


def mark(cell: Cell) -> str:
    """Behind a mean: too close to the best, or no better than one answer."""
    return "" if cell.learned and cell.tie is None else " ≈" if cell.learned else " ∅"


def _cost_tables(table: Table) -> Iterable[str]:
    for task in table.timed:
        rows = [r for r in table.rows if task in r.cells]
        body = [map(escape_md, [r.label, *costs(table, task, r)]) for r in rows]
        yield f"## Cost on {task}"
        yield grid(["attention", *cost_columns(table, task)], body)


def _beside_md(comparison: Beside | None) -> list[str]:
    if comparison is None:
        return []
    return [
        "## Beside the published numbers",
        escape_md(comparison.explanation),
        grid(comparison.head, [[escape_md(row[0]), *row[1:]] for row in comparison.body]),
        "\n".join(f"* {source}." for source in comparison.sources),
    ]


def _runs(table: Table, results: Path) -> Iterable[dict[str, str]]:
    for row, task, cell in table.cells():
        if not cell.records:
            continue
        first = cell.records[0]
        yield {
            "attention": f'<a id="{anchor(row.label, task)}"></a>{escape_md(row.label)}',
            "task": task,
            "run": first.run.rpartition("-seed-")[0],
            "seeds": " ".join(_cited(r, results) for r in cell.records),
            "score": " ".join(f"{r.score:.2f}" for r in cell.records),
            "stages": "; ".join(stages(r, 1) for r in cell.records),
            "data": escape_md(first.get("data.fingerprint") or "not recorded"),
            "revision": " ".join(dict.fromkeys(r.revision for r in cell.records)),
        }


def _cited(record: Record, results: Path) -> str:
    """A seed; a link to its record if that lies in the results folder."""
    place = committed(record.path, results)
    return str(record["seed"]) if place is None else f"[{record['seed']}](../{place})"


def anchor(label: str, task: str) -> str:
    """The anchor that links a cell with its runs."""
    name = f"{label}-{task}".lower().replace("=-", "-minus-")
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def grid(head: Sequence[str], body: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escape_md(text: str) -> str:
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", one_line(text)).replace("<", "&lt;")


# ---------------------------------------------------------------------- CSV


def to_csv(table: Table, results: Path) -> str:
    """One line per cell, with four digits after the point."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row, task, cell in table.cells():
        writer.writerow(_csv_line(table, row, task, cell))
    return text.getvalue()


def _csv_line(table: Table, row: TableRow, task: str, cell: Cell) -> dict[str, str]:
    line = {
        "table": table.name,
        "row": row.label,
        "attention": row.attention,
        "options": pairs_of(row.options),
        "task": task,
        "score": _number(cell.mean),
        "deviation": _number(cell.deviation),
        "seeds": str(len(cell.records) or ""),
        "best": "yes" if cell.best else "",
        "tie_p": _number(cell.tie),
        "floor": _number(cell.floor),
        "above_floor": "" if cell.floor is None else "yes" if cell.learned else "no",
        "published": f"{cell.published.value}" if cell.published else "",
        "published_source": cell.published.source if cell.published else "",
        "difference": _number(cell.difference),
        "revisions": " ".join(dict.fromkeys(r.revision for r in cell.records)),
        "runs": _ids(cell),
    }
    if cell.records:
        line["fingerprint"] = cell.records[0].get("data.fingerprint") or ""
    if task in table.timed:
        shown = dict(zip(cost_columns(table, task), costs(table, task, row), strict=True))
        line |= {CSV_NAMES[column]: text for column, text in shown.items()}
        for name in ("parameters", "dead_queries"):  # digits alone
            line[name] = line.get(name, "").replace(",", "").strip("%–")
        line["data_source"] = cell.records[0]["data.source"]
    return line


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _ids(cell: Cell) -> str:
    return " ".join(r.run for r in cell.records)


# ---------------------------------------------------------------------- JSON


def to_json(table: Table) -> dict[str, Any]:
    """Rows and cells as numbers; a standard error needs two runs."""
    rows = [
        {
            "row": row.label,
            "attention": row.attention,
            "options": row.options,
            **{name: number for name, number in row.summary.items() if not table.single},
            "cells": {task: _json_cell(table, task, cell) for task, cell in row.cells.items()},
        }
        for row in table.rows
    ]
    head = {"table": table.name, "title": table.title, "conditions": table.conditions}
    effects = {"effects": [dataclasses.asdict(e) for e in table.effects]} if table.effects else {}
    return {**head, "tasks": table.tasks, "rows": rows, **effects, "notes": table.notes}


def _json_cell(table: Table, task: str, cell: Cell) -> dict[str, Any]:
    n = len(cell.values)
    facts: dict[str, Any] = {
        "score": cell.mean,
        "standard_error": None if cell.deviation is None else cell.deviation / n**0.5,
        "n": n,
        "best": cell.best,
        "tie_p": cell.tie,
        "floor": cell.floor,
    }
    if task in table.timed:
        timed = ("steps_per_second", "peak_memory_mib") if table.timed[task] else ()
        counted = {key: cell.cost(f"compute.{key}") for key in ("parameters", "flops")}
        facts |= counted | {key: cell.cost(key) for key in timed}
        facts["compute"] = compute_class(cell.records[0]["compute"])
        facts |= {"dead_queries": cell.dead} if table.dead(task) else {}
    return facts | {"runs": [record.run for record in cell.records]}


# ---------------------------------------------------------------------- LaTeX


def latex(table: Table, results: Path) -> str:
    """The table, with the runs of each row in comments."""
    lines = []
    for row in table.rows:
        cells = [_tex_cell(row.cells.get(t)) for t in table.tasks]
        lines.append(_tex_line([escape_tex(row.label), *cells, *map(escape_tex, tail(table, row))]))
        cited = ((task, _ids(cell)) for task, cell in row.cells.items())
        lines += [f"% {row.label}, {task}: {ids}" for task, ids in cited if ids]
    head = ["attention", *table.tasks, *tail_columns(table)]
    return tabular(table.title, [*filter(None, [table.caveat]), *table.notes], head, lines)


def latex_cost(table: Table, results: Path) -> str:
    """The cost of runs, task by task; empty with one task, whose costs are in the table itself."""
    if table.single or not table.timed:
        return ""
    head = ["attention", *cost_columns(table, *table.timed)]
    lines: list[str] = []
    for task in table.timed:
        lines += [r"\midrule"] if lines else []
        lines.append(rf"\multicolumn{{{len(head)}}}{{l}}{{\emph{{{escape_tex(task)}}}}} \\")
        for row in (r for r in table.rows if task in r.cells):
            shown = dict(zip(cost_columns(table, task), costs(table, task, row), strict=True))
            cells = [row.label, *(shown.get(column, "") for column in head[1:])]
            lines.append(_tex_line(map(escape_tex, cells)))
    return tabular(f"{table.title}: cost", table.notes, head, lines)


def latex_published(table: Table, results: Path) -> str:
    comparison = beside(table)
    if comparison is None:
        return ""
    body = [_tex_line(map(escape_tex, row)) for row in comparison.body]
    comments = [comparison.explanation, *(f"{source}." for source in comparison.sources)]
    return tabular(f"{table.title}: beside the published numbers", comments, comparison.head, body)


def tabular(title: str, comments: Iterable[str], head: Sequence[str], body: Iterable[str]) -> str:
    above = [f"{title}. {GENERATED.replace('`', '')}", *comments]
    lines = [
        *(f"% {one_line(comment)}" for comment in above),
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        _tex_line(map(escape_tex, head)),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _tex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _tex_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    spread = "" if cell.deviation is None else rf" \pm {cell.deviation:.1f}"
    mean = rf"\mathbf{{{cell.mean:.1f}}}" if cell.best else f"{cell.mean:.1f}"
    tie = rf"^{{{escape_tex(mark(cell).strip())[1:-1]}}}" if mark(cell) else ""
    seeds = f" ({len(cell.records)})" if cell.records else ""
    return f"${mean}{spread}{tie}${seeds}"


def escape_tex(text: str) -> str:
    return re.sub(r"[\\&%$#_{}~^<>|×±≈∅–]", lambda m: TEX.get(m[0], "\\" + m[0]), one_line(text))


WRITERS: dict[str, Callable[[Table, Path], str]] = {
    "md": markdown,
    "csv": to_csv,
    "tex": latex,
    "cost.tex": latex_cost,
    "published.tex": latex_published,
}
