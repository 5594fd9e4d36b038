"""Figures from records: accuracy against options (M, L), against compute, and while training."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lra.figures import agreement, effects, labels
from lra.figures.draw import finely_ticked, mean_and_range, save_figure
from lra.figures.labels import Point
from lra.report import stats
from lra.report.styles import LUNA, keys, of_method, styles_of
from lra.report.table import Cell, Table, TableRow

AXES = {"M": "M, projections per head", "L": "L, channels per projection"}  # axis titles
MANY = 16  # rows; with more, curves are named only for some
WIDTH, HEIGHT = 7.6, 4.4  # inches, of a figure with few rows
ROW = 0.17  # inches per name

Draw = Callable[[Any, Sequence[TableRow], str], None]


def draw(arguments: Namespace) -> list[Path]:
    from lra.report.commands import tables_of

    results = arguments.results
    tables = [table for table in tables_of(results) if table.timed]
    return write_figures(tables, arguments.out or results / "figures")


def write_figures(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Every figure of these tables, as PNG and PDF."""
    paths: list[Path] = []
    for table in tables:
        if table.agreements:
            paths += agreement.write_agreement(table, folder)
        if table.effects:
            paths += effects.write_effects(table, folder)
        elif table.axis and _numeric(table.tasks):
            rows = [row for row in table.rows if len(row.cells) > 1]  # a line needs two points
            if columns := [t for t in table.tasks if any(t in row.cells for row in rows)]:
                stem = folder / f"{table.name}-{table.axis}"
                paths += _save(stem, capacity, rows, columns[0], table)
        if table.axis:
            continue
        for task in table.tasks:
            rows = [row for row in table.rows if task in row.cells]
            for name, draw in _figures(rows, task):
                stem = folder / f"{table.name}-{task}-{name}"
                paths += _save(stem, draw, rows, task, table)
    return paths


def _numeric(columns: Sequence[str]) -> bool:
    try:
        return all(float(column.partition("=")[2]) > 0 for column in columns)
    except ValueError:
        return False


def _figures(rows: Sequence[TableRow], task: str) -> Iterator[tuple[str, Draw]]:
    if _with_curves(rows, task):
        yield "curves", curves
    options = swept(rows)
    if len(options) == 1:
        yield options[0], sweep
    if len(options) == 2:
        yield "-".join(options), grid
    if len(rows) > 1:
        yield "compute", compute


def swept(rows: Sequence[TableRow]) -> list[str]:
    """The options in which rows of one attention differ, if all their values are numbers."""
    keys = sorted({key for row in rows for key in row.options})
    values = [row.options.get(key) for row in rows for key in keys]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in values)
    return keys if numeric and len({row.attention for row in rows}) == 1 else []


def sweep(figure: Any, rows: Sequence[TableRow], task: str) -> None:
    """Accuracy against one option, with the deviation over seeds and published values."""
    axes = figure.subplots()
    (option,) = {key for row in rows for key in row.options}
    xs = [row.options[option] for row in rows]
    cells = [row.cells[task] for row in rows]
    published = [(x, c.published.value) for x, c in zip(xs, cells, strict=True) if c.published]
    axes.errorbar(
        xs, [c.mean for c in cells], yerr=_bars(cells), marker="o", color=LUNA, capsize=3,
        label="measured",
    )  # fmt: skip
    if published:
        axes.plot(*zip(*published, strict=True), "s--", color="0.45", mfc="none",
                  label="published (another protocol)")  # fmt: skip
    axes.margins(y=0.2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(xs, [str(x) for x in xs], minor=False)
    axes.set(xlabel=AXES.get(option, option), ylabel=_accuracy(rows, task))
    axes.grid()
    axes.legend(frameon=False)
    _majority(axes, rows, task)


def grid(figure: Any, rows: Sequence[TableRow], task: str) -> None:
    """Accuracy by two options, as a map with the numbers in it."""
    axes = figure.subplots()
    down, across = swept(rows)
    ys, xs = (sorted({row.options[key] for row in rows}) for key in (down, across))
    means = [[float("nan")] * len(xs) for _ in ys]
    for row in rows:
        means[ys.index(row.options[down])][xs.index(row.options[across])] = row.cells[task].mean
    image = axes.imshow(means, cmap="viridis", aspect="auto", origin="lower")
    for y, line in enumerate(means):
        for x, value in enumerate(line):
            if value == value:  # a number
                dark = image.norm(value) < 0.6
                axes.text(
                    x, y, f"{value:.1f}", ha="center", va="center", color="w" if dark else "k"
                )
    axes.set_xticks(range(len(xs)), xs)
    axes.set_yticks(range(len(ys)), ys)
    axes.set(xlabel=AXES.get(across, across), ylabel=AXES.get(down, down))
    figure.colorbar(image, ax=axes, label="test accuracy (%)")


def compute(figure: Any, rows: Sequence[TableRow], task: str) -> None:
    """Accuracy against forward FLOPs per example."""
    axes = figure.subplots()
    points = []
    for name, row, style in zip(_names(rows), rows, _styles(rows), strict=True):
        cell = row.cells[task]
        x = cell.cost("compute.flops") / 1e9
        full = style["fillstyle"] == "full"
        axes.errorbar(
            x, cell.mean, yerr=_bars([cell]), fmt=style["marker"], capsize=2, ms=6,
            color=style["color"], mec="w" if full else None, mew=0.5 if full else 1.2,
            fillstyle=style["fillstyle"], elinewidth=1,
        )  # fmt: skip
        points.append(Point(x, cell.mean, name, cell.deviation or 0))
    axes.set_xscale("log")
    finely_ticked(axes.xaxis, (1, 1.5, 2, 3, 5, 7))
    axes.margins(x=0.1, y=0.12)
    axes.set(xlabel="GFLOPs per example, forward", ylabel=_accuracy(rows, task))
    axes.grid()
    _majority(axes, rows, task)
    _legend(figure, rows, "marker", "fillstyle")
    labels.beside(axes, points)


def capacity(figure: Any, rows: Sequence[TableRow], first: str) -> None:
    """Accuracy against the setting whose values are the columns, of which `first` is the first; a
    line per row."""
    axes = figure.subplots()
    tasks = {task: float(task.partition("=")[2]) for row in rows for task in row.cells}
    ends = []
    several = Counter(row.attention for row in rows)
    for name, row, style in zip(_names(rows), rows, _styles(rows), strict=True):
        style = style if several[row.attention] > 1 else of_method(row.attention)
        points = sorted((tasks[task], cell) for task, cell in row.cells.items())
        xs, cells = zip(*points, strict=True)
        means = [cell.mean for cell in cells]
        axes.errorbar(xs, means, yerr=_bars(cells), capsize=2, ms=4, elinewidth=0.8,
                      lw=2.4 if name in labels.BOLD else 1.2, **style)  # fmt: skip
        ends.append((name, xs[-1], means[-1], style["color"]))
    axes.set_xscale("log", base=2)
    axes.set_xticks([*tasks.values()], [f"{x:g}" for x in tasks.values()], minor=False)
    axes.set(xlabel=first.partition("=")[0], ylim=(-6, 103))
    axes.set_ylabel(_accuracy(rows, first))
    axes.grid()
    _majority(axes, rows, first, inside=True)
    labels.at_ends(axes, ends, gap=10 / (72 * (_height(rows) - 1.2)))


def curves(figure: Any, rows: Sequence[TableRow], task: str) -> None:
    """Dev accuracy by training step: mean and range over seeds. Of many rows only some have colours
    and names; the others are grey."""
    axes, rows = figure.subplots(), _with_curves(rows, task)
    ends, highlighted = [], _highlighted(rows, task)
    for name, row, style in zip(_names(rows), rows, _styles(rows), strict=True):
        seeds: dict[float, list[float]] = defaultdict(list)
        for record in row.cells[task].records:
            for step, accuracy in record.get("curve") or ():
                seeds[step].append(100 * accuracy)
        if row not in highlighted:
            steps = sorted(seeds)
            axes.plot(steps, [stats.mean(seeds[s]) for s in steps], color="0.75", lw=0.8, zorder=1)
            continue
        width, z = (2.4, 4) if name in labels.BOLD else (1.2, 2)
        line_style = {k: style[k] for k in ("color", "linestyle", "fillstyle")}
        mean_and_range(axes, seeds, lw=width, zorder=z, marker="o", ms=3, **line_style)
        last = max(seeds)
        ends.append((name, last, stats.mean(seeds[last]), style["color"]))
    band = ", mean and range of seeds" if _several(rows, task) else ""
    axes.set(xlabel="training step", ylabel=f"dev accuracy (%){band}")
    axes.grid()
    _legend(figure, [row for row in rows if row in highlighted], "linestyle", "fillstyle")
    if len(highlighted) < len(rows):
        axes.annotate(
            f"grey: {len(rows) - len(highlighted)} others", (1.04, 0.02), fontsize=labels.SIZE,
            xycoords="axes fraction", color="0.5", annotation_clip=False,
        )  # fmt: skip
    labels.at_ends(axes, ends, gap=10 / (72 * (_height(rows) - 1.2)))


def _with_curves(rows: Sequence[TableRow], task: str) -> list[TableRow]:
    """The rows of runs that kept a curve: a run without metrics.csv has none."""
    return [row for row in rows if any(r.get("curve") for r in row.cells[task].records)]


def _highlighted(rows: Sequence[TableRow], task: str) -> list[TableRow]:
    """The rows that have names: all, or of many LUNA, softmax, linear, `uniform` (which only counts
    tokens), the two best and the worst."""
    if len(rows) <= MANY:
        return list(rows)
    by_mean = sorted(rows, key=lambda row: -row.cells[task].mean)
    named = [row for row in rows if row.label in (*labels.BOLD, "linear", "uniform")]
    return [row for row in rows if row in [*named, *by_mean[:2], by_mean[-1]]]


def _legend(figure: Any, rows: Sequence[TableRow], *channels: str) -> None:
    """Explain colours, shapes, dashes and fillings, if they show options."""
    from matplotlib.lines import Line2D

    plain: dict[str, Any] = {"color": "0.3", "marker": "o", "markersize": 5}
    plain |= {"linestyle": "-" if "linestyle" in channels else ""}
    explained = [] if swept(rows) else keys(rows, channels)
    handles = [Line2D([], [], label=label, **plain | style) for label, style in explained]
    if handles:
        columns = min(len(handles), 5)
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns,
                               frameon=False, fontsize=8, handlelength=3)  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)  # options are not formulas


def _names(rows: Sequence[TableRow]) -> list[str]:
    """The labels of the rows, without the attention if all rows are of the same one."""
    of_one = len({row.attention for row in rows}) == 1 and all(row.options for row in rows)
    return [row.label.removeprefix(f"{row.attention} ") if of_one else row.label for row in rows]


def _styles(rows: Sequence[TableRow]) -> list[dict[str, Any]]:
    return styles_of(rows, ordered=bool(swept(rows)))


def _majority(axes: Any, rows: Sequence[TableRow], task: str, *, inside: bool = False) -> None:
    """A line at the accuracy of always giving one answer, if the axes reach it; named beside the
    axes or, where names of rows stand there, `inside`."""
    first = next(row.cells[task] for row in rows if task in row.cells)
    share = first.records[0].get("data.majority")
    low, high = axes.get_ylim()
    if share is None or not low < 100 * share < high:
        return
    axes.axhline(100 * share, color="0.4", lw=0.8, ls=(0, (4, 3)), zorder=1)
    text, place = (
        ("one answer to everything", 0.4) if inside else ("one answer\nto everything", 1.01)
    )
    axes.annotate(
        text, (place, 100 * share), fontsize=8, va="top" if inside else "center",
        xycoords=axes.get_yaxis_transform(), color="0.3", annotation_clip=False,
    )  # fmt: skip


def _bars(cells: Sequence[Cell]) -> list[float] | None:
    """Deviations over seeds; None where no cell has one."""
    deviations = [cell.deviation for cell in cells]
    return [d or 0 for d in deviations] if any(d is not None for d in deviations) else None


def _accuracy(rows: Sequence[TableRow], task: str) -> str:
    spread = ", mean ± deviation over seeds" if _several(rows, task) else ""
    return f"test accuracy (%){spread}"


def _several(rows: Sequence[TableRow], task: str) -> bool:
    return any(len(row.cells[task].records) > 1 for row in rows if task in row.cells)


def _heading(table: Table, rows: Sequence[TableRow], task: str) -> str:
    cells = [c for row in rows for t, c in row.cells.items() if table.axis or t == task]
    records = [record for cell in cells for record in cell.records]
    steps, batches = ({r[key] for r in records} for key in ("steps", "batch"))
    counts = {len(cell.records) for cell in cells}
    seeds = "one seed" if counts == {1} else f"{_range(counts)} seeds"
    examples, p = records[0]["test.examples"], stats.mean([r.score / 100 for r in records])
    n = records[0].get("test.scored", examples)  # more, where a task scores tokens
    error = 100 * (p * (1 - p) / n) ** 0.5
    tested = f"{n:,} test {'examples' if n == examples else 'answers'}"
    provenance = records[0].get("data.provenance")
    exact = f"one standard error of {tested} is {error:.1f} points"
    alone = len(table.rows) - len(rows) if table.axis else 0
    facts = [
        table.title if table.axis else f"{task}: {table.title}",
        f"{_range(steps)} steps of {_range(batches)}; {table.conditions}",
        seeds if table.axis else f"{seeds}; {exact}",
        *([f"data: {provenance}"] if provenance else ()),
        *([f"{alone} row{'s' * (alone > 1)} with one value left out"] if alone else ()),
    ]
    return "\n".join(facts)


def _range(values: set[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _height(rows: Sequence[TableRow]) -> float:
    return max(HEIGHT, 1.2 + ROW * len(rows))


def _save(stem: Path, draw: Draw, rows: Sequence[TableRow], task: str, table: Table) -> list[Path]:
    size, title = (WIDTH, _height(rows)), _heading(table, rows, task)
    return save_figure(stem, lambda f: draw(f, rows, task), size=size, title=title)
