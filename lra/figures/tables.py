"""Figures of tables: which ones a table gives, and scores, cost, curves and columns; grids.py and
effects.py draw the others."""

from __future__ import annotations

import math
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from lra.base.errors import UserError
from lra.figures import points as dots
from lra.figures import style as look
from lra.figures.effects import write_agreement, write_effects
from lra.figures.grids import across_page, draw_grids
from lra.figures.rungs import write_rungs
from lra.looks import in_words
from lra.report.cell import all_of, each
from lra.report.commands import study_of
from lra.report.grids import Grid, grids_of
from lra.report.names import names_of
from lra.report.notes import conditions
from lra.report.table import Table

POINTS = 4  # of a curve, at least
CURATED = ("softmax", "hedgehog", "linear", "rff", "luna")  # methods named where many are


def draw_runs(arguments: Namespace) -> list[Path]:
    from lra.report.terminal import tables_of_runs

    tables = [table for table in tables_of_runs(arguments) if table.costs]
    if not (paths := write_figures(tables, arguments.out)):
        raise UserError(
            f"{arguments.runs}: a figure needs two rows of a table, of which one is "
            "better than always giving one answer"
        )
    return paths


def draw_records(arguments: Namespace) -> list[Path]:
    """Draw the figures of a folder of results for which its tables.yaml has a finding."""
    tables = [table for table in study_of(arguments.results).tables if table.spec.findings]
    if not tables:
        raise UserError(
            f"no table of {arguments.results / 'tables.yaml'} has `findings` "
            "(lra/report/tables.yaml); draw all figures of records instead: "
            f"lra figures --runs {arguments.results / 'records'}"
        )
    paths: list[Path] = []
    for table in tables:
        figures = {figure.name: figure for figure in figures_of(table)}
        if unknown := table.spec.findings.keys() - figures.keys():
            raise UserError(
                f"table '{table.spec.name}' has a finding for a figure that it does not give: "
                f"{', '.join(sorted(unknown))}; it gives {', '.join(figures)}"
            )
        out = arguments.out or arguments.results / "figures"
        for name in table.spec.findings:
            paths += figures[name].write(table, out)
    return paths


def write_figures(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Draw every figure of these tables that has something to show, as PNG and PDF."""
    paths: list[Path] = []
    for table in tables:
        for figure in figures_of(table):
            paths += figure.write(table, folder)
    return paths


@dataclass(frozen=True)
class TableFigure:
    """A figure that a table gives."""

    name: str  # its files are TABLE-NAME.png and .pdf
    write: Callable[[Table, Path], list[Path]]


def figures_of(table: Table) -> Iterator[TableFigure]:
    """Every figure of a table that has something to show."""
    if not table.agreements.empty:
        yield TableFigure(f"against-{table.spec.against}", write_agreement)
    if not table.effects.empty:
        yield TableFigure("effects", write_effects)
    if not table.rungs.empty:
        yield TableFigure("rungs", write_rungs)
    yield from grids_to_draw(table)
    values = [column.partition("=")[2] for column in table.columns]
    if table.axis and all(value.replace(".", "", 1).isdigit() for value in values):
        yield _figure(table.axis, by_column, "")
    for column in table.columns if not table.axis else ():
        cells = table.column(column)
        if len(cells) < 2 or not cells["learned"].any():
            continue
        yield _figure(f"{column}-scores", scores, column)
        if table.rows["attention"].nunique() > 1:  # else names say what costs
            yield _figure(f"{column}-compute", compute, column)
        if curves_of(table, column):
            yield _figure(f"{column}-curves", curves, column)


# ---------------------------------------------------------------------- one column


def scores(figure: Any, table: Table, column: str) -> None:
    """Every seed of every row, the best mean on top."""
    cells, axes = table.column(column).sort_values("score", kind="stable"), figure.subplots()
    looks = _looks(table, cells.index)
    for y, (row, _, style) in enumerate(looks):
        cell, colour = table.cell(row, column), style["color"]
        axes.plot(cell.values, [y] * len(cell.values), "|", color=colour, ms=8, alpha=0.7)
        if not cell.mixed:
            axes.plot(cell.score, y, marker=style["marker"], color=colour, ms=6)
        axes.annotate(
            f"{cell.text} {cell.mark}",
            (1.02, y),
            va="center",
            xycoords=axes.get_yaxis_transform(),
            color=look.NOTE,
        )
    axes.set_yticks(range(len(looks)), [name for _, name, _ in looks], parse_math=False)
    axes.set(xlabel=f"{look.axis_of(cells)}; | one seed", ylim=(-0.7, len(looks) - 0.3))
    axes.grid(axis="x")
    for label in axes.get_yticklabels():
        label.set(fontweight=look.weight(label.get_text()), color=look.INK)
    if axes.get_xlim()[0] < (floor := cells["floor"].iloc[0]):
        axes.axvline(floor, color=look.NOTE, lw=0.8, ls=(0, (4, 3)))
        axes.annotate(" one answer to everything", (floor, -0.6), color=look.NOTE)


def compute(figure: Any, table: Table, column: str) -> None:
    """Accuracy against forward FLOPs."""
    cells, axes = table.column(column), figure.subplots()
    mixed = all_of(cells, "mixed")
    for cell in each(cells[mixed]):  # no run is near their mean
        axes.plot([cell.gflops] * cell.seeds, cell.values, "_", color=look.OTHERS, ms=8)
    cells = cells[~mixed]
    numbers = cells[["gflops", "score", "deviation"]].fillna(0).to_numpy()
    looks = _looks(table, cells.index)
    points = [
        dots.Point(x, y, name, spread)
        for (_, name, _), (x, y, spread) in zip(looks, numbers, strict=True)
    ]
    known = [i for i, row in enumerate(cells.index) if cells["attention"][row] in CURATED]
    dots.draw_front(axes, points, [style for *_, style in looks], known)
    axes.set(xlabel="GFLOPs per example, forward", ylabel=look.axis_of(cells))


def curves_of(table: Table, column: str) -> dict[str, pd.DataFrame]:
    """The score on dev by step, a column for each seed, of every row whose runs kept POINTS steps
    or more."""
    runs = table.runs[table.runs["column"] == column]
    points = pd.DataFrame(
        [
            (row, record["seed"], step, score)
            for row, record in zip(runs["row"], runs["record"], strict=True)
            for step, score in record.get("curve") or ()
        ],
        columns=["row", "seed", "step", "score"],
    )
    of_rows = {
        str(row): part.pivot(index="step", columns="seed", values="score")
        for row, part in points.groupby("row", sort=False)
    }
    return {row: curve for row, curve in of_rows.items() if len(curve) >= POINTS}


def curves(figure: Any, table: Table, column: str) -> None:
    """Score on dev by training step, a line for each seed: runs leap at steps of their own, and
    their mean would rise where none does."""
    axes, of_rows = figure.subplots(), curves_of(table, column)
    cells = table.column(column)
    ordered = (cells["score"] * cells["sign"]).sort_values(kind="stable").index
    order = [row for row in ordered if row in of_rows]
    axes.set(xlabel="training step", ylabel=f"{look.axis_of(cells, 'dev')}, a line per seed")
    special = [*CURATED, "uniform", order[0], *order[-2:]]
    _lines(axes, table, {row: of_rows[row] for row in order}, special, markers=False)


# ---------------------------------------------------------------------- columns, grids


def by_column(figure: Any, table: Table, _: str) -> None:
    """Accuracy against the setting whose values are the columns."""
    axes, lines = figure.subplots(), {}
    percent = table.cells["unit"].iloc[0] == "%"
    xs = pd.Series({c: float(c.partition("=")[2]) for c in table.columns})
    for row in table.rows.index:
        cells = table.cells.loc[row].reindex(table.columns).dropna(subset="score")
        mixed = all_of(cells, "mixed")
        for column, values in cells.loc[mixed, "values"].items():  # no run is near their mean
            axes.plot([xs[column]] * len(values), values, "_", color=look.OTHERS, ms=8)
        cells = cells[~mixed]
        means, spread = cells["score"], cells["deviation"].fillna(0)
        line = {
            "mean": means,
            "min": means - spread,
            "max": means + spread,
        }
        if percent:
            line["min"], line["max"] = line["min"].clip(lower=0), line["max"].clip(upper=100)
        if len(cells) > 1:
            lines[row] = pd.DataFrame(line).set_axis(xs[cells.index])
    bounds = table.rules[table.rules["bound"]] if len(table.rules) else table.rules
    if "rule" in table.cells:  # the score of the one that is best on dev
        best = table.cells["rule"].groupby("column").first()[xs.index].dropna()
        axes.plot(xs[best.index], best, color=look.NOTE, lw=1, ls="--")
        for column in best.index[:1]:
            axes.annotate(
                "best rule", (xs[column], best[column]), (0, 4), textcoords="offset points"
            )
    for name, rule in bounds.iterrows():
        axes.plot(xs, rule[xs.index], color=look.INK, lw=1, ls=":")
        at = xs.index[-2:][0]  # left of a rising line, away from the names at the end
        axes.annotate(f"{name}, the bound  ", (xs[at], rule[at]), ha="right")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(xs), [f"{x:g}" for x in xs], minor=False)
    axes.set(xlabel=table.spec.words.get(table.axis, table.axis), ylabel=look.axis_of(table.cells))
    if percent:
        axes.set_ylim(-3, 103)
    attentions = table.rows["attention"]
    _lines(axes, table, lines, [row for row in lines if attentions[row] in CURATED])


def grids_to_draw(table: Table) -> Iterator[TableFigure]:
    """Heat maps of a table whose rows differ in two settings: a figure for each task, or one with a
    panel for each value of the setting that the columns are."""
    figures: dict[str, list[Grid]] = {}
    for grid in grids_of(table):
        if table.column(grid.column)["learned"].any():
            figures.setdefault("" if table.axis else grid.column, []).append(grid)
    for column, grids in figures.items():
        lines = math.ceil(len(grids) / across_page(grids))
        height = 1.4 + lines * (0.9 + 0.42 * max(len(grid.rows) for grid in grids))  # inches
        name = f"{column or table.axis}-grid"
        yield _figure(name, partial(draw_grids, grids), column, height)


# ---------------------------------------------------------------------- what they share


def _looks(table: Table, rows: Sequence[str]) -> list[tuple[str, str, dict[str, Any]]]:
    """Rows with their names in words, without the attention if all have the same, and the looks of
    their methods."""
    one, names = table.rows["attention"].nunique() == 1, names_of(table)
    lines, looks = table.rows.loc[rows, ["attention", "options"]], []
    for row, attention, options in lines.itertuples():
        shown = {k: v for k, v in options.items() if f" {k}={v}" in row}
        name = (one and in_words(shown)) or names[row]
        name = "\n".join(textwrap.wrap(name, 34))
        looks.append((row, name, look.style_of(attention, shown)))
    return looks


def _lines(
    axes: Any,
    table: Table,
    lines: Mapping[str, pd.DataFrame],
    special: Sequence[str],
    *,
    markers: bool = True,
) -> None:
    """Draw a line per row. Of many rows only `special` ones are named, and none that would look
    like another one."""
    named = [row for row in lines if len(lines) <= look.NAMED or row in special]
    looks = _looks(table, named)
    marker = {} if markers else {"marker": ""}
    dashed = look.dashed([style | marker for *_, style in looks])
    drawn = {
        row: (name, lines[row], style)
        for (row, name, _), style in zip(looks, dashed, strict=True)
        if style
    }
    grey = [("", lines[row], dict[str, Any]()) for row in lines if row not in drawn]
    look.draw_lines(axes, [*grey, *drawn.values()])


def _figure(
    name: str, fill: Callable[[Any, Table, str], None], column: str, height: float = 4.6
) -> TableFigure:
    """A figure of a column, or of all, that is so many inches high."""
    return TableFigure(name, lambda table, folder: _save(folder, table, name, fill, column, height))


def _save(
    folder: Path,
    table: Table,
    name: str,
    fill: Callable[[Any, Table, str], None],
    column: str,
    height: float,
) -> list[Path]:
    runs = table.runs[table.runs["column"] == column] if column else table.runs
    low, high = (int(f(table.cells["seeds"])) for f in (min, max))
    seeds = "one seed" if high == 1 else f"{high if low == high else f'{low} to {high}'} seeds"
    steps = " to ".join(f"{n:,}" for n in sorted({runs["steps"].min(), runs["steps"].max()}))
    what = f"{column}: {table.spec.title}" if column else table.spec.title
    data = " / ".join(runs["data.provenance"].dropna().unique()) or "source as named"
    title = f"{what}\n{steps} steps, {seeds}; {conditions(table.runs)}\ndata: {data}"
    size = look.PAGE
    if finding := table.spec.findings.get(name):  # a page of results shows it
        title, size = f"{finding}\n{what}, {steps} steps, {seeds}", look.PHONE
        height *= 1.25
    of_row = 0.27 if any("\n" in name for _, name, _ in _looks(table, table.rows.index)) else 0.19
    height = 1.3 + of_row * len(table.rows) if fill is scores else height
    stem = folder / f"{table.spec.name}-{name}"
    return look.save_figure(stem, lambda f: fill(f, table, column), title, height, size)
