"""The results as one self-contained HTML page: page.html (markup, style), script.html (behaviour),
and the tables and runs as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lra.report import published
from lra.report.notes import compute_class
from lra.report.render import committed, stages
from lra.report.styles import places
from lra.report.table import Cell, Table, options_of, pairs_of
from lra.results.record import TRAINING, Record

TEMPLATE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.html", "script.html"))
SCRIPT_PLACE, PLACE = "<!--SCRIPT-->\n", "/*DATA*/"


def page(tables: Sequence[Table], results: Path) -> str:
    """The page; it works from file:// and loads nothing. No text of a record can become markup or
    end the script element: `<`, `>` and `&` are escaped, and the script only sets text content."""
    runs = {r.run: _run(r, results) for table in tables for r in table.records}
    facts: dict[tuple[str, str], int] = {}  # most runs share most of them
    for run in runs.values():
        run["facts"] = [facts.setdefault(fact, len(facts)) for fact in run["facts"]]
    content = {
        "tables": [_table(table) for table in tables],
        "runs": dict(sorted(runs.items())),
        "facts": list(facts),
        "sources": published.sources(),
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    whole = TEMPLATE.read_text(encoding="utf-8").replace(
        SCRIPT_PLACE, SCRIPT.read_text(encoding="utf-8"), 1
    )
    return whole.replace(PLACE, text, 1)


def _table(table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "title": table.title,
        "tasks": table.tasks,
        "caveat": table.caveat,
        "notes": table.notes,
        "published": published.title(table.published) if table.published else None,
        "summaries": table.summaries,
        "costs": bool(table.timed),
        "rows": [
            {
                "label": row.label,
                "colour": place,
                "summary": row.summary,
                "published_summary": row.published_summary,
                "tasks": row.tasks,
                "cells": {t: _cell(c, table.timed.get(t)) for t, c in row.cells.items()},
            }
            for row, place in zip(table.rows, places(table.rows), strict=True)
        ],
    }


def _cell(cell: Cell, timed: bool | None) -> dict[str, Any]:
    """`timed` is None for a cell without costs, else whether its speed can be compared."""
    printed = cell.published
    shown: dict[str, Any] = {
        "mean": cell.mean,
        "deviation": cell.deviation,
        "best": cell.best,
        "learned": cell.learned,
        "tie": None if cell.tie is None else round(cell.tie, 6),
        "published": {"value": printed.value, "source": printed.source} if printed else None,
        "difference": cell.difference,
        "runs": [r.run for r in cell.records],
    }
    if timed is not None:
        shown |= {
            "parameters": round(cell.cost("compute.parameters")),
            "gflops": cell.cost("compute.flops") / 1e9,
            "match": compute_class(cell.records[0]["compute"]),
            "speed": cell.cost("steps_per_second") if timed else None,
            "memory": cell.cost("peak_memory_mib") if timed else None,
        }
    return shown


def _run(record: Record, results: Path) -> dict[str, Any]:
    facts = _training(record) if record.kind == TRAINING else _conversion(record)
    facts |= {
        "machine": pairs_of(record["machine"]),
        "versions": pairs_of(record.get("versions") or {}),
        "revision": record.revision,
        "code": record.code,
        "command": record.get("command") or "",
        "finished": record.get("times.finished") or "",
    }
    return {
        "identity": record["identity"],
        "seed": record["seed"],
        "curve": record.get("curve") or [],
        "record": committed(record.path, results),
        "facts": [(name, value) for name, value in facts.items() if value],
    }


def _training(record: Record) -> dict[str, str]:
    f = record.facts
    dead = record.get("test.dead_rows")
    return {
        "test accuracy": f"{record.score:.2f} on {_scored(f['test'])}, "
        f"{f['test']['select']} checkpoint, step {f['test'].get('step', '?')}",
        "last checkpoint": _percent(record.get("test_last.accuracy")),
        "best dev accuracy": _percent(record.get("dev.accuracy")),
        "dead queries": "" if dead is None else f"{dead:.2%} of the last test batch",
        "options": pairs_of(options_of(record)),
        "recipe": pairs_of(record.get("settings.protocol.recipe") or {}),
        "protocol": f"{f['protocol']['name']} v{f['protocol']['version']}, model {f['model']}, "
        f"budget {f['budget']:g}, {f['steps']} steps of {f['batch']}, precision {f['precision']}",
        "compute": f"{f['compute']['parameters']:,} parameters, "
        f"{f['compute']['flops'] / 1e9:.3f} GFLOPs forward per example; "
        f"{record.get('compute.verdict') or 'not checked'}",
        "exempt because": record.get("compute.exempt") or "",
        "data": f"{f['data']['source']} ({record.get('data.provenance') or 'as named'}), "
        f"fingerprint {f['data']['fingerprint']}; {pairs_of(record.get('data.options') or {})}",
        "time": f"{record.get('seconds.training') or 0:.0f} s training, "
        f"{f['steps_per_second']:.2f} steps/s, peak memory {f['peak_memory_mib']:.0f} MiB",
    }


def _conversion(record: Record) -> dict[str, str]:
    return {
        "scores": stages(record, 2),
        "options": pairs_of(options_of(record)),
        "recipe": pairs_of(record["settings.recipe"]),
        "trained parameters of φ": f"{record['phi_parameters']:,}",
        "training examples": str(record.get("train_examples") or ""),
        "teacher": record["settings.teacher"],
        "data": record.get("data.fingerprint") or "",
        "time": f"{record.get('seconds.total') or 0:.0f} s",
    }


def _scored(test: Mapping[str, Any]) -> str:
    """`200 examples, 800 answers`: a task may score several tokens of an example."""
    examples, answers = test["examples"], test.get("scored") or test["examples"]
    return f"{examples} examples" + (f", {answers} answers" if answers > examples else "")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"
