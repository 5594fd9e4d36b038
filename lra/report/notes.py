"""Notes for a reader of a leaderboard: the sentences under a table of training runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lra.base.code import UNKNOWN
from lra.report import stats
from lra.report.specs import TableSpec
from lra.report.table import (
    DEAD_QUERIES,
    LEAST_DEAD,
    TableRow,
    one_line,
    pairs_of,
    setting_of,
    sortable,
)
from lra.results.record import Record


def notes(
    spec: TableSpec,
    rows: Sequence[TableRow],
    tasks: Sequence[str],
    timed: Mapping[str, bool],
    conditions: str,
    repeated: Sequence[Record],
) -> list[str]:
    """All that a reader must know, the most general first."""
    records = [r for row in rows for cell in row.cells.values() for r in cell.records]
    return [
        *_reading(spec, rows, conditions),
        *_pretraining(records),
        *_caution(spec, rows, tasks),
        *(_task_note(rows, task, timed[task] or not spec.speed) for task in tasks),
        *_attempts(repeated),
    ]


def _reading(spec: TableSpec, rows: Sequence[TableRow], conditions: str) -> list[str]:
    cells = [cell for row in rows for cell in row.cells.values()]
    seeds = [len(cell.records) for cell in cells]
    sentences = [
        f"Runs of {conditions}. Test accuracy in %: mean over seeds ± sample standard deviation "
        "(number of seeds)."
    ]
    if any(pairs_of(row.options) not in row.label for row in rows):
        sentences.append("Names leave out options that have their usual value.")
    if len(rows) > 1:
        sentences.append("Bold: the best mean of its column, if it has several seeds.")
    if len(rows) > 1 and max(seeds) > 1:
        sentences.append(
            "≈: too close to the best of its column for these seeds to show a difference (Welch's "
            f"t-test with Holm's correction, p ≥ {stats.LEVEL:g})."
        )
    if len(rows) > 1 and min(seeds) == 1:
        sentences.append("Rows with a single seed are not tested: their differences may be chance.")
    if any(compute_class(cell.records[0]["compute"]) != "-" for cell in cells):
        sentences.append(
            'Compute: "matched" means that parameters and FLOPs are within the tolerance of the '
            'budget named below; "×1.34" is the worse of the two ratios to that budget; "exempt" '
            "means that no setting of the method meets it, for the reason given with its runs."
        )
    if any((cell.dead or 0) >= LEAST_DEAD for cell in cells):
        sentences.append(f"Dead queries: {DEAD_QUERIES}, the mean over seeds.")
    if spec.choose:
        runs = (r for cell in cells for r in cell.records)
        values = sorted({setting_of(r, spec.choose) for r in runs}, key=sortable)
        sentences.append(
            f"{spec.choose} has, in each cell, the value with the best mean dev accuracy of those "
            f"with most seeds; chosen were {', '.join(map(str, values))}."
        )
    return sentences


def _caution(spec: TableSpec, rows: Sequence[TableRow], tasks: Sequence[str]) -> list[str]:
    cells = [cell for row in rows for cell in row.cells.values()]
    sentences = []
    if len(tasks) > 1 and spec.columns:
        sentences.append("Average: the mean over all columns; tasks: how many of them the row has.")
    elif len(tasks) > 1:
        sentences.append(
            "Average: the mean over all five tasks; a row without all of them has none. Tasks: how "
            "many of the five the row has."
        )
    if not all(cell.learned for cell in cells):
        sentences.append("∅: no better than always giving one answer; such a row is not ranked.")
    if any(r.code == UNKNOWN for cell in cells for r in cell.records):
        sentences.append(
            "Runs from before records held the hash of their code are not averaged with later ones."
        )
    if not spec.speed:
        sentences.append(
            "Speed and memory are not shown because the runs shared their machine with other work."
        )
    return sentences


def _pretraining(records: Sequence[Record]) -> list[str]:
    begun_with = [r["pretraining.run"] for r in records if r.get("pretraining")]
    if not begun_with:
        return []
    shared = sum(begun_with.count(run) > 1 for run in begun_with)
    return [
        "pretrain: before it saw a label, the network learned to predict masked tokens (masked) or "
        "the next token (causal) of the training inputs. Steps, speed and budget are those of the "
        "training on labels alone; the records have the training FLOPs of both phases."
        + (f" {shared} of these runs share a pretrained network with another." if shared else "")
    ]


def _attempts(repeated: Sequence[Record]) -> list[str]:
    if not repeated:
        return []
    runs = ", ".join(f"{r.attention} on {r['task']} ({r.run}: {r.score:.1f})" for r in repeated)
    return [
        "Some runs were repeated (rerun=true); the table has the attempt that finished first. The "
        f"others: {runs}."
    ]


def _task_note(rows: Sequence[TableRow], task: str, one_machine: bool) -> str:
    cells = [row.cells[task] for row in rows if task in row.cells]
    records = [r for cell in cells for r in cell.records]
    first = records[0]
    machines = sorted({f"{r['machine.device']}, threads {r.get('machine.threads')}"
                       for r in records})  # fmt: skip
    parts = [
        f"data {first['data.source']} ({first.get('data.provenance') or 'source as named'}), "
        f"fingerprint {first['data.fingerprint']}",
        f"{first['steps']} steps of {first['batch']} examples",
        f"{first['test.examples']} test examples, {first['test.select']} checkpoint",
    ]
    if first.floor is not None:
        floor = f"always answering the most frequent class gives {first.floor:.2f} %"
        learned = any(cell.learned for cell in cells)
        parts.append(floor + ("" if learned else ", no row is above that and so none is best"))
    parts += [f"compute budget {budget_names(records)}", f"machine {' / '.join(machines)}"]
    if not one_machine:
        parts.append("speed and memory are not shown because they come from different machines")
    return one_line(f"{task}: {'; '.join(parts)}.")


def budget_names(records: Sequence[Record]) -> str:
    """The compute budgets that runs were held to."""
    return " or ".join(dict.fromkeys(map(_budget_name, records)))


def _budget_name(record: Record) -> str:
    budget = record.get("compute.budget")
    if budget is None:
        return "none (compute=off)"
    parameters = f"{budget['parameters']:,} parameters" if budget.get("parameters") else ""
    flops = f"{budget['flops'] / 1e9:.3f} GFLOPs" if budget.get("flops") else ""
    return f"{budget.get('reference')}: " + ", ".join(filter(None, (parameters, flops)))


def compute_class(compute: Mapping[str, Any]) -> str:
    """`matched`, `over budget ×N` or `under ×N`, and whether the method is exempt."""
    verdict = compute.get("verdict") or "-"
    exempt = compute.get("exempt") and verdict != "matched"
    return f"exempt, {verdict}" if exempt else verdict
