"""Figures of tables: scores, cost, curves, options, columns, effects, and two tables' orders."""

from __future__ import annotations

import itertools
import textwrap
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lra.figures import labels
from lra.figures.draw import WIDTH, finely_ticked, mean_and_range, save_figure
from lra.figures.labels import Point
from lra.figures.style import BOLD, INK, LUNA, NOTE, OTHERS, in_words, styles_of
from lra.report import render
from lra.report.table import Table, mark_of, text_of

AXES = {
    "M": "M, projections per head",
    "L": "L, channels per projection",
    "pairs": "pairs to recall",
}
TITLES = {"dwc": "local branch", "lr": "learning rate"}
ROW = 0.19  # inches per name
LINES = 12  # coloured lines at most; of more rows only some are named
LETTERS = 34  # of a name in a line
POINTS = 4  # of a curve, at least
CURATED = ("softmax", "hedgehog", "linear", "rff", "luna")  # methods with colours where many are


def draw(arguments: Namespace) -> list[Path]:
    from lra.report.commands import tables_of

    tables = [table for table in tables_of(arguments.results) if table.costs]
    return write_figures(tables, arguments.out or arguments.results / "figures")


def write_figures(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Draw every figure of these tables that has something to show, as PNG and PDF."""
    paths: list[Path] = []
    for table in tables:
        if not table.agreements.empty:
            paths += write_agreement(table, folder)
        if not table.effects.empty:
            paths += write_effects(table, folder)
        if table.axis and _numeric(table):
            paths += _save(folder, table, table.axis, by_column, table.columns[0])
        for column in table.columns if not table.axis else ():
            cells = table.column(column)
            if len(cells) < 2 or not cells["learned"].any():
                continue
            options = swept(table)
            if len(options) in (1, 2) and table.effects.empty:
                of_options = sweep if len(options) == 1 else grid
                paths += _save(folder, table, f"{column}-{'-'.join(options)}", of_options, column)
            else:
                paths += _save(folder, table, f"{column}-scores", scores, column)
                if table.rows["attention"].nunique() > 1:  # else names say what costs
                    paths += _save(folder, table, f"{column}-compute", compute, column)
            if curves_of(table, column):
                paths += _save(folder, table, f"{column}-curves", curves, column)
    return paths


def swept(table: Table) -> list[str]:
    """The options in which rows of one attention differ, if all their values are numbers."""
    values = [value for options in table.rows["options"] for value in options.values()]
    numeric = all(isinstance(v, int | float) and v is not True and v > 0 for v in values)
    one = table.rows["attention"].nunique() == 1
    return sorted({*itertools.chain(*table.rows["options"])}) if numeric and one else []


# ---------------------------------------------------------------------- one column


def scores(figure: Any, table: Table, column: str) -> None:
    """Every seed of every row, the best mean on top."""
    cells = table.column(column).sort_values("score", kind="stable")
    axes = figure.subplots()
    names = _names(table, cells.index)
    for y, (style, (_, cell)) in enumerate(
        zip(_styles(table, cells.index), cells.iterrows(), strict=True)
    ):
        axes.plot(
            cell["values"], [y] * len(cell["values"]), "|", color=style["color"], ms=8, alpha=0.7
        )
        axes.plot(cell["score"], y, marker=style["marker"], color=style["color"], ms=6)
        axes.annotate(text_of(cell) + mark_of(cell), (1.02, y), va="center", fontsize=labels.SIZE,
                      xycoords=axes.get_yaxis_transform(), color=NOTE)  # fmt: skip
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set(xlabel="test accuracy (%); | one seed", ylim=(-0.7, len(names) - 0.3))
    axes.grid(axis="x")
    _embolden(axes)
    low, floor = axes.get_xlim()[0], cells["floor"].iloc[0]
    if low < floor:
        axes.axvline(floor, color=NOTE, lw=0.8, ls=(0, (4, 3)))
        axes.annotate(" one answer to everything", (floor, -0.6), fontsize=labels.SIZE, color=NOTE)


def compute(figure: Any, table: Table, column: str) -> None:
    """Accuracy against forward FLOPs; the line joins rows that no cheaper one exceeds."""
    axes, cells = figure.subplots(), table.column(column)
    gflops = cells["flops"] / 1e9
    points, styles = [], _styles(table, cells.index)
    for name, style, row in zip(_names(table, cells.index), styles, cells.index, strict=True):
        score, deviation = cells.loc[row, ["score", "deviation"]].fillna(0)
        axes.errorbar(
            gflops[row], score, yerr=deviation or None, fmt=style["marker"], capsize=2, ms=6,
            color=style["color"], elinewidth=0.8, zorder=style["zorder"],
        )  # fmt: skip
        points.append(Point(gflops[row], score, name, deviation))
    front = cells.assign(x=gflops).sort_values(["x", "score"], ascending=[True, False])
    front = front[front["score"] > front["score"].cummax().shift(fill_value=-1)]
    axes.step(front["x"], front["score"], where="post", color=OTHERS, lw=1, zorder=1)
    axes.set_xscale("log")
    finely_ticked(axes.xaxis)
    axes.margins(x=0.12, y=0.12)
    axes.set(xlabel="GFLOPs per example, forward", ylabel="test accuracy (%)")
    axes.grid()
    named = {*front.index, *cells.index[:2]}
    few = len(cells) <= LINES
    named |= {
        row for row, style in zip(cells.index, styles, strict=True) if style["color"] != OTHERS
    }
    labels.beside(
        axes, [p for row, p in zip(cells.index, points, strict=True) if few or row in named]
    )


def curves_of(table: Table, column: str) -> dict[str, dict[float, list[float]]]:
    """Dev accuracies by step of every row whose runs kept POINTS of them or more."""
    of_rows: dict[str, dict[float, list[float]]] = {}
    for run in table.runs[table.runs["column"] == column].to_dict("records"):
        for step, accuracy in run.get("curve") or ():
            of_rows.setdefault(run["row"], {}).setdefault(step, []).append(100 * accuracy)
    return {row: curve for row, curve in of_rows.items() if len(curve) >= POINTS}


def curves(figure: Any, table: Table, column: str) -> None:
    """Dev accuracy by training step: mean and range over seeds; of many rows some are named."""
    axes, of_rows = figure.subplots(), curves_of(table, column)
    order = [row for row in table.column(column).sort_values("score").index if row in of_rows]
    named = order if len(order) <= LINES else [
        row for row in order if row in (*CURATED, "uniform", order[0], *order[-2:])
    ]  # fmt: skip
    ends = []
    for row, name, style in zip(
        order, _names(table, order), _styles(table, order, named), strict=True
    ):
        steps = sorted(of_rows[row])
        if row in named:
            mean_and_range(axes, of_rows[row], **style, markersize=3)
            ends.append((name, steps[-1], np.mean(of_rows[row][steps[-1]]), style["color"]))
        else:
            means = [np.mean(of_rows[row][step]) for step in steps]
            axes.plot(steps, means, color=OTHERS, lw=0.8, zorder=1)
    axes.set(xlabel="training step", ylabel="dev accuracy (%), mean and range of seeds")
    axes.grid()
    if len(named) < len(order):
        ends.append((f"{len(order) - len(named)} others", steps[-1], axes.get_ylim()[0], OTHERS))
    labels.at_ends(axes, ends, gap=0.055)


def sweep(figure: Any, table: Table, column: str) -> None:
    """Accuracy against one option, and what was published for it, each with its own axis."""
    (option,), cells = swept(table), table.column(column)
    xs = [options[option] for options in table.rows.loc[cells.index, "options"]]
    printed = cells["published"].astype(float)
    panels = figure.subplots(1, 1 + printed.notna().any(), squeeze=False)[0]
    bars = None if cells["deviation"].isna().all() else cells["deviation"].fillna(0)
    panels[0].errorbar(xs, cells["score"], yerr=bars, fmt="o", color=LUNA, capsize=3)
    panels[0].set_title("measured here")
    if len(panels) > 1:
        panels[1].plot(xs, printed, "s", color=NOTE, mfc="none")
        panels[1].set_title("published (another protocol)")
    for axes in panels:
        middle = np.mean(axes.get_ylim())
        axes.set_xscale("log", base=2)
        axes.set_xticks(xs, [str(x) for x in xs], minor=False)
        axes.set(xlabel=AXES.get(option, option), ylabel="test accuracy (%)")
        axes.set_ylim(middle - 5, middle + 5)  # equal spans, so that slopes can be compared
        axes.grid()


def grid(figure: Any, table: Table, column: str) -> None:
    """Accuracy by two options, as a map with the numbers in it."""
    axes, (down, across) = figure.subplots(), swept(table)
    options = pd.DataFrame(list(table.rows["options"]), table.rows.index)
    means = options.assign(score=table.column(column)["score"]).pivot_table("score", down, across)
    image = axes.imshow(means, cmap="viridis", aspect="auto", origin="lower")
    for (y, x), value in np.ndenumerate(means.to_numpy()):
        colour = "w" if image.norm(value) < 0.6 else "k"
        axes.text(
            x, y, "" if np.isnan(value) else f"{value:.1f}", ha="center", va="center", color=colour
        )
    axes.set_xticks(range(means.shape[1]), means.columns)
    axes.set_yticks(range(means.shape[0]), means.index)
    axes.set(xlabel=AXES.get(across, across), ylabel=AXES.get(down, down))
    figure.colorbar(image, ax=axes, label="test accuracy (%)")


# ---------------------------------------------------------------------- columns, effects, orders


def by_column(figure: Any, table: Table, first: str) -> None:
    """Accuracy against the setting whose values are the columns: some rows named, others grey."""
    axes, ends = figure.subplots(), []
    xs = pd.Series({c: float(c.partition("=")[2]) for c in table.columns})
    rows = [
        row for row in table.rows.index if len(table.cells.loc[row]) > 1
    ]  # a line has two points
    attentions = table.rows.loc[rows, "attention"]
    named = rows if len(rows) <= LINES else [r for r in rows if attentions[r] in CURATED]
    for row, name, style in zip(
        rows, _names(table, rows), _styles(table, rows, named), strict=True
    ):
        cells = table.cells.loc[row]
        cells = cells.loc[[c for c in table.columns if c in cells.index]]
        x, means = xs[cells.index], cells["score"]
        spread = cells["deviation"].fillna(0)
        reach = [np.minimum(spread, means), np.minimum(spread, 100 - means)]  # not beyond 100 %
        if row in named:
            axes.errorbar(x, means, yerr=reach, capsize=2, markersize=5, elinewidth=0.8, **style)
            ends.append((name, x.iloc[-1], means.iloc[-1], style["color"]))
        else:
            axes.plot(x, means, color=OTHERS, lw=0.8, zorder=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(xs), [f"{x:g}" for x in xs], minor=False)
    axes.set(xlabel=AXES.get(table.axis, table.axis), ylabel="test accuracy (%)", ylim=(-3, 103))
    axes.grid()
    if len(named) < len(rows):
        ends.append((f"{len(rows) - len(named)} others", xs.iloc[-1], 0, OTHERS))
    labels.at_ends(axes, ends, gap=0.06)


def write_effects(table: Table, folder: Path) -> list[Path]:
    """The effects of a table: a stroke per pair of runs, their mean, its 95 % interval."""
    lines = len(table.effects) + table.effects["setting"].nunique()
    size = (WIDTH, 1.4 + 0.27 * lines)
    title = f"{table.title}\n{table.conditions}"
    return save_figure(
        folder / f"{table.name}-effects", lambda f: draw_effects(f, table), size=size, title=title
    )


def draw_effects(figure: Any, table: Table) -> None:
    axes = figure.subplots()
    axes.axvline(0, color=NOTE, lw=1)
    y, ticks = 0.0, dict[float, str]()
    lines = zip(
        table.effects.to_dict("records"), render.effects(table).to_dict("records"), strict=True
    )
    for (setting, base), group in itertools.groupby(
        lines, lambda pair: (pair[0]["setting"], pair[0]["base"])
    ):
        ticks[y] = f"{TITLES.get(setting, setting)}, against {base}"
        for effect, text in group:
            y -= 1
            ticks[y] = effect["level"]
            half = effect["half_width"]
            half = None if half is None or np.isnan(half) else half
            clear = half is not None and abs(effect["mean"]) > half
            over_rows = len(effect["cells"]) > 2  # else the interval is over seeds
            axes.plot(
                effect["differences"], [y] * len(effect["differences"]), "|", color="0.6", ms=7
            )
            axes.errorbar(effect["mean"], y, xerr=half, fmt="o", color=LUNA if clear else NOTE,
                          capsize=3, lw=1.8, mfc=None if over_rows else "w")  # fmt: skip
            shown = f"{text['difference']}   [{text['95 % interval']}]   {text['pairs (runs)']}"
            axes.annotate(
                shown, (1.02, y), va="center", xycoords=axes.get_yaxis_transform(), fontsize=8
            )
        y -= 1.4
    axes.set_yticks([*ticks], [*ticks.values()], parse_math=False)
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if ", against " in label.get_text() else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(y + 0.7, 0.7)
    axes.annotate("mean   [95 % interval]   pairs (runs)", (1.02, 0), va="center", fontsize=8,
                  color=NOTE, xycoords=axes.get_yaxis_transform())  # fmt: skip
    axes.set_xlabel(
        "points of test accuracy gained, all other settings equal; red: the interval leaves out 0\n"
        "| a pair of runs   ● mean, interval over pairs of rows   ○ of one or two pairs, over seeds"
    )
    axes.grid(axis="x")


def write_agreement(table: Table, folder: Path) -> list[Path]:
    """The column that shares most methods with the other table, a point per method."""
    best = table.agreements.loc[table.agreements["methods"].map(len).idxmax()]
    text = render.orders(table).iloc[table.agreements.index.get_loc(best.name)]
    title = (
        f"{table.title}: {best['column']}\nagainst {best['title']}: {best['with']}\n"
        f"{text['methods']} methods, rank correlation {text['correlation']} "
        f"({text['95 % interval']})"
    )
    stem = folder / f"{table.name}-against-{best['other']}"
    return save_figure(stem, lambda f: draw_agreement(f, best), size=(WIDTH, 5), title=title)


def draw_agreement(figure: Any, order: pd.Series) -> None:
    """Ranks, the best on top and at the right: means of many methods lie on one another."""
    axes, methods = figure.subplots(), order["methods"]
    ranks = methods[["here", "there"]].rank()
    points = []
    for (name, rank), style in zip(ranks.iterrows(), styles_of(methods.index), strict=True):
        axes.plot(rank["here"], rank["there"], marker=style["marker"], color=style["color"], ms=7)
        points.append(Point(rank["here"], rank["there"], str(name)))
    axes.plot([1, len(ranks)], [1, len(ranks)], color=OTHERS, lw=0.8, ls=":", zorder=1)
    axes.margins(x=0.1, y=0.1)
    axes.set_xlabel(f"rank on {order['column']} (right: better)")
    axes.set_ylabel(f"rank on {order['with']}, {order['other']} (up: better)")
    axes.grid()
    labels.beside(axes, points)


# ---------------------------------------------------------------------- what they share


def _names(table: Table, rows: Sequence[str]) -> list[str]:
    """Names of rows in words: options that differ, without the attention if all have the same."""
    one = table.rows["attention"].nunique() == 1
    names = []
    for row in rows:
        attention, options = table.rows.loc[row, ["attention", "options"]]
        shown = {k: v for k, v in options.items() if f" {k}={v}" in row}
        words = in_words(shown)
        name = words or attention if one else f"{attention} {words}".strip()
        names.append("\n".join(textwrap.wrap(name, LETTERS)))
    return names


def _styles(
    table: Table, rows: Sequence[str], named: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Looks of rows: those of their methods; rows of one method differ in dashes."""
    attentions = list(table.rows.loc[list(rows), "attention"])
    dashes, seen = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (4, 1, 1, 1))), dict[str, int]()
    styles = []
    for row, attention, style in zip(rows, attentions, styles_of(attentions), strict=True):
        turn = seen.get(attention, 0)
        if named is None or row in named:
            seen[attention] = turn + 1
        styles.append(style | {"linestyle": dashes[turn % len(dashes)]})
    return styles


def _embolden(axes: Any) -> None:
    for label in axes.get_yticklabels():
        bold = label.get_text().split(" ")[0] in BOLD
        label.set(fontweight="bold" if bold else "normal", color=INK)


def _numeric(table: Table) -> bool:
    values = [column.partition("=")[2] for column in table.columns]
    return all(value.replace(".", "", 1).isdigit() for value in values)


def _save(
    folder: Path, table: Table, name: str, fill: Callable[[Any, Table, str], None], column: str
) -> list[Path]:
    rows = len(table.rows)
    height = 1.3 + ROW * rows if fill is scores else 4.6
    runs = table.runs if table.axis else table.runs[table.runs["column"] == column]
    low, high = (int(f(table.cells["seeds"])) for f in (min, max))
    seeds = (
        "one seed" if high == 1 else f"{high} seeds" if low == high else f"{low} to {high} seeds"
    )
    steps = " to ".join(f"{n:,}" for n in sorted({runs["steps"].min(), runs["steps"].max()}))
    what = table.title if table.axis else f"{column}: {table.title}"
    title = f"{what}\n{steps} steps, {seeds}; {table.conditions}"
    stem = folder / f"{table.name}-{name}"
    return save_figure(stem, lambda f: fill(f, table, column), size=(WIDTH, height), title=title)
