"""What the page's figure draws, once, as data: rows, cells and runs of every table, their curves,
settings and commands. view.js reads it.

Every run stands once, however many tables have it; commands, files and steps stand once as well.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lra import methods
from lra.looks import look_of
from lra.report.names import heading, names_of
from lra.report.overview import ORDER, Line, Place, Task, full, lines_of, tasks_of
from lra.report.render import spelt_state
from lra.report.stats import LEVEL
from lra.report.table import Table, on_dev_of
from lra.report.words import answered
from lra.results.record import Record
from lra.runs.facts import flat

SEED = re.compile(r"(?<=\bseed=)\d+")
LISTS = ("files", "commands", "steps", "devices", "settings", "of_runs")
MOST_SEEDS = 40  # of two rows together: degrees of freedom of the longest interval


class Chart:
    """The data, filled table by table."""

    def __init__(self, results: Path):
        self.results = results.resolve()
        self.runs: list[list[Any]] = []
        self._place: dict[str, int] = {}  # of a run in `runs`
        self._lists: dict[str, dict[Any, int]] = {name: {} for name in LISTS}

    def once(self, name: str, value: Any) -> int:
        """The place of a value in a list that has it once."""
        values = self._lists[name]
        return values.setdefault(value, len(values))

    def lists(self) -> dict[str, list[Any]]:
        return {name: [*values] for name, values in self._lists.items()}

    def known(self, run: str) -> int:
        return self._place[run]

    def run(self, record: Record, digits: int) -> int:
        """The place of a run: row's name, seed, score, command, file, revision, the steps and the
        scores of its curve, whether it has answers, its settings, and when, where and for how many
        seconds it ran."""
        if record.run not in self._place:
            name, _, seed = record.run.rpartition("-seed-")
            curve = record.get("curve") or []
            self._place[record.run] = len(self.runs)
            self.runs.append(
                [
                    name,
                    int(seed),
                    round(record.score, digits + 1),
                    self.once("commands", SEED.sub("#", record.get("command") or "")),
                    self.once("files", self._file(record)),
                    record.revision,
                    self.once("steps", tuple(step for step, _ in curve)),
                    [round(score, 1 if digits == 1 else digits + 1) for _, score in curve],
                    int(answered(record)),
                    self.once("of_runs", self._settings(record)),
                    f"{record.finished:%Y-%m-%d}" if record.finished else "",
                    self.once("devices", record.get("machine.device") or "not recorded"),
                    round(record.get("seconds.training") or 0),
                ]
            )
        return self._place[record.run]

    def _settings(self, record: Record) -> tuple[int, ...]:
        """Those of a run as their places in a list that has each once."""
        named = flat(record.get("settings") or {})
        return tuple(self.once("settings", f"{name}: {value}") for name, value in named)

    def _file(self, record: Record) -> str:
        path = record.path.resolve()
        inside = path.is_relative_to(self.results)
        return path.relative_to(self.results).as_posix() if inside else path.name


def chart_of(tables: Sequence[Table], results: Path) -> dict[str, Any]:
    """All that the figure needs, as JSON can have it."""
    chart = Chart(results)
    of_tables = {table.spec.name: _table(table, chart) for table in tables}
    tasks = tasks_of(tables)
    lines = lines_of(tables, tasks)
    shown = [task for task in tasks if task.usual]
    return {
        "tables": of_tables,
        "tasks": [_of_task(task, lines, at) for at, task in enumerate(shown)],
        "lines": [[line.key, line.name, line.method] for line in lines],
        "runs": chart.runs,
        **chart.lists(),
        "families": ORDER,
        "looks": _looks(line.method for line in lines),
        "students": students(),
    }


def as_json(data: Mapping[str, Any]) -> str:
    """Compact, and without a character that could end its element in a page."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def students() -> list[float]:
    """Student's t of a 95 % interval, by degrees of freedom from 1 on."""
    from scipy.special import stdtrit

    return [round(float(stdtrit(n, 1 - LEVEL / 2)), 4) for n in range(1, MOST_SEEDS + 1)]


def _looks(known: Iterable[str]) -> dict[str, list[Any]]:
    """Name, family, colour, marker and year of every method."""
    looks = {method: look_of(method, {}) for method in known}
    return {
        method: [look.name, look.family, look.colour, look.marker, year_of(method)]
        for method, look in looks.items()
    }


def year_of(method: str) -> int | None:
    """Of its paper, which the catalogue names so: `Title (2024)`."""
    found = re.search(r"\((\d{4})\)$", methods.kept().get(method, {}).get("paper", ""))
    return int(found[1]) if found else None


def _of_task(task: Task, lines: Sequence[Line], at: int) -> list[Any]:
    """Name, table, column, the place of each line that has run, and whether it has the benchmark's
    full budget."""
    places = {line.key: line.places[at] for line in lines}
    named = {key: _place(place) for key, place in places.items() if place}
    return [
        task.words,
        task.table.spec.name,
        task.table.columns.index(task.column),
        named,
        int(full(task)),
    ]


def _place(place: Place) -> str:
    """As scores of tables name theirs: table, row and column."""
    table = place.table
    at = table.rows.index.get_loc(place.row), table.columns.index(place.column)
    return " ".join(map(str, (table.spec.name, *at)))


# ---------------------------------------------------------------------- one table


def _table(table: Table, chart: Chart) -> dict[str, Any]:
    names = names_of(table)
    rows = [
        [label, names[label], row["attention"], {k: str(v) for k, v in row["options"].items()}]
        for label, row in table.rows.iterrows()
    ]
    cells = [[_cell(table, row, c, chart) for c in table.columns] for row in table.rows.index]
    return {
        "title": table.spec.title,
        "columns": [_column(table, column) for column in table.columns],
        "rows": rows,
        "cells": cells,
        "task": table.runs["task"].iloc[0],
        "rungs": table.rungs.columns.tolist(),
        "answers": {
            chart.known(run): [round(share, 1) for share in shares]
            for run, shares in table.rungs_of_runs.items()
        },
    }


def _column(table: Table, column: str) -> dict[str, Any]:
    """Its metric and rules: name, score on test, what it reads, whether a bound, score on dev; and
    the name of the best rule."""
    cells = table.column(column)
    first = cells.iloc[-1]  # the first may be a teacher's
    rules = []
    if not table.rules.empty:
        for name, line in table.rules.sort_values(column).dropna(subset=column).iterrows():
            on_test, on_dev = none_if_nan(line[column]), none_if_nan(line[on_dev_of(column)])
            rules.append([name, on_test, line["reads"], int(line["bound"]), on_dev])
    return {
        "name": column,
        "words": heading(table, column),
        "metric": first["title"],
        "unit": first["unit"],
        "digits": int(first["digits"]),
        "sign": int(first["sign"]),
        "floor": none_if_nan(first["floor"]),
        "rules": rules,
        "rule": table.best_rule(column),
    }


def _cell(table: Table, row: str, column: str, chart: Chart) -> dict[str, Any] | None:
    """Text, mark, runs, and of trainings the costs; None where nothing was run. `noise` is the
    least that the standard deviation of its scores can be."""
    if (row, column) not in table.cells.index:
        return None
    cell = table.cell(row, column)
    shown: dict[str, Any] = {"text": cell.text, "mark": cell.mark}
    if not cell.runs:  # the teacher of conversions
        return shown | {"score": round(cell.score, 2)}
    shown["runs"] = [chart.run(record, cell.digits) for record in cell.records]
    shown["best"] = 1 if cell.best else None
    shown["leapt"] = none_if_nan(cell.leapt)
    shown["p"] = none_if_nan(cell.p, 5)
    shown["needs"] = none_if_nan(cell.needs)
    shown["noise"] = none_if_nan(cell.of_redrawn_examples(), 3)
    if table.costs:
        shown["parameters"] = round(cell.parameters)
        shown["gflops"] = round(float(cell.gflops), 6)
        shown["state"] = spelt_state(cell.state)
        shown["compute"] = cell.compute
    return {key: value for key, value in shown.items() if value is not None and value != ""}


def none_if_nan(value: Any, digits: int = 2) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), digits)
