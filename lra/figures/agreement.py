"""Accuracy of methods in one table against their accuracy in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lra.figures import labels
from lra.figures.draw import heading, save_figure
from lra.figures.labels import Point
from lra.report.looks import of_method
from lra.report.render import agreement
from lra.report.table import Agreement, Table


def write(table: Table, folder: Path) -> list[Path]:
    """The column that shares most methods with the other table, a point per method."""
    found = max(table.agreements, key=lambda a: len(a.shared))
    _, _, methods, correlation, interval = agreement(found)
    interval = f" ({interval})" if found.interval else ""

    def fill(figure: Any) -> None:
        heading(
            figure,
            f"{table.title}: {found.column}\nagainst {found.other.title}: {found.task}\n"
            f"{methods} methods, rank correlation {correlation}{interval}",
        )
        draw(figure, found)

    return save_figure(folder / f"{table.name}-against-{found.other.name}", fill, size=(7.6, 5.2))


def draw(figure: Any, found: Agreement) -> None:
    axes, points = figure.subplots(), []
    for attention, here, there in found.shared:
        look = of_method(attention)
        axes.errorbar(
            here.mean, there.mean, xerr=here.deviation, yerr=there.deviation, capsize=2, ms=6,
            fmt=look["marker"], color=look["color"], elinewidth=0.8, mec="w", mew=0.5,
        )  # fmt: skip
        points.append(Point(attention, here.mean, there.mean, look["color"], there.deviation or 0))
    axes.margins(x=0.1, y=0.1)
    axes.set_xlabel(f"{found.column}: test accuracy (%), mean ± deviation over seeds")
    axes.set_ylabel(f"{found.task}: test accuracy (%)")
    axes.grid()
    labels.beside(axes, points)
