"""The change by each setting while all others are equal, as one line per level."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from lra.figures.draw import save_figure
from lra.report.render import effect
from lra.report.styles import LUNA
from lra.report.table import Table

ROW = 0.3  # inches
GREY = "0.45"
TITLES = {"dwc": "local branch (dwc)", "lr": "learning rate"}


def write_effects(table: Table, folder: Path) -> list[Path]:
    """The effects of a table: a dot per pair of runs, their mean, its 95 % interval."""
    settings = len({e.setting for e in table.effects})
    size = (7.6, 1.3 + ROW * (len(table.effects) + settings))
    stem, title = folder / f"{table.name}-effects", f"{table.title}\n{table.conditions}"
    return save_figure(stem, lambda f: draw_effects(f, table), size=size, title=title)


def draw_effects(figure: Any, table: Table) -> None:
    axes = figure.subplots()
    axes.axvline(0, color=GREY, lw=1)
    y, ticks = 0.0, dict[float, str]()
    for (setting, base), lines in groupby(table.effects, lambda e: (e.setting, e.base)):
        ticks[y] = f"{TITLES.get(setting, setting)}, against {base}"
        for line in lines:
            y -= 1
            ticks[y] = line.level
            half = line.half_width
            clear = half is not None and abs(line.mean) > half
            colour = LUNA if clear else GREY
            axes.plot(line.differences, [y] * len(line.differences), "|", color="0.6", ms=7)
            axes.errorbar(line.mean, y, xerr=half, fmt="o", color=colour, capsize=3, lw=1.8)
            _, difference, interval, pairs, _ = effect(line)
            axes.annotate(f"{difference}   [{interval}]   {pairs}", (1.02, y), va="center",
                          xycoords=axes.get_yaxis_transform(), fontsize=8)  # fmt: skip
        y -= 1.4
    axes.set_yticks([*ticks], [*ticks.values()])
    for label in axes.get_yticklabels():
        if ", against " in label.get_text():
            label.set_fontweight("bold")
        label.set_parse_math(False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(y + 0.7, 0.7)
    axes.annotate("mean   [95 % interval]   pairs (runs)", (1.02, 0), va="center", fontsize=8,
                  color=GREY, xycoords=axes.get_yaxis_transform())  # fmt: skip
    axes.set_xlabel(
        "points of test accuracy gained, all other settings equal;\n"
        "| one pair of runs, ● their mean, red where its interval leaves out 0\n"
        "(over pairs of rows; of one or two, over their seeds)"
    )
    axes.grid(axis="x")
