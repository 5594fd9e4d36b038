"""`lra table`: the records of a folder on the terminal, one table per set of comparable runs."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as Grid

from lra.base.config import UserError, nearest
from lra.report import conversions, stats
from lra.report.leaderboard import build, comparable, compared
from lra.report.notes import budget_names
from lra.report.render import (
    EFFECT_COLUMNS,
    EFFECTS,
    GENERATED,
    WRITERS,
    effect,
    mark,
    tail,
    tail_columns,
    to_json,
)  # fmt: skip
from lra.report.specs import TableSpec
from lra.report.table import DEAD_QUERIES, Table, TableRow
from lra.results.record import TRAINING, Record, load_records

# Facts that every title or caption shows; a title adds the others in which tables differ.
ALWAYS_SHOWN = ("model", "budget", "precision", "protocol.name", "protocol.version", "data.source",
                "data.fingerprint", "protocol.recipe.batch", "protocol.recipe.steps",
                "test.examples", "test.select", "compute.budget.reference",
                "compute.budget.parameters", "compute.budget.flops")  # fmt: skip
FLOOR = "∅ no better than always giving one answer"
TIE = "≈ too close to the best for these seeds (Welch's t-test with Holm's correction, p ≥ 0.05)"


# What rows can be sorted by, besides a task: the fact of their runs, and whether more is better.
SORTED_BY = {
    "score": ("", True),
    "parameters": ("compute.parameters", False),
    "gflops": ("compute.flops", False),
    "steps_per_second": ("steps_per_second", True),
    "peak_memory_mib": ("peak_memory_mib", False),
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """The tables that `lra table` shows of a folder, and their form."""

    tasks: Sequence[str] = ()  # all
    attentions: Sequence[str] = ()
    vary: Sequence[str] = ()  # settings in which the runs of a table may differ
    sort: str = ""  # SORTED_BY, or a task; without it rows are in the order of the score
    format: str = ""  # md, csv, tex or json; without it the terminal's own
    effects: bool = False  # what each setting changes, under each table


def print_tables(folder: str | Path, choice: Choice) -> None:
    """Runs that differ in more than the attention, its options, the seed and what the choice lets
    vary never share a table."""
    records = _chosen(load_records([folder]), Path(folder), choice)
    tables = [*_leaderboards(records, choice), *conversions.build_all(records)]
    tables = [_sorted(table, choice.sort) for table in tables]
    if choice.format:
        print(_formatted(tables, choice.format))
        return
    console = Console(highlight=False)
    for table in tables:
        console.print(_grid(table))
        console.print()
        if table.effects:
            console.print(_effects(table))
            console.print()


def _chosen(records: Sequence[Record], folder: Path, choice: Choice) -> list[Record]:
    """The records that the choice names; UserError for a name that none of them has."""
    if not records:
        raise UserError(f"{folder} holds no finished run; train one first: lra train")
    vary = {k for r in records for k in compared(r) if _is_value(r.get(f"settings.{k}"))}
    tasks, attentions = {r["task"] for r in records}, {r.attention for r in records}
    for option, names, names_of_runs in (
        ("task", choice.tasks, tasks),
        ("attention", choice.attentions, attentions),
        ("vary", choice.vary, vary),
        ("sort", [choice.sort] if choice.sort else [], {*SORTED_BY, *tasks}),
    ):
        for name in names:
            if name not in names_of_runs:
                near = nearest(name, names_of_runs)
                raise UserError(f"--{option} {name}: the runs in {folder} have none{near}")
    tasks, attentions = set(choice.tasks) or tasks, set(choice.attentions) or attentions
    selected = [r for r in records if r["task"] in tasks and r.attention in attentions]
    if not selected:
        raise UserError(f"{folder} holds no finished run of these attentions on these tasks")
    return selected


def _is_value(setting: Any) -> bool:
    return setting is not None and not isinstance(setting, dict)


def _sorted(table: Table, by: str) -> Table:
    """Put the rows of a table in another order; rows without the number come last."""
    if by not in SORTED_BY and by not in table.tasks:
        return table
    fact, more_is_better = SORTED_BY.get(by, ("", True))

    def key(row: TableRow) -> tuple[bool, float]:
        cells = (cell for task, cell in row.cells.items() if by in (task, *SORTED_BY))
        numbers = [
            cell.cost(fact) if fact else cell.mean
            for cell in cells
            if cell.records and (not fact or cell.records[0].get(fact) is not None)
        ]
        mean = stats.mean(numbers) if numbers else 0.0
        return not numbers, -mean if more_is_better else mean

    return dataclasses.replace(table, rows=sorted(table.rows, key=key))


def _formatted(tables: Sequence[Table], format: str) -> str:
    tables = [
        dataclasses.replace(t, title=", ".join(filter(None, [t.single, t.title]))) for t in tables
    ]
    if format == "json":
        return json.dumps([to_json(table) for table in tables], indent=1, ensure_ascii=False)
    # Records are linked from a file beside them, which this is not.
    texts = [WRITERS[format](table, Path(os.devnull)) for table in tables]
    if format == "csv":  # one head for all
        return "".join(texts[:1] + [text.partition("\n")[2] for text in texts[1:]]).rstrip("\n")
    made_by = (GENERATED, f". {GENERATED.replace('`', '')}")  # by another command than this
    for sentence in made_by:
        texts = [text.replace(sentence, "").replace("\n\n\n", "\n") for text in texts]
    return "\n".join(texts).rstrip("\n")


def _leaderboards(records: Sequence[Record], choice: Choice) -> Iterator[Table]:
    number: Counter[str] = Counter()
    training = [r for r in records if r.kind == TRAINING]
    for group, differences in comparable(training, choice.vary):
        task = group[0]["task"]
        others = (f"{k} {v}" for k, v in differences.items() if k not in ALWAYS_SHOWN)
        number[task] += 1
        name = task if number[task] == 1 else f"{task}-{number[task]}"
        title, vary = ", ".join(others), list(choice.vary)
        yield build(TableSpec(name=name, title=title, vary=vary, effects=choice.effects), group)


def _empty(title: str, caption: str) -> Grid:
    return Grid(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_style="bold",
        caption_style="dim",
        padding=0,
        show_edge=False,
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
    )


def _effects(table: Table) -> Grid:
    grid = _empty("effect of each setting", EFFECTS)
    for column in EFFECT_COLUMNS:
        grid.add_column(column, justify="left" if column == "setting" else "right")
    for line in table.effects:
        grid.add_row(*effect(line))
    return grid


def _grid(table: Table) -> Grid:
    grid = _empty(_title(table), _caption(table))
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
    by_task = (row.cells.get(task) for task in table.tasks)
    cells = ["" if cell is None else cell.text + mark(cell) for cell in by_task]
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
            f"compute budget {budget_names(table.records)}",
        ]
    tied = any(cell.tie is not None for _, _, cell in table.cells())
    if table.single and table.dead(table.single):
        lines.append(f"dead queries: {DEAD_QUERIES}")
    if table.repeated:
        lines.append(f"{len(table.repeated)} repeated runs (rerun=true) are not shown")
    return "\n".join([*lines, *([TIE] if tied else []), *([FLOOR] if table.at_floor else [])])
