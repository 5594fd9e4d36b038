"""The results as one page: a template, its looks, its data, and its scripts: view.js has what is
chosen, figure.js draws it, tell.js says what is known of a cell, of rows side by side and of a run,
explore.js has the controls, page.js the tables and the card, and DataTables in static/ sorts.

The figure is drawn by scripts of ours. Vega-Lite 6 was tried on one view (November 2026): the page
would be 1.9 MB instead of 1.0, its expressions need a policy that lets texts become code, and none
of its marks takes the keyboard's focus.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader

from lra import methods
from lra.report import overview
from lra.report.chart import as_json, chart_of, year_of
from lra.report.names import task_name
from lra.report.needs import needs_of
from lra.report.notes import FLOOR
from lra.report.published import printed_on
from lra.report.render import sections, wide
from lra.report.table import Table
from lra.report.trainings import FIVE

HERE = Path(__file__).parent
SCRIPTS = (
    "static/dataTables.min.js",
    "figure.js",
    "view.js",
    "tell.js",
    "explore.js",
    "page.js",
)
DRAWN = ("scores", "curves", "compute")  # pictures of a table that the figure shows better
VERDICTS = {
    "": ("", ""),
    "↓": ("worse", "shown to be worse"),
    "∅": ("worse", "no better than a simple rule"),
}


def page(tables: Sequence[Table], results: Path) -> str:
    """Render the page. Its policy admits the scripts by their hashes: no text of a record could run
    even if it were not escaped."""
    scripts = [(HERE / name).read_text(encoding="utf-8") for name in SCRIPTS]
    runs = {r.run: r for table in tables for r in table.runs["record"]}.values()
    tasks = overview.tasks_of(tables)
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True)
    return environment.get_template("page.html").render(
        {"sections": sections, "floor": FLOOR, "unit_of": unit_of, "task_name": task_name},
        tables=[(table, _body(table)) for table in tables],
        tasks=[task for task in tasks if task.usual],
        lines=_lines(tables, tasks, results),
        needs=needs_of(tasks),
        five=FIVE,
        printed=printed_on(FIVE),
        findings=overview.findings(tasks),
        not_run=overview.not_run(tables, tasks),
        pictures={t.spec.name: _pictures(t, results / "figures") for t in tables},
        looks=(HERE / "page.css").read_text(encoding="utf-8"),
        data=as_json(chart_of(tables, results)),
        scripts={b64encode(sha256(s.encode()).digest()).decode(): s for s in scripts},
        runs=len(runs),
        full=sum(map(overview.is_full, runs)),
        gpu=sum(r.get("machine.kind", "cpu") != "cpu" for r in runs),
        last=max((r.finished for r in runs if r.finished), default=None),
    )


def unit_of(table: Table, column: str) -> str:
    """The unit of the scores of a column; of recoveries and averages percent."""
    units = table.cells["unit"].dropna().groupby("column").first()
    return str(units.get(column, "%"))


def _pictures(table: Table, folder: Path) -> list[Path]:
    paths = sorted(folder.glob(f"{table.spec.name}-*.png"))
    return [path for path in paths if path.stem.rpartition("-")[2] not in DRAWN]


def _lines(
    tables: Sequence[Table], tasks: Sequence[overview.Task], results: Path
) -> Iterator[dict[str, Any]]:
    """All tasks as texts: a line per method, and one for its best settings; where a method has run
    that none of these tasks has, and its paper and code."""
    shown = [task for task in tasks if task.usual]
    for line in overview.lines_of(tables, tasks):
        usual = [task.usual.get(line.method) for task in shown]
        cells = [_of_task(*places) for places in zip(line.places, usual, strict=True)]
        yield {
            "key": line.key,
            "name": line.name,
            "best": line.key.endswith(overview.BEST),
            "cells": cells,
            "paper": methods.kept().get(line.method, {}),
            "year": year_of(line.method),
            "code": _code(line.method, results),
            "elsewhere": [t for t in tables if line.method in {*t.rows["attention"]}]
            if not any(line.places)
            else [],
        }


def _code(method: str, results: Path) -> str:
    """The way to the file of a method, where there is one beside these results."""
    path = methods.ours().get(method, "").replace(".", "/") + ".py"
    return f"../{path}" if (results.parent / path).is_file() else ""


def _of_task(place: overview.Place | None, usual: overview.Place | None) -> dict[str, Any]:
    if place is None:
        return {"text": "not run", "look": "worse", "order": ""}
    score = _score(place.table, (place.row, place.column))
    return score | {"setting": overview.setting_of(place, usual)}


def _body(table: Table) -> pd.DataFrame:
    """The table as texts; its scores as what `_score` says of them."""
    body = wide(table).apply(lambda column: column.str.strip("–")).astype(object)
    for place in table.cells.index:
        body.at[place] = _score(table, place)
    return body


def _score(table: Table, place: tuple[str, str]) -> dict[str, Any]:
    """Text, number to sort by, look, words for a screen reader, and the place in the data."""
    row, column = place
    cell = table.cell(row, column)
    shown = {"text": cell.marked, "order": round(cell.score, 4)}
    if not cell.runs:  # the teacher of conversions
        return shown
    look, verdict = ("best", "best mean") if cell.best else VERDICTS[cell.mark]
    end = f" seed{'s' if cell.seeds > 1 else ''}, {verdict}"
    words = cell.text.replace("±", "plus minus").replace(" (", ", ").replace(")", end)
    at = table.spec.name, table.rows.index.get_loc(row), table.columns.index(column)
    return shown | {"look": look, "words": words.strip(", "), "at": " ".join(map(str, at))}
