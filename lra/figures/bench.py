"""The pictures of `lra bench`: a panel per measure, cost against length, or bars at one length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import luna
from lra.bench.result import BenchResult, BenchRow, ratio_by_round, title_of, with_range
from lra.figures import labels
from lra.figures.draw import panels_for, rows_for, save_figure
from luna.linear import KernelAttention

# By kind of method, which follows from the class, so that a new method has a colour. Each has a
# contrast of 4.5 to white, because names are written in it.
COLOURS = {"quadratic": "#6f6f6f", "other linear: sparse, low rank, landmarks": "#2a7f8e",
           "feature maps": "#a36200", "luna": "#c2185b", "softmax": "black"}  # fmt: skip
GAP = 0.022  # between two names, as a share of a figure's height


def draw(result: BenchResult, stem: Path) -> list[Path]:
    """Write PNG and SVG."""
    base, panels = result.facts.get("base", ""), {}
    for group, measure, rows in result.tables():
        title, factor = title_of(measure)
        panels[f"{group}, {title}"] = costs_of(rows, factor)
        if base in rows and measure.endswith("seconds"):
            title = f"{group}, {title.removesuffix(', ms')} / {base}"
            panels[title] = costs_of(rows, 1.0, rows[base])
    lines, names = rows_for(len(panels), 2), max(map(len, panels.values()))
    height = max(3.6, 1 + 0.17 * names)  # inches of a panel
    machine = result.facts["machine"]
    where = f"{machine['device']}, {machine['threads']} thread(s), {result.facts['date']}"

    def fill(figure: Any) -> None:
        grid = panels_for(figure, len(panels), 2)
        for axes, (title, rows) in zip(grid.flat, panels.items(), strict=False):
            axes.set_title(title, fontsize=10)
            one_length = len({n for points in rows.values() for n in points}) == 1
            (_draw_bars if one_length else _draw_lines)(axes, rows, 0.16 / height)
        kinds = {kind_of(case) for rows in panels.values() for case in rows}
        for name, colour in COLOURS.items():
            if name in kinds:
                figure.axes[0].plot([], [], color=colour, label=name)
        figure.legend(loc="outside lower center", ncols=len(COLOURS), frameon=False)
        figure.suptitle(f"{result.facts['title']} · {where}", fontsize=10)

    return save_figure(stem, fill, size=(13, lines * height + 1))


def costs_of(
    rows: dict[str, dict[int, BenchRow]], factor: float, base: dict[int, BenchRow] | None = None
) -> dict[str, dict[int, float]]:
    """Medians by case and length, or medians of the ratios to a base."""
    costs: dict[str, dict[int, float]] = {}
    for case, by_length in rows.items():
        for n, row in by_length.items():
            compared = base and base.get(n)
            values = ratio_by_round(row, compared) if compared else [] if base else row.values
            if values:
                costs.setdefault(case, {})[n] = median(values) * factor
    return costs


def redraw(files: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Draw each file of numbers again, beside it or in `out`."""
    return [path for file in files
            for path in draw(BenchResult.load(file), (out or file.parent) / file.stem)]  # fmt: skip


def kind_of(case: str) -> str:
    """Find the key of COLOURS of a case, which begins with the name of its attention."""
    name = re.split(r"\W", case)[0]
    if name in COLOURS:
        return name
    try:
        method = luna.get(name)
    except luna.LunaError:
        return "quadratic"
    if not method.linear_in_n:
        return "quadratic"
    mapped = issubclass(method, KernelAttention)
    return "feature maps" if mapped else "other linear: sparse, low rank, landmarks"


def _draw_bars(axes: Any, rows: dict[str, dict[int, float]], _: float) -> None:
    for place, (case, points) in enumerate(rows.items()):
        (value,) = points.values()
        axes.barh(place, value, color=COLOURS[kind_of(case)], height=0.7, alpha=0.8)
        axes.text(value, place, f" {case}  {with_range([value])}", va="center", fontsize=8)
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_xlim(right=1.6 * max(value for points in rows.values() for value in points.values()))


def _draw_lines(axes: Any, rows: dict[str, dict[int, float]], gap: float) -> None:
    axes.set(xscale="log", yscale="log", xlabel="length n")
    ends = []
    for case, points in rows.items():
        colour, bold = COLOURS[kind_of(case)], case in labels.BOLD
        axes.plot(*zip(*points.items(), strict=True), ".-", color=colour,
                  linewidth=2.4 if bold else 1.0, zorder=3 if bold else 2)  # fmt: skip
        ends.append((case, *list(points.items())[-1], colour))
    lengths = sorted({n for points in rows.values() for n in points})
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
    axes.grid()
    labels.at_ends(axes, ends, gap)
