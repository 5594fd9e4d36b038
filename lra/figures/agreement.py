"""Accuracy of methods in one table against their accuracy in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lra.figures import labels
from lra.figures.draw import save_figure
from lra.figures.labels import Point
from lra.report.render import agreement
from lra.report.styles import of_method
from lra.report.table import Agreement, Table


def write_agreement(table: Table, folder: Path) -> list[Path]:
    """The column that shares most methods with the other table, a point per method."""
    best = max(table.agreements, key=lambda a: len(a.shared))
    _, _, methods, correlation, interval = agreement(best)
    interval = f" ({interval})" if best.interval else ""
    title = (
        f"{table.title}: {best.column}\nagainst {best.other.title}: {best.task}\n"
        f"{methods} methods, rank correlation {correlation}{interval}"
    )
    stem = folder / f"{table.name}-against-{best.other.name}"
    return save_figure(stem, lambda f: draw_agreement(f, best), size=(7.6, 5.2), title=title)


def draw_agreement(figure: Any, order: Agreement) -> None:
    axes, points = figure.subplots(), []
    for attention, here, there in order.shared:
        style = of_method(attention)
        axes.errorbar(
            here.mean, there.mean, xerr=here.deviation, yerr=there.deviation, capsize=2, ms=6,
            fmt=style["marker"], color=style["color"], elinewidth=0.8, mec="w", mew=0.5,
        )  # fmt: skip
        points.append(Point(here.mean, there.mean, attention, there.deviation or 0))
    axes.margins(x=0.1, y=0.1)
    axes.set_xlabel(f"{order.column}: test accuracy (%), mean ± deviation over seeds")
    axes.set_ylabel(f"{order.task}: test accuracy (%)")
    axes.grid()
    labels.beside(axes, points)
