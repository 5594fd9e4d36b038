"""Notes for a reader of a table of training runs: the sentences under it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from lra.base.code import UNKNOWN
from lra.report import stats
from lra.report.specs import TableSpec
from lra.report.table import LEAST_DEAD, Table, one_line, pairs_of, sortable

DEAD_QUERIES = (
    "queries of the last test batch whose weights sum to 0, because all are 0 or signed ones "
    "cancel; in the layer with most of them"
)
FLOOR = "∅: no better than always giving one answer"


def notes(spec: TableSpec, table: Table) -> list[str]:
    """All that a reader must know, the most general first."""
    of_columns = (_column_note(table, spec, column) for column in table.columns)
    return [*_reading(spec, table), *_caution(spec, table), *comparisons(table), *of_columns,
            *_attempts(table.repeated)]  # fmt: skip


def _reading(spec: TableSpec, table: Table) -> list[str]:
    cells, runs = table.cells, table.runs
    sentences = [
        f"Runs of {table.conditions}. Test accuracy in %: mean over seeds ± sample standard "
        "deviation (number of seeds)."
    ]
    if any(pairs_of(options) not in label for label, options in table.rows["options"].items()):
        sentences.append("Names leave out options that have their usual value.")
    if any(compute_class(record["compute"]) != "-" for record in cells["record"]):
        sentences.append(
            'Compute: "matched" means that parameters and FLOPs are within the tolerance of the '
            'budget named below; "×1.34" is the worse of the two ratios to that budget; "exempt" '
            "means that no setting of the method meets it, for the reason given with its runs."
        )
    if (cells["dead"] >= LEAST_DEAD).any():
        sentences.append(f"Dead queries: {DEAD_QUERIES}, the mean over seeds.")
    if spec.choose:
        values = sorted(runs[spec.choose].unique(), key=sortable)
        sentences.append(
            f"{spec.choose} has, in each cell, the value with the best mean dev accuracy of those "
            f"with most seeds; chosen were {', '.join(map(str, values))}."
        )
    if (pretrained := runs[runs["pretrain.name"] != "none"]).size:
        shared = int(pretrained.get("pretraining.run", pd.Series()).duplicated(keep=False).sum())
        sentences.append(
            "pretrain: before it saw a label, the network learned to predict masked tokens (masked)"
            " or the next token (causal) of the training inputs. Steps, speed and budget are those "
            "of the training on labels alone; the records have the training FLOPs of both phases."
            + (
                f" {shared} of these runs share a pretrained network with another."
                if shared
                else ""
            )
        )
    return sentences


def comparisons(table: Table) -> list[str]:
    """How the rows were compared, and where more seeds are needed."""
    cells = table.cells
    if len(table.rows) < 2:
        return []
    if cells["seeds"].max() < 2:
        return ["Single seeds: no row is marked, because their differences may be chance."]
    sentences = [f"Bold: the best mean of its column. {stats.NOTE}"]
    if (cells["seeds"] == 1).any():
        sentences.append("Rows with a single seed are not compared: differences may be chance.")
    for column in table.columns:
        needs = table.column(column)["needs"].dropna().astype(int)
        if not needs.empty:
            rows = ", ".join(f"{row} ({n if n <= stats.MOST_SEEDS else 'more than 100'})"
                             for row, n in needs.items())  # fmt: skip
            sentences.append(
                f"Not shown to differ from the best on {column}; in brackets, how many seeds per "
                f"row would about be needed: {rows}."
            )
    return sentences


def _caution(spec: TableSpec, table: Table) -> list[str]:
    sentences = []
    if len(table.columns) > 1 and spec.columns:
        sentences.append("Average: the mean over all columns; tasks: how many of them the row has.")
    elif len(table.columns) > 1:
        sentences.append(
            "Average: the mean over all five tasks; a row without all of them has none. Tasks: how "
            "many of the five the row has."
        )
    if not table.cells["learned"].all():
        sentences.append(f"{FLOOR}; such a row is not ranked.")
    if (table.runs["code"] == UNKNOWN).any():
        sentences.append(
            "Runs from before records held the hash of their code are not averaged with later ones."
        )
    if not spec.speed:
        sentences.append(
            "Speed and memory are not shown because the runs shared their machine with other work."
        )
    return sentences


def _attempts(repeated: pd.DataFrame) -> list[str]:
    if repeated.empty:
        return []
    runs = ", ".join(
        f"{r['attention']} on {r['task']} ({r['run']}: {r['score']:.1f})"
        for r in repeated.to_dict("records")
    )
    return [
        "Some runs were repeated (rerun=true); the table has the attempt that finished first. The "
        f"others: {runs}."
    ]


def _column_note(table: Table, spec: TableSpec, column: str) -> str:
    runs = table.runs[table.runs["column"] == column]
    first = runs.iloc[0]
    machines = sorted({*(runs["machine.device"] + ", threads " + runs["machine.threads"].map(str))})
    parts = [
        f"data {first['data.source']} ({first.get('data.provenance') or 'source as named'}), "
        f"fingerprint {first['fingerprint']}",
        f"{first['steps']} steps of {first['batch']} examples",
        f"{first['test.examples']} test examples, {first['test.select']} checkpoint",
    ]
    if pd.notna(first["floor"]):
        floor = f"always answering the most frequent class gives {first['floor']:.2f} %"
        learned = table.column(column)["learned"].any()
        parts.append(floor + ("" if learned else ", no row is above that and so none is best"))
    parts += [f"compute budget {budget_names(runs)}", f"machine {' / '.join(machines)}"]
    if spec.speed and column not in table.timed:
        parts.append("speed and memory are not shown because they come from different machines")
    return one_line(f"{column}: {'; '.join(parts)}.")


def budget_names(runs: pd.DataFrame) -> str:
    """The compute budgets that runs were held to."""
    return " or ".join(dict.fromkeys(_budget_name(r.get("compute.budget")) for r in runs["record"]))


def _budget_name(budget: Mapping[str, Any] | None) -> str:
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
