"""`lra table`: the runs of a folder on the terminal, one table per set of comparable runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as Grid

from lra.base.config import UserError, nearest
from lra.report import conversions, render
from lra.report.notes import DEAD_QUERIES, FLOOR, budget_names, comparisons
from lra.report.specs import TableSpec
from lra.report.table import Table, mark_of, text_of
from lra.report.training import build, comparable, compared
from lra.results.frame import frame_of
from lra.results.record import load_records
from lra.runs.schema import TRAINING

# Facts that every title or caption shows; a title adds the others in which tables differ.
ALWAYS_SHOWN = ("model", "budget", "precision", "protocol.name", "protocol.version", "data.source",
                "data.fingerprint", "protocol.recipe.batch", "protocol.recipe.steps",
                "test.examples", "test.select", "compute.budget.reference",
                "compute.budget.parameters", "compute.budget.flops")  # fmt: skip
NARROW = 100  # columns of a terminal; below them, these columns are left out
LEFT_OUT = ("dead queries", "peak MiB", "steps/s")
# What rows can be sorted by, besides a column of the table, and whether more is better.
SORTED_BY = {"score": True, "parameters": False, "gflops": False, "steps_per_second": True,
             "peak_memory_mib": False}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """The tables that `lra table` shows of a folder, and their form."""

    tasks: Sequence[str] = ()  # all
    attentions: Sequence[str] = ()
    vary: Sequence[str] = ()  # settings in which the runs of a table may differ
    sort: str = ""  # SORTED_BY, or a column; without it rows are in the order of the score
    format: str = ""  # md, csv, tex or json; without it the terminal's own
    effects: bool = False  # what each setting changes, under each table
    speed: bool = True  # of runs on one machine


def print_tables(folder: str | Path, choice: Choice) -> None:
    """Runs that differ in more than the attention, its options, the seed and what the choice lets
    vary never share a table."""
    runs = _selected(frame_of(load_records([folder], skip=True)), Path(folder), choice)
    tables = [*_leaderboards(runs, choice), *conversions.build_all(runs)]
    tables = [_sorted(table, choice.sort) for table in tables]
    if choice.format:
        print(_formatted(tables, choice.format))
        return
    console = Console(highlight=False)
    for table in tables:
        console.print(_grid(table, console.width), "")
        if not table.effects.empty:
            lines = render.effects(table).reset_index()
            console.print(_filled("effect of each setting", render.EFFECTS, lines), "")


def _selected(runs: pd.DataFrame, folder: Path, choice: Choice) -> pd.DataFrame:
    """The runs that the choice names; UserError for a name that none of them has."""
    if runs.empty:
        raise UserError(f"{folder} holds no finished run; train one first: lra train")
    settings = [name for part in compared(runs) for name in part]
    for option, names, names_of_runs in (
        ("task", choice.tasks, {*runs["task"]}),
        ("attention", choice.attentions, {*runs["attention"]}),
        ("vary", choice.vary, {name for name in settings if runs[name].notna().any()}),
        ("sort", [choice.sort] if choice.sort else [], {*SORTED_BY, *runs["task"]}),
    ):
        for name in names:
            if name not in names_of_runs:
                near = nearest(name, names_of_runs)
                raise UserError(f"--{option} {name}: the runs in {folder} have none{near}")
    tasks, attentions = choice.tasks or runs["task"], choice.attentions or runs["attention"]
    runs = runs[runs["task"].isin(tasks) & runs["attention"].isin(attentions)]
    if runs.empty:
        raise UserError(f"{folder} holds no finished run of these attentions on these tasks")
    return runs


def _leaderboards(runs: pd.DataFrame, choice: Choice) -> list[Table]:
    tables, number = [], Counter[str]()
    for group, differences in comparable(runs[runs["kind"] == TRAINING], choice.vary):
        task = group["task"].iloc[0]
        number[task] += 1
        name = task if number[task] == 1 else f"{task}-{number[task]}"
        title = ", ".join(f"{k} {v}" for k, v in differences.items() if k not in ALWAYS_SHOWN)
        spec = TableSpec(name=name, title=title, vary=list(choice.vary), effects=choice.effects,
                         speed=choice.speed)  # fmt: skip
        tables.append(build(spec, group))
    return tables


def _sorted(table: Table, by: str) -> Table:
    """Put the rows of a table in another order; rows without the number come last."""
    if by not in SORTED_BY and by not in table.columns:
        return table
    cells = table.column(by) if by in table.columns else table.cells
    name = "score" if by in table.columns else by.removeprefix("g")  # gflops: the cells' flops
    numbers = cells[name].groupby("row").mean()
    order = numbers.reindex(table.rows.index).sort_values(
        ascending=not SORTED_BY.get(by, True), kind="stable", na_position="last"
    )
    return replace(table, rows=table.rows.loc[order.index])


def _formatted(tables: Sequence[Table], format: str) -> str:
    """The tables as text, without links to records."""
    tables = [replace(t, title=", ".join(filter(None, [t.single, t.title]))) for t in tables]
    if format == "json":
        return json.dumps([render.to_json(table) for table in tables], indent=1, ensure_ascii=False)
    texts = [render.WRITERS[format](table, Path("/nowhere")) for table in tables]
    if format == "csv":  # one head for all
        texts = texts[:1] + [text.partition("\n")[2] for text in texts[1:]]
        return "".join(texts).rstrip("\n")
    return "\n".join(text.replace(f"{render.GENERATED}\n\n", "") for text in texts).rstrip("\n")


# ---------------------------------------------------------------------- grids of rich


def _grid(table: Table, width: int) -> Grid:
    body = render.wide(table, lambda cell: text_of(cell) + mark_of(cell))
    if table.single:
        # The seeds have a column of their own.
        body = body.rename(columns={table.single: "accuracy %"})
        body["accuracy %"] = body["accuracy %"].str.replace(r" \(.*\)", "", regex=True)
        body["seeds"] = table.runs.groupby("row")["seed"].agg(lambda s: " ".join(s.map(str)))
    caption = _caption(table, width)
    if left_out := [c for c in LEFT_OUT if c in body and width < NARROW]:
        caption.append(f"not shown on {width} columns: {', '.join(left_out)}")
    lines = body.drop(columns=left_out).reset_index(names="attention")
    grid = _filled(_title(table), "\n".join(caption), lines)
    floor = table.cells["floor"].iloc[-1]
    if table.single and pd.notna(floor):
        grid.add_section()
        grid.add_row("majority class", f"{floor:.1f}")
    return grid


def _filled(title: str, caption: str, lines: pd.DataFrame) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False, title=title,
                title_style="bold", title_justify="left", caption=caption, caption_style="dim",
                caption_justify="left")  # fmt: skip
    for i, name in enumerate(lines.columns):
        # Where a row is too long for the terminal, its name and its class of compute are wrapped.
        whole, least = i > 0 and name != "compute", 0 if i else 16
        grid.add_column(name, justify="right" if i else "left", no_wrap=whole, min_width=least)
    for line in lines.itertuples(index=False, name=None):
        grid.add_row(*line)
    return grid


def _title(table: Table) -> str:
    if not table.single:
        return table.title
    first = table.runs.iloc[0]
    lines = [
        f"{first['task']}, data {first['data.source']} {first['fingerprint'][:8]}",
        f"{table.conditions}, {first['steps']} steps of {first['batch']}",
        table.title,
    ]
    return "\n".join(filter(None, lines))


def _caption(table: Table, width: int) -> list[str]:
    lines = ["dev scores in %: mean ± sample standard deviation (number of seeds)"]
    if table.single:
        first = table.runs.iloc[0]
        lines = [
            f"accuracy on {first['test.examples']} test examples, {first['test.select']} "
            "checkpoint by dev accuracy",
            f"compute budget {budget_names(table.runs)}",
        ]
        if table.dead(table.single) and width >= NARROW:
            lines.append(f"dead queries: {DEAD_QUERIES}")
    if not table.repeated.empty:
        lines.append(f"{len(table.repeated)} repeated runs (rerun=true) are not shown")
    lines += comparisons(table)
    return lines if table.cells["learned"].all() else [*lines, FLOOR]
