"""The picture of `lra bench compute`: measured time and memory of a training step against its
counted FLOPs, log-log. Methods with the same FLOPs are above each other, and differ in what FLOPs
do not show."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lra.bench.rows import BenchResult, fastest
from lra.figures.bench_lengths import COLOURS, kind, kind_lines, measured_on
from lra.figures.draw import finely_ticked, save_figure
from lra.figures.labels import spread

Facts = dict[str, Any]  # of one case, counted and measured
PANELS: dict[str, Callable[[Facts], float]] = {
    "ms per step": lambda row: row["seconds"] * 1e3,
    "peak MiB": lambda row: row["peak_bytes"] / 2**20,
}
BAND = 1.15  # points whose FLOPs differ by less than this ratio share a column
GAP = 0.026  # between two names, as a share of the axis


def draw(result: BenchResult, stem: Path) -> list[Path]:
    found = {measure: result.select("step", measure) for measure in ("seconds", "peak_bytes")}
    measured: list[Facts] = []
    for (_, case), facts in result.cases.items():
        ((n, row),) = found["seconds"][case].items()
        if row.values:
            costs = {measure: fastest(rows[case][n]) for measure, rows in found.items()}
            measured.append(facts | costs)

    def fill(figure: Figure) -> None:
        for axes, (title, read) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
            _panel(axes, measured, title, read)
        kinds = kind_lines({kind(row["attention"]) for row in measured})
        figure.legend(handles=kinds, loc="outside lower center", ncols=len(kinds), frameon=False)
        step = f"A training step of {facts['task']}, batch {facts['batch']} of"
        figure.suptitle(f"{step} n = {n:,} · {measured_on(result.facts)}", fontsize=10)

    return save_figure(stem, fill, size=(13, 7))


def _panel(axes: Axes, rows: list[Facts], title: str, read: Callable[[Facts], float]) -> None:
    counted = "GFLOPs per step, counted (grey: within the budget; filled: matched)"
    axes.set(xscale="log", yscale="log", xlabel=counted, title=title)
    axes.margins(x=0.15)
    for axis in (axes.xaxis, axes.yaxis):
        finely_ticked(axis, (1, 2, 5))
    for row in rows:
        colour = COLOURS[kind(row["attention"])]
        filled = colour if row["verdict"] == "matched" else "white"
        axes.plot(row["step_flops"] / 1e9, read(row), "o", color=colour, markerfacecolor=filled)
    limited = [row for row in rows if row["flops_ratio"]]
    if limited:
        budget = limited[0]["step_flops"] / limited[0]["flops_ratio"] / 1e9
        low, high = (budget * (1 + side * limited[0]["flops_tolerance"]) for side in (-1, 1))
        axes.axvspan(low, high, color="0.93", zorder=0)
    for group in _columns(rows):
        _name(axes, group, read)
    axes.grid()


def _columns(rows: list[Facts]) -> list[list[Facts]]:
    """Groups of points that are above each other, from left to right."""
    groups: list[list[Facts]] = []
    for row in sorted(rows, key=lambda row: row["step_flops"]):
        if groups and row["step_flops"] < BAND * groups[-1][-1]["step_flops"]:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _name(axes: Axes, group: list[Facts], read: Callable[[Facts], float]) -> None:
    """Names to the right of a column of points, far enough apart to be read."""
    low, high = (math.log(y) for y in axes.get_ylim())
    group = sorted(group, key=read)
    places = spread([(math.log(read(row)) - low) / (high - low) for row in group], GAP)
    right = 1.06 * max(row["step_flops"] for row in group) / 1e9
    for row, place in zip(group, places, strict=True):
        colour = COLOURS[kind(row["attention"])]
        axes.annotate(
            row["attention"], xy=(row["step_flops"] / 1e9, read(row)),
            xytext=(right, math.exp(low + place * (high - low))), va="center", fontsize=8,
            color=colour, fontweight="bold" if row["attention"] == "luna" else "normal",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4, "alpha": 0.6},
        )  # fmt: skip
