"""Figures of tables: scores, cost, curves, columns, grids of two settings, effects, and two tables'
orders."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lra.base.errors import UserError
from lra.figures import style as look
from lra.looks import LUNA, WORDS, in_words, look_of, word_of
from lra.report import render
from lra.report.commands import tables_of
from lra.report.effects import AVERAGED
from lra.report.grids import DARK, LIGHT, MIXED, Grid, colour_of_cell, grids_of, ink_on, scale_of
from lra.report.notes import conditions
from lra.report.table import Table, is_mixed, mark_of, of_both_kinds, text_of

# Settings of one letter keep it, because tables and commands have it.
AXES = {
    "pairs": "pairs to recall",
    "M": "M, projections of a token",
    "L": "L, scalar functions",
    "hidden": "width of a scalar network",
    "nonneg": "outputs",
    "normalise": "sums over keys are",
}
TITLES = {"dwc": "local branch", "lr": "learning rate", "pretrain": "self-pretraining"}
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
    tables = [table for table in tables_of(arguments.results)[1] if table.spec.findings]
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
        cell, colour = cells.loc[row], style["color"]
        axes.plot(cell["values"], [y] * len(cell["values"]), "|", color=colour, ms=8, alpha=0.7)
        if not is_mixed(cell):
            axes.plot(cell["score"], y, marker=style["marker"], color=colour, ms=6)
        axes.annotate(
            f"{text_of(cell)} {mark_of(cell)}",
            (1.02, y),
            va="center",
            xycoords=axes.get_yaxis_transform(),
            color=look.NOTE,
        )
    axes.set_yticks(range(len(looks)), [name for _, name, _ in looks], parse_math=False)
    axes.set(xlabel=f"{axis_of(cells)}; | one seed", ylim=(-0.7, len(looks) - 0.3))
    axes.grid(axis="x")
    for label in axes.get_yticklabels():
        label.set(fontweight=look.weight(label.get_text()), color=look.INK)
    if axes.get_xlim()[0] < (floor := cells["floor"].iloc[0]):
        axes.axvline(floor, color=look.NOTE, lw=0.8, ls=(0, (4, 3)))
        axes.annotate(" one answer to everything", (floor, -0.6), color=look.NOTE)


def compute(figure: Any, table: Table, column: str) -> None:
    """Accuracy against forward FLOPs."""
    cells, axes = table.column(column), figure.subplots()
    mixed = of_both_kinds(cells)
    for _, cell in cells[mixed].iterrows():  # no run is near their mean
        axes.plot([cell["gflops"]] * cell["seeds"], cell["values"], "_", color=look.OTHERS, ms=8)
    cells = cells[~mixed]
    numbers = cells[["gflops", "score", "deviation"]].fillna(0).to_numpy()
    looks = _looks(table, cells.index, list(cells.index))
    points = [
        look.Point(x, y, name, spread)
        for (_, name, _), (x, y, spread) in zip(looks, numbers, strict=True)
    ]
    known = [i for i, row in enumerate(cells.index) if cells["attention"][row] in CURATED]
    look.draw_front(axes, points, [style for *_, style in looks], known)
    axes.set(xlabel="GFLOPs per example, forward", ylabel=axis_of(cells))


def axis_of(cells: pd.DataFrame, split: str = "test") -> str:
    """`test accuracy (%)`"""
    first = cells.iloc[0]
    unit = f" ({first['unit']})" if first["unit"] else ""
    return f"{split} {first['title']}{unit}"


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
    axes.set(xlabel="training step", ylabel=f"{axis_of(cells, 'dev')}, a line per seed")
    special = [*CURATED, "uniform", order[0], *order[-2:]]
    _lines(axes, table, {row: of_rows[row] for row in order}, special, markers=False)


# ---------------------------------------------------------------------- columns, effects, orders


def by_column(figure: Any, table: Table, _: str) -> None:
    """Accuracy against the setting whose values are the columns."""
    axes, lines = figure.subplots(), {}
    percent = table.cells["unit"].iloc[0] == "%"
    xs = pd.Series({c: float(c.partition("=")[2]) for c in table.columns})
    for row in table.rows.index:
        cells = table.cells.loc[row].reindex(table.columns).dropna(subset="score")
        mixed = of_both_kinds(cells)
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
        best = table.cells["rule"].groupby("column").first()[xs.index]
        axes.plot(xs, best, color=look.NOTE, lw=1, ls="--")
        axes.annotate("best rule", (xs.iloc[0], best.iloc[0]), (0, 4), textcoords="offset points")
    for name, rule in bounds.iterrows():
        axes.plot(xs, rule[xs.index], color=look.INK, lw=1, ls=":")
        at = xs.index[-2:][0]  # left of a rising line, away from the names at the end
        axes.annotate(f"{name}, the bound  ", (xs[at], rule[at]), ha="right")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(xs), [f"{x:g}" for x in xs], minor=False)
    axes.set(xlabel=AXES.get(table.axis, table.axis), ylabel=axis_of(table.cells))
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


def across_page(grids: Sequence[Grid]) -> int:
    """How many grids stand side by side: cells have to hold their numbers."""
    return 2 if len(grids) > 1 and max(len(grid.columns) for grid in grids) <= 4 else 1


def draw_grids(grids: Sequence[Grid], figure: Any, table: Table, column: str) -> None:
    """Every cell with its mean, deviation and number of seeds; all panels have one scale."""
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    ends = [[part / 255 for part in end] for end in (LIGHT, DARK)]
    worst, best = scale_of(grids)
    low, high = min(worst, best), max(worst, best)
    ends = ends if best >= worst else ends[::-1]
    scale = {
        "cmap": LinearSegmentedColormap.from_list("scores", ends),
        "norm": Normalize(low, high),
    }
    panels = look.panels_for(figure, len(grids), across_page(grids))
    for axes, grid in zip(panels.flat, grids, strict=False):
        scores = np.full((len(grid.rows), len(grid.columns)), np.nan)
        for (y, row), (x, value) in itertools.product(
            enumerate(grid.rows), enumerate(grid.columns)
        ):
            cell = grid.cells.get((row, value))
            if cell is not None:
                scores[y, x] = np.nan if is_mixed(cell) else cell["score"]
            _write_cell(axes, x, y, cell, (worst, best), crowded=len(grid.columns) > 8)
        axes.set_facecolor(MIXED)
        picture = axes.pcolormesh(scores, edgecolors="w", linewidth=1.5, **scale)
        axes.invert_yaxis()  # as the terminal has it: the first row on top
        for axis, factor, values in (
            (axes.xaxis, grid.across, grid.columns),
            (axes.yaxis, grid.down, grid.rows),
        ):
            words = [WORDS.get(factor, {}).get(value, value) for value in values]
            axis.set_ticks([i + 0.5 for i in range(len(words))], words)
            axis.set_label_text(AXES.get(factor, TITLES.get(factor, factor)))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(", ".join(filter(None, [table.axis and grid.column, grid.others])))
    bar = figure.colorbar(picture, ax=list(panels.flat[: len(grids)]), fraction=0.05)
    bar.set_label(axis_of(table.cells))
    bar.outline.set_visible(False)
    figure.supxlabel(
        "(n): seeds; ∅, ↓: as in tables. Colours begin at one answer to everything, so that "
        "small differences look small.",
        fontsize=8,
        color=look.NOTE,
    )


def _write_cell(
    axes: Any, x: int, y: int, cell: pd.Series | None, scale: tuple[float, float], *, crowded: bool
) -> None:
    """The numbers of a cell; a cell without a run is hatched, so that it is not taken for a low
    one."""
    middle = (x + 0.5, y + 0.5)
    place = {"ha": "center", "va": "center", "textcoords": "offset points", "parse_math": False}
    if cell is None:
        hatched = {"facecolor": "none", "edgecolor": look.OTHERS, "hatch": "////", "linewidth": 0}
        axes.fill([x, x + 1, x + 1, x], [y, y, y + 1, y + 1], **hatched)
        box = {"facecolor": "w", "edgecolor": "none", "pad": 1.5}
        said = "–" if crowded else "no run"
        axes.annotate(said, middle, (0, 0), color=look.NOTE, fontsize=7.5, bbox=box, **place)
        return
    place["color"] = ink_on(colour_of_cell(cell, scale))
    shown = f"{text_of(cell)} {mark_of(cell)}".strip()
    mean, _, rest = shown.partition(" leapt: " if is_mixed(cell) else " ")
    weight = "bold" if cell["best"] else "normal"
    if crowded:  # the title has the number of seeds
        axes.annotate(mean, middle, (0, 0), fontsize=7, fontweight=weight, **place)
        return
    axes.annotate(mean, middle, (0, 6), fontsize=10, fontweight=weight, **place)
    axes.annotate(rest, middle, (0, -7), fontsize=7.5, **place)


def write_effects(table: Table, folder: Path) -> list[Path]:
    """The effects of a table: a stroke per pair of runs, their mean, its 95 % interval."""
    lines = len(table.effects) + table.effects["setting"].nunique()
    stem = folder / f"{table.spec.name}-effects"
    title = f"{table.spec.title}\n{conditions(table.runs)}"
    if finding := table.spec.findings.get("effects"):
        title = f"{finding}\n{table.spec.title}"
    return look.save_figure(stem, lambda f: draw_effects(f, table), title, 1.4 + 0.27 * lines)


def draw_effects(figure: Any, table: Table) -> None:
    axes = figure.subplots()
    axes.axvline(0, color=look.NOTE, lw=1)
    y, ticks = 0.0, dict[float, str]()
    right = {"va": "center", "xycoords": axes.get_yaxis_transform(), "fontsize": 8}
    for (setting, base), group in table.effects.groupby(["setting", "base"], sort=False):
        ticks[y] = f"{TITLES.get(setting, setting)}, against {_level(setting, base, bare=True)}"
        texts = render.lines_of(group, render.EFFECT)
        for effect, text in zip(group.to_dict("records"), texts.to_dict("records"), strict=True):
            y -= 1
            seen = f", {_where(effect['where'])}" if effect["where"] else ""
            ticks[y] = f"{_level(setting, effect['level'])}{seen}"
            half = effect["high"] - effect["mean"]
            clear = abs(effect["mean"]) > half  # not where there is no interval
            over_rows = effect["pairs"] >= AVERAGED  # else the interval is over seeds
            differences = effect["differences"]
            axes.plot(differences, [y] * len(differences), "|", color="0.6", ms=7)
            axes.errorbar(
                effect["mean"],
                y,
                xerr=None if pd.isna(half) else half,
                fmt="o",
                color=LUNA if clear else look.NOTE,
                capsize=3,
                lw=1.8,
                mfc=None if over_rows else "w",
            )
            shown = f"{text['difference']}   [{text['95 % interval']}]   {text['pairs (runs)']}"
            axes.annotate(shown, (1.02, y), **right)
        y -= 1.4
    axes.set_yticks([*ticks], [*ticks.values()], parse_math=False)
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if ", against " in label.get_text() else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(y + 0.7, 0.7)
    axes.annotate("mean   [95 % interval]   pairs (runs)", (1.02, 0), color=look.NOTE, **right)
    axes.set_xlabel(
        "change of the test score, all other settings equal; red: the interval leaves out 0\n"
        "| a pair of runs   ● mean and interval over pairs of rows   ○ over seeds of one pair"
    )
    axes.grid(axis="x")


def _level(setting: str, value: Any, *, bare: bool = False) -> str:
    """A value of a setting in words; `bare` ones stand behind the name of the setting."""
    if setting == "attention":
        return look_of(str(value)).name
    return str(value) if bare else WORDS.get(setting, {}).get(str(value), str(value))


def _where(rows: str) -> str:
    """In which rows an effect was seen: a method, or `M=8 nonneg=exp`."""
    pairs = re.findall(r"((?:\w+ x )*\w+)=(\d+(?: x \d+)+|\S+)", rows)
    method = rows[: rows.index(f"{pairs[0][0]}=")].strip() if pairs else rows
    words = [word_of(key, value) for key, value in pairs]
    return ", ".join([look_of(method).name, *words] if method else words)


def write_agreement(table: Table, folder: Path) -> list[Path]:
    """The column that shares most methods with the other table, a point per method. Ranks, the best
    on top and at the right: means of many methods lie on one another."""
    best = table.agreements.loc[table.agreements["methods"].idxmax()]
    text = render.lines_of(best.to_frame().T, render.AGREEMENT).iloc[0]
    title = (
        f"{table.spec.title}: {best['column']}\nagainst {best['title']}: {best['with']}\n"
        f"{text['methods']} methods, rank correlation {text['correlation']} "
        f"({text['95 % interval']})"
    )
    ranks = best["means"][["here", "there"]].rank()

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        points = [look.Point(x, y, look_of(name).name) for name, x, y in ranks.itertuples()]
        for (x, y, *_), style in zip(points, map(look.style_of, ranks.index), strict=True):
            axes.plot(x, y, marker=style["marker"], color=style["color"], ms=7)
        axes.plot([1, len(ranks)], [1, len(ranks)], color=look.OTHERS, lw=0.8, ls=":", zorder=1)
        axes.margins(x=0.1, y=0.1)
        axes.set_xlabel(f"rank on {best['column']} (right: better)")
        axes.set_ylabel(f"rank on {best['with']}, {table.spec.against} (up: better)")
        axes.grid()
        look.beside(axes, points)

    stem = folder / f"{table.spec.name}-against-{table.spec.against}"
    return look.save_figure(stem, fill, title, height=5)


# ---------------------------------------------------------------------- what they share


def _looks(
    table: Table, rows: Sequence[str], named: Sequence[str] | None = None
) -> list[tuple[str, str, dict[str, Any]]]:
    """Rows with their names in words, without the attention if all have the same, and the looks of
    their methods. With `named`, a method that has one row needs no options in its name."""
    one, number = table.rows["attention"].nunique() == 1, Counter(table.rows["attention"])
    lines, looks = table.rows.loc[rows, ["attention", "options"]], []
    for row, attention, options in lines.itertuples():
        shown = {k: v for k, v in options.items() if f" {k}={v}" in row}
        alone = named is not None and number[attention] == 1
        name = look_of(attention, {} if alone else shown).name
        name = in_words(shown) or name if one else name
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
    looks = [found for found in _looks(table, [*lines], named) if found[0] in named]
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
    if finding := table.spec.findings.get(name):
        title = f"{finding}\n{what}, {steps} steps, {seeds}"
    of_row = 0.27 if any("\n" in name for _, name, _ in _looks(table, table.rows.index)) else 0.19
    height = 1.3 + of_row * len(table.rows) if fill is scores else height
    stem = folder / f"{table.spec.name}-{name}"
    return look.save_figure(stem, lambda f: fill(f, table, column), title, height)
