"""The picture of `lra bench attention`, and what it shares with others: cost against length,
log-log."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

import luna
from lra.bench.sheet import MEASURES, Row, by_method, label
from lra.figures import labels
from lra.figures.draw import save_figure
from luna.linear import KernelAttention

PANELS = ("train_ms", "peak_mib")
# Kinds are read from what a class says of itself: a new method finds its colour. Each has a
# contrast of 4.5 to white, for the names.
COLOURS = {
    "quadratic": "#6f6f6f",
    "other linear: sparse, low rank, landmarks": "#2a7f8e",
    "feature maps": "#a36200",
    "luna": "#c2185b",
}
RING: dict[str, Any] = {"marker": "o", "fillstyle": "none", "ls": "", "color": "#333", "ms": 9}
HEIGHT = 7.5  # inches
GAP = 0.021  # between two labels, as a share of the height


def kind(name: str) -> str:
    cls = luna.get(name)
    if name == "luna":
        return name
    if not cls.linear_in_n:
        return "quadratic"
    return (
        "feature maps"
        if issubclass(cls, KernelAttention)
        else "other linear: sparse, low rank, landmarks"
    )


class Panel(NamedTuple):
    title: str
    rows: list[Row]
    read: Callable[[Row], float | None]
    ticks: tuple[float, ...] | None = None  # their first digits; powers of ten alone if not given
    rings: Sequence[tuple[float, float]] = ()  # (n, value)


def draw(rows: list[Row], facts: dict[str, Any], stem: Path) -> list[Path]:
    settings = facts["settings"]
    subject = (
        f"One attention, batch {settings['batch']}, {settings['heads']} heads of "
        f"{settings['head_dim']}, float32"
    )
    panels = [Panel(MEASURES[key][0], rows, MEASURES[key][1]) for key in PANELS]
    return draw_panels(panels, facts, stem, subject=subject)


def draw_panels(
    panels: Sequence[Panel], facts: dict[str, Any], stem: Path, *, subject: str, rings: str = ""
) -> list[Path]:
    """Two panels a line; `rings` says what rings are."""
    lines = math.ceil(len(panels) / 2)
    rings = rings if any(panel.rings for panel in panels) else ""

    def fill(figure: Figure) -> None:
        for axes, panel in zip(figure.subplots(lines, 2).flat, panels, strict=True):
            _panel(axes, panel, gap=GAP * lines)
        _legend(figure, [row for panel in panels for row in panel.rows], facts, rings)
        figure.suptitle(f"{subject} · {measured_on(facts)}", fontsize=10)

    return save_figure(stem, fill, size=(13, HEIGHT))


def measured_on(facts: dict[str, Any]) -> str:
    """Machine, threads, version and date, for a title."""
    machine = facts["machine"]
    many = "threads" if machine["threads"] > 1 else "thread"
    threads = f", {machine['threads']} {many}" if machine["kind"] == "cpu" else ""
    torch = facts["versions"]["torch"]
    return f"{machine['device']}{threads} · torch {torch} · {facts['date']}"


def _panel(axes: Axes, panel: Panel, *, gap: float) -> None:
    title, rows, read, ticks, rings = panel
    axes.set(xscale="log", yscale="log", xlabel="length n", title=title)
    if ticks:
        axes.yaxis.set_major_locator(LogLocator(subs=ticks))
        axes.yaxis.set_major_formatter("{x:g}")
    lengths = sorted({row["n"] for row in rows})
    ends: list[tuple[str, float, float, str]] = []
    for name, group in by_method(rows).items():
        points = [(row["n"], value) for row in group if (value := read(row)) is not None]
        if not points:
            continue
        family = kind(group[0]["method"])
        special = family == "luna" or name == "softmax"
        colour = "black" if name == "softmax" else COLOURS[family]
        axes.plot(
            *zip(*points, strict=True), color=colour, marker="o", markersize=3 if special else 2,
            linewidth=2.4 if special else 1.0, zorder=3 if special else 2,
            alpha=1.0 if special else 0.8,
        )  # fmt: skip
        if len(points) < len(group):
            axes.plot(*points[-1], color=colour, marker="x", markersize=8, zorder=3)
        ends.append((name, *points[-1], colour))
    for ring in rings:
        axes.plot(*ring, **RING)
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
    axes.grid(True, which="major", linewidth=0.4, alpha=0.5)
    labels.at_ends(axes, ends, gap)


def kind_lines(kinds: Collection[str]) -> list[Line2D]:
    """The colours of these kinds, for a legend."""
    return [Line2D([], [], color=c, label=name) for name, c in COLOURS.items() if name in kinds]


def _legend(figure: Figure, rows: list[Row], facts: dict[str, Any], rings: str) -> None:
    families = {kind(row["method"]) for row in rows if label(row) != "softmax"}
    lines = kind_lines(families)
    if any(row["method"] == "softmax" for row in rows):
        lines.append(Line2D([], [], color="black", linewidth=2.4, label="softmax, fused"))
    settings = facts["settings"]
    if any(row["stopped"] for row in rows):
        limits = f"{settings['seconds']:g} s or {settings['mib']:g} MiB"
        lines.append(
            Line2D([], [], color="#555", marker="x", ls="", label=f"the next length: over {limits}")
        )
    if rings:
        lines.append(Line2D([], [], label=rings, **RING))
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), frameon=False)
