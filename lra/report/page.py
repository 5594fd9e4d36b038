"""The results as one self-contained HTML page: page.html (markup and style) and script.html (how it
behaves), with the tables and runs in it as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lra.report import conversion, conversion_page, published, render
from lra.report.leaderboard import Cell, Row, Table
from lra.report.looks import places
from lra.report.records import Record

TEMPLATE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.html", "script.html"))
SCRIPT_PLACE, PLACE = "<!--SCRIPT-->\n", "/*DATA*/"


def page(tables: Sequence[Table], results: Path, converted: Sequence[conversion.Table] = ()) -> str:
    """Works from file:// and loads nothing. No text of a record can end the script element or
    become markup: `<`, `>` and `&` are escaped here, and the page only sets text content."""
    runs = {run_key(r): _run(r, results) for table in tables for r in table.records}
    for table in converted:
        runs |= conversion_page.page_runs(table, results)
    content = {
        "tables": [
            *(_table(t) for t in tables),
            *(conversion_page.page_table(t) for t in converted),
        ],
        "runs": dict(sorted(runs.items())),
        "sources": published.sources(),
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    whole = TEMPLATE.read_text(encoding="utf-8").replace(
        SCRIPT_PLACE, SCRIPT.read_text(encoding="utf-8"), 1
    )
    return whole.replace(PLACE, text, 1)


def run_key(record: Record) -> str:
    return f"{record['identity']}-{record['seed']}"


def _table(table: Table) -> dict[str, Any]:
    spec = table.spec
    return {
        "name": spec.name,
        "title": spec.title,
        "tasks": table.tasks,
        "notes": render.notes(table),
        "published": published.title(spec.published) if spec.published else None,
        "extra": None,
        "rows": [
            _row(row, table, place)
            for row, place in zip(table.rows, places(table.rows), strict=True)
        ],
    }


def _row(row: Row, table: Table, colour: int) -> dict[str, Any]:
    return {
        "label": row.label,
        "colour": colour,
        "average": row.average,
        "published_average": row.published_average,
        "complete": row.complete,
        "cells": {t: _cell(c, timed=table.timed[t]) for t, c in row.cells.items()},
    }


def _cell(cell: Cell, *, timed: bool) -> dict[str, Any]:
    known = cell.published
    return {
        "mean": cell.mean,
        "deviation": cell.deviation,
        "best": cell.best,
        "tie": cell.tie,
        "parameters": round(cell.cost("compute.parameters")),
        "gflops": cell.cost("compute.flops") / 1e9,
        "match": cell.match,
        "speed": cell.cost("steps_per_second") if timed else None,
        "memory": cell.cost("peak_memory_mib") if timed else None,
        "published": {"value": known.value, "source": known.source} if known else None,
        "difference": cell.difference,
        "runs": [run_key(r) for r in cell.records],
    }


def _run(record: Record, results: Path) -> dict[str, Any]:
    return {
        "identity": record["identity"],
        "seed": record["seed"],
        "curve": record["curve"],
        "record": render.committed(record.path, results),
        "facts": [[name, value] for name, value in details(record).items() if value],
    }


def details(record: Record) -> dict[str, str]:
    """What the page tells of a run."""
    f = record.facts
    options = {k: v for k, v in f["settings"]["attention"].items() if k != "name"}
    recipe = record.get("settings.protocol.recipe") or {}
    dead = record.get("test.dead_rows")
    versions = record.get("versions") or {}
    return {
        "test accuracy": f"{100 * record.accuracy:.2f} on {f['test']['examples']} examples, "
        f"{f['test']['select']} checkpoint, step {f['test'].get('step', '?')}",
        "last checkpoint": _percent(record.get("test_last.accuracy")),
        "best dev accuracy": _percent(record.get("dev.accuracy")),
        "rows without attention": "" if dead is None else f"{dead:.2%} of queries",
        "options": _pairs(options),
        "recipe": _pairs(recipe),
        "protocol": f"{f['protocol']['name']} v{f['protocol']['version']}, model {f['model']}, "
        f"budget {f['budget']:g}, {f['steps']} steps of {f['batch']}, precision {f['precision']}",
        "compute": f"{f['compute']['parameters']:,} parameters, "
        f"{f['compute']['flops'] / 1e9:.3f} GFLOPs forward per example; "
        f"{record.get('compute.verdict') or 'not checked'}",
        "exempt because": record.get("compute.exempt") or "",
        "data": f"{f['data']['source']} ({record.get('data.provenance') or 'as named'}), "
        f"fingerprint {f['data']['fingerprint']}; {_pairs(record.get('data.options') or {})}",
        "time": f"{record.get('seconds.training') or 0:.0f} s training, "
        f"{f['steps_per_second']:.2f} steps/s, peak memory {f['peak_memory_mib']:.0f} MiB",
        "machine": _pairs(f["machine"]),
        "versions": _pairs(versions),
        "revision": render.revision(record),
        "finished": f["times"]["finished"],
    }


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def _pairs(values: dict[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in values.items())
