"""Figures of `lra bench`: a panel per measure, with lines over lengths or dots at one length."""

from __future__ import annotations

import math
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pandas as pd

from lra.bench.result import BenchResult, title_of, with_range
from lra.figures.style import INK, dashed, draw_lines, panels_for, save_figure, style_of, ticked
from lra.looks import LUNA, look_of

LEFT_OUT = ("flops", "parameters", "plain_seconds")  # counted, or of an older version's rivals
SIZES = ("batch", "heads", "head_dim", "M", "L", "hidden")
Costs = dict[str, pd.DataFrame]  # of every case, by length: median, least, largest of all rounds


def draw(arguments: Namespace) -> list[Path]:
    """Draw each file of numbers again, beside it or in another folder."""
    stems = [(arguments.out or file.parent) / file.stem for file in arguments.files]
    drawn = map(draw_bench, map(BenchResult.load, arguments.files), stems)
    return [path for paths in drawn for path in paths]


def costs_of(result: BenchResult) -> dict[str, dict[str, Costs]]:
    """Costs by group, then by measure; a group of up to three lengths is divided by length."""
    groups: dict[str, dict[str, Costs]] = {}
    for group, measure, values in result.tables():
        title, factor = title_of(measure)
        costs = {
            case: (factor * values[case].dropna())
            .groupby("n")
            .agg(mean="median", min="min", max="max")
            for case in values
        }
        lengths = sorted({n for line in costs.values() for n in line.index})
        divided = {f"{group}, n = {n:,}" if n else group: [n] for n in lengths}
        parts = divided if len(lengths) < 4 else {group: lengths}
        for name, part in parts.items() if measure not in LEFT_OUT else ():
            of_part = {case: line[line.index.isin(part)] for case, line in costs.items()}
            of_part = {case: line for case, line in of_part.items() if len(line)}
            groups.setdefault(name, {})[title] = of_part
    return groups


def draw_bench(result: BenchResult, stem: Path) -> list[Path]:
    """Two panels side by side, the time and the memory of a group."""
    facts, settings = result.facts, result.facts.get("settings", {})
    groups = sorted(costs_of(result).items(), key=lambda item: len(item[1]) % 2)  # pairs first
    panels = [
        (f"{group}\n{title}" if len(groups) > 1 else title, costs)
        for group, measures in groups
        for title, costs in measures.items()
    ]
    stopped = {row.case: row.stopped for row in result.rows if row.stopped}
    notes = [
        "{device}, threads {threads}".format(**facts["machine"]),
        facts["date"],
        *(f"{key.replace('_', ' ')} {settings[key]}" for key in SIZES if key in settings),
        f"median and range of rounds: {max(len(row.values) for row in result.rows)}",
        *(f"× the next length stopped: {why}" for why in sorted(set(stopped.values()))),
    ]
    height = max(2.2, 0.9 + 0.155 * max(len(costs) for _, costs in panels))  # inches of a panel

    def fill(figure: Any) -> None:
        grid = panels_for(figure, len(panels), 2)
        for axes, (title, costs) in zip(grid.flat, panels, strict=False):
            axes.set_title(title)
            if any(len(line) > 1 for line in costs.values()):
                _lines(axes, costs, set(stopped), gap=0.155 / (height - 0.7))
            else:
                _dots(axes, costs)

    title = f"{facts['title']}\n{', '.join(notes)}"
    return save_figure(stem, fill, title, math.ceil(len(panels) / 2) * height + 0.6)


def _lines(axes: Any, costs: Costs, stopped: set[str], gap: float) -> None:
    styles = [style or {"color": INK} for style in dashed([style_of(_method(c)) for c in costs])]
    lines = [(case, line, style) for (case, line), style in zip(costs.items(), styles, strict=True)]
    axes.set(xscale="log", yscale="log", xlabel="length n")
    for case, line, style in lines:
        if case in stopped:
            last = line["mean"].iloc[-1:]
            axes.plot(last.index, last, "x", color=style["color"], ms=8, zorder=5)
    draw_lines(axes, [(_name(case), *drawn) for case, *drawn in lines], gap)
    lengths = sorted({n for line in costs.values() for n in line.index})
    shown = [f"{n:,}" if (len(lengths) - i) % 2 else "" for i, n in enumerate(lengths)]
    axes.set_xticks(lengths, shown)
    axes.minorticks_off()
    ticked(axes.yaxis)


def _method(case: str) -> str:
    """The attention with whose name a case begins."""
    return re.split(r"\W", case)[0]


def _name(case: str) -> str:
    """`Softmax, fused`"""
    method = _method(case)
    return look_of(method).name + case.removeprefix(method)


def _dots(axes: Any, costs: Costs) -> None:
    """A dot per case with its range; the number stands beside it."""
    for place, (case, line) in enumerate(costs.items()):
        middle, low, high = line.iloc[0]
        colour, reach = LUNA if case.startswith("luna") else INK, [[middle - low], [high - middle]]
        axes.errorbar(middle, place, xerr=reach, fmt="o", color=colour, capsize=2)
        axes.annotate(
            with_range([middle]), (high, place), (6, 0), va="center", textcoords="offset points"
        )
    axes.margins(x=0.2)
    low, high = axes.dataLim.intervalx
    if high > 5 * low > 0:
        axes.set_xscale("log")
        ticked(axes.xaxis, (1,) if high > 50 * low else (1, 3))
    else:
        axes.set_xlim(0, 1.2 * high or 1)  # nothing at all was used
    axes.set_yticks(range(len(costs)), [_name(case) for case in costs])
    axes.set_ylim(len(costs) - 0.4, -0.6)
    axes.grid(axis="x")
