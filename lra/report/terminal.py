"""`lra table`: a folder's records on the terminal, one table for each set of comparable runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as Grid

from lra.config import UserError
from lra.report.leaderboard import Cell, Row, Table, build
from lra.report.mixtures import comparable
from lra.report.records import load
from lra.report.render import COSTS, costs
from lra.report.specs import Spec
from lra.report.tables import budget_name

# What every title and caption says; other differences stand in the title where there are any.
SAID = ("model", "budget", "precision", "protocol.name", "protocol.version", "data.source",
        "data.fingerprint", "protocol.recipe.batch", "protocol.recipe.steps", "test.examples",
        "test.select", "compute.budget.reference", "compute.budget.parameters",
        "compute.budget.flops")  # fmt: skip
COLUMNS = ("attention", "accuracy", *COSTS, "seeds")


def show(folder: str | Path) -> None:
    """Nothing that differs in more than attention, its options and the seed shares a table; what
    tells a table from others of its task stands in its title."""
    records = load([folder])
    if not records:
        raise UserError(f"{folder} holds no finished run; train one: python train.py")
    console = Console(highlight=False)
    for group, telling in comparable(records):
        title = ", ".join(f"{key} {value}" for key, value in telling.items() if key not in SAID)
        table = build(Spec(name="runs", title=title), group)
        console.print(_grid(table))
        console.print()


def _grid(table: Table) -> Grid:
    (task,) = table.tasks
    first = table.records[0]
    grid = Grid(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_style="bold",
        caption_style="dim",
        padding=0,
        show_edge=False,
        title=_title(table, first.facts),
        caption=_caption(table, first.facts),
        title_justify="left",
        caption_justify="left",
    )
    for column in COLUMNS:
        left = column == "attention"
        # Where a row is too long for the terminal, its name and its class of compute give way.
        wraps = column in ("attention", "compute")
        grid.add_column(column, justify="left" if left else "right", no_wrap=not wraps)
    for row in sorted(table.rows, key=lambda row: -row.cells[task].mean):
        grid.add_row(*_line(row, row.cells[task], timed=table.timed[task]))
    majority = first.get("data.majority")
    if majority is not None:
        grid.add_section()
        grid.add_row("majority class", f"{majority:.1%}")
    return grid


def _line(row: Row, cell: Cell, *, timed: bool) -> list[str]:
    spread = "" if cell.deviation is None else f" ± {cell.deviation:.1f}"
    tie = " ≈" if cell.tie is not None else ""
    seeds = " ".join(str(r["seed"]) for r in cell.records)
    return [row.label, f"{cell.mean:.1f}%{spread}{tie}", *costs(cell, timed=timed), seeds]


def _title(table: Table, facts: dict[str, Any]) -> str:
    data = facts["data"]
    return "\n".join(
        [
            f"{facts['task']}, data {data['source']} {data['fingerprint'][:8]}",
            f"{table.conditions}, {facts['steps']} steps of {facts['batch']}",
            *([table.spec.title] if table.spec.title else []),
        ]
    )


def _caption(table: Table, facts: dict[str, Any]) -> str:
    test = facts["test"]
    lines = [
        f"accuracy on {test['examples']} test examples, "
        f"{test['select']} checkpoint by dev accuracy",
        f"compute budget {budget_name(facts['compute'].get('budget'))}",
    ]
    if any(cell.tie is not None for row in table.rows for cell in row.cells.values()):
        lines.append("≈ the seeds can't tell it from the best (Welch's test, Holm-corrected)")
    return "\n".join(lines)
