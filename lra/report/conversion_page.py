"""A table of conversions as the page's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lra.report import published
from lra.report.conversion import Row, Table
from lra.report.conversion_render import (
    MEASURES,
    cells_of,
    measures,
    notes,
    published_score,
    stages,
)  # fmt: skip
from lra.report.converted import Converted
from lra.report.render import committed


def page_table(table: Table) -> dict[str, Any]:
    """In the form of page.py's tables, with the recoveries in place of the costs."""
    known = published.title(table.published)
    rows = [
        {
            "label": row.label,
            "colour": i,
            "extra": measures(table, row),
            "cells": {t: _page_cell(table, row, t) for t in row.cells},
        }
        for i, row in enumerate(table.rows)
    ]
    return {
        "name": table.name,
        "title": table.title,
        "tasks": table.tasks,
        "notes": notes(table),
        "published": known,
        "extra": MEASURES,
        "rows": rows,
    }


def _page_cell(table: Table, row: Row, task: str) -> dict[str, Any]:
    cell, known = row.cells[task], published_score(table, row, task)
    return {
        "mean": cell.mean,
        "deviation": cell.deviation,
        "best": cell.best,
        "tie": cell.tie,
        "published": {"value": known.value, "source": known.source} if known else None,
        "difference": cell.mean - known.value if known else None,
        "runs": [run_key(r) for r in cell.records],
    }


def page_runs(table: Table, results: Path) -> dict[str, dict[str, Any]]:
    records = [r for _, _, cell in cells_of(table) for r in cell.records]
    return {run_key(r): _page_run(r, results) for r in records}


def run_key(record: Converted) -> str:
    return f"{record['task']}-{record['attention']}-{record['key']}-{record['seed']}"


def _page_run(record: Converted, results: Path) -> dict[str, Any]:
    f = record.facts
    facts = {
        "scores": stages(record, 2),
        "options": _pairs(f["options"]),
        "recipe": _pairs(f["recipe"]),
        "trained parameters of φ": f"{f['phi_parameters']:,}",
        "training examples": str(f.get("train_examples") or ""),
        "teacher": f["teacher"],
        "data": f.get("data") or "",
        "revision": record.revision,
        "time": f"{f.get('seconds') or 0:.0f} s",
        "machine": f"{f.get('device') or 'unknown'}, torch {f.get('torch') or '?'}",
    }
    return {
        "identity": f["key"],
        "seed": f["seed"],
        "curve": [],
        "record": committed(record.path, results),
        "facts": [[name, value] for name, value in facts.items() if value],
    }


def _pairs(values: dict[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in values.items())
