"""Heat maps of two settings: a cell for each pair of values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from lra.figures import style as look
from lra.looks import WORDS
from lra.report.cell import Cell
from lra.report.grids import DARK, LIGHT, MIXED, Grid, colour_of_cell, ink_on, scale_of
from lra.report.table import Table


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
                scores[y, x] = np.nan if cell.mixed else cell.score
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
            axis.set_label_text(table.spec.words.get(factor, factor))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(", ".join(filter(None, [table.axis and grid.column, grid.others])))
    bar = figure.colorbar(picture, ax=list(panels.flat[: len(grids)]), fraction=0.05)
    bar.set_label(look.axis_of(table.cells))
    bar.outline.set_visible(False)
    figure.supxlabel(
        "(n): seeds; ∅, ↓: as in tables. Colours begin at one answer to everything, so that "
        "small differences look small.",
        fontsize=8,
        color=look.NOTE,
    )


def _write_cell(
    axes: Any, x: int, y: int, cell: Cell | None, scale: tuple[float, float], *, crowded: bool
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
    mean, _, rest = cell.marked.partition(" leapt: " if cell.mixed else " ")
    weight = "bold" if cell.best else "normal"
    if crowded:  # the title has the number of seeds
        axes.annotate(mean, middle, (0, 0), fontsize=7, fontweight=weight, **place)
        return
    axes.annotate(mean, middle, (0, 6), fontsize=10, fontweight=weight, **place)
    axes.annotate(rest, middle, (0, -7), fontsize=7.5, **place)
