"""`lra table`: the records of a folder on the terminal, one table per set of comparable runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table as Grid

from lra.config import UserError
from lra.record import TRAINING, Record, load
from lra.report import conversions
from lra.report.leaderboard import budget_name, build, comparable
from lra.report.render import mark, tail, tail_columns
from lra.report.specs import TableSpec
from lra.report.table import Table, TableRow

# Facts that every title or caption shows; a title adds the others in which tables differ.
ALWAYS_SHOWN = ("model", "budget", "precision", "protocol.name", "protocol.version", "data.source",
                "data.fingerprint", "protocol.recipe.batch", "protocol.recipe.steps",
                "test.examples", "test.select", "compute.budget.reference",
                "compute.budget.parameters", "compute.budget.flops")  # fmt: skip
FLOOR = "∅ no better than always giving one answer"
TIE = "≈ too close to the best for these seeds (Welch's t-test with Holm's correction, p ≥ 0.05)"


def show(folder: str | Path) -> None:
    """Runs that differ in more than the attention, its options and the seed never share a table."""
    records = load([folder])
    if not records:
        raise UserError(f"{folder} holds no finished run; train one first: lra train")
    console = Console(highlight=False)
    for table in [*_leaderboards(records), *conversions.build_all(records)]:
        console.print(_grid(table))
        console.print()


def _leaderboards(records: Sequence[Record]) -> Iterator[Table]:
    for group, differences in comparable([r for r in records if r.kind == TRAINING]):
        others = (f"{k} {v}" for k, v in differences.items() if k not in ALWAYS_SHOWN)
        yield build(TableSpec(name="runs", title=", ".join(others)), group)


def _grid(table: Table) -> Grid:
    grid = Grid(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_style="bold",
        caption_style="dim",
        padding=0,
        show_edge=False,
        title=_title(table),
        caption=_caption(table),
        title_justify="left",
        caption_justify="left",
    )
    head = ["accuracy"] if table.single else table.tasks
    for column in ("attention", *head, *tail_columns(table), *(["seeds"] if table.single else [])):
        left = column == "attention"
        # Where a row is too long for the terminal, its name and its class of compute are wrapped.
        wraps = column in ("attention", "compute")
        grid.add_column(column, justify="left" if left else "right", no_wrap=not wraps)
    for row in table.rows:
        grid.add_row(*_line(table, row))
    floor = table.records[0].floor
    if table.single and floor is not None:
        grid.add_section()
        grid.add_row("majority class", f"{floor:.1f}%")
    return grid


def _line(table: Table, row: TableRow) -> list[str]:
    if table.single:
        cell = row.cells[table.single]
        seeds = " ".join(str(r["seed"]) for r in cell.records)
        spread = "" if cell.deviation is None else f" ± {cell.deviation:.1f}"
        return [row.label, f"{cell.mean:.1f}%{spread}{mark(cell)}", *tail(table, row), seeds]
    found = (row.cells.get(task) for task in table.tasks)
    cells = ["" if cell is None else cell.text + mark(cell) for cell in found]
    return [row.label, *cells, *tail(table, row)]


def _title(table: Table) -> str:
    if not table.single:
        return table.title
    first = table.records[0]
    lines = [
        f"{first['task']}, data {first['data.source']} {first['data.fingerprint'][:8]}",
        f"{table.conditions}, {first['steps']} steps of {first['batch']}",
    ]
    return "\n".join([*lines, *([table.title] if table.title else [])])


def _caption(table: Table) -> str:
    lines = ["dev scores in %: mean ± sample standard deviation (number of seeds)"]
    if table.single:
        first = table.records[0]
        lines = [
            f"accuracy on {first['test.examples']} test examples, "
            f"{first['test.select']} checkpoint by dev accuracy",
            f"compute budget {budget_name(first)}",
        ]
    tied = any(cell.tie is not None for _, _, cell in table.cells())
    if table.repeated:
        lines.append(f"{len(table.repeated)} repeated runs (rerun=true) are not shown")
    return "\n".join([*lines, *([TIE] if tied else []), *([FLOOR] if table.at_floor else [])])
