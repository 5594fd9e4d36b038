"""The picture of `lra bench attention`, and what it shares with others: cost against length,
log-log."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

import luna
from lra.bench.sheet import MEASURES, Row, by_method, label
from luna.linear import KernelAttention

PANELS = ("train_ms", "peak_mib")
# Kinds are read from what a class says of itself: a new method finds its colour.
COLOURS = {
    "quadratic": "#8a8a8a",
    "other linear: sparse, low rank, landmarks": "#2a7f8e",
    "feature maps": "#d98e04",
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
    paths = [stem.parent / f"{stem.name}.{ending}" for ending in ("png", "svg")]
    lines = math.ceil(len(panels) / 2)
    # No date and fixed ids: the same numbers give the same file.
    with mpl.rc_context({"svg.hashsalt": "luna", "font.size": 9, "svg.fonttype": "none"}):
        figure = Figure(figsize=(13, HEIGHT), layout="constrained")
        for axes, panel in zip(figure.subplots(lines, 2).flat, panels, strict=True):
            _panel(axes, panel, gap=GAP * lines)
        rings = rings if any(panel.rings for panel in panels) else ""
        _legend(figure, [row for panel in panels for row in panel.rows], facts, rings)
        _title(figure, facts, subject)
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=130, metadata=metadata)
    return paths


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
    axes.spines[["top", "right"]].set_visible(False)
    _label(axes, ends, gap)


def _label(axes: Axes, ends: list[tuple[str, float, float, str]], gap: float) -> None:
    """A name to the right of the axes for every line, pushed apart where lines end together."""
    low, high = (math.log(y) for y in axes.get_ylim())
    ends = sorted(ends, key=lambda end: end[2])
    places = spread([(math.log(end[2]) - low) / (high - low) for end in ends], gap)
    for (name, x, y, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            name, xy=(x, y), xycoords="data", xytext=(1.04, place), textcoords="axes fraction",
            va="center", fontsize=8, color=colour, annotation_clip=False,
            fontweight="bold" if name in ("luna", "softmax") else "normal",
            arrowprops={"arrowstyle": "-", "relpos": (0, 0.5), "shrinkA": 1, "color": colour,
                        "linewidth": 0.5, "alpha": 0.7},
        )  # fmt: skip


def spread(places: list[float], gap: float) -> list[float]:
    """Rising numbers moved as little as can be (in least squares) until neighbours are `gap`
    apart: neighbours that collide share their mean offset, again and again."""
    blocks: list[tuple[float, int]] = []  # (mean of place - i gap, members), rising
    for i, place in enumerate(places):
        mean, members = place - i * gap, 1
        while blocks and blocks[-1][0] > mean:
            before, count = blocks.pop()
            mean = (before * count + mean * members) / (count + members)
            members += count
        blocks.append((mean, members))
    offsets = [mean for mean, members in blocks for _ in range(members)]
    return [offset + i * gap for i, offset in enumerate(offsets)]


def _legend(figure: Figure, rows: list[Row], facts: dict[str, Any], rings: str) -> None:
    from matplotlib.lines import Line2D

    families = {kind(row["method"]) for row in rows if label(row) != "softmax"}
    lines = [Line2D([], [], color=c, label=name) for name, c in COLOURS.items() if name in families]
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


def _title(figure: Figure, facts: dict[str, Any], subject: str) -> None:
    machine = facts["machine"]
    threads = f", {machine['threads']} thread(s)" if machine["kind"] == "cpu" else ""
    figure.suptitle(
        f"{subject} · {machine['device']}{threads} · "
        f"torch {facts['versions']['torch']} · {facts['date']}",
        fontsize=10,
    )
