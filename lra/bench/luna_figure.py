"""The picture of `lra bench luna`: one bar a method, grouped by what was measured, and the feature
map's time against hidden width."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lra.bench.figure import measured_on
from lra.figures.draw import save_figure

COLOURS = {
    "luna, the listing": "#e3a6bd",
    "luna, piecewise": "#d4709a",
    "luna, compiled": "#c94a80",
    "luna": "#c2185b",
    "linear": "#d98e04",
    "softmax, fused": "black",
}
OTHER = "#f0c060"  # linear attention as wide as LUNA's features


def draw(rows: list[dict[str, Any]], facts: dict[str, Any], stem: Path) -> list[Path]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["what"] != "feature map":
            groups.setdefault(f"{row['what']}\nn = {row['n']:,}", []).append(row)
    maps = [row for row in rows if row["what"] == "feature map"]
    bars = 1.0 + 0.26 * (len(rows) - len(maps))
    settings = facts["settings"]
    subject = (
        f"LUNA's evaluations, batch {settings['batch']}, {settings['heads']} heads of "
        f"{settings['head_dim']}, M = {settings['M']}, L = {settings['L']}, float32; medians"
    )

    def fill(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, height_ratios=[bars, 2.6])
        _bars(above, groups)
        _widths(below, maps)
        figure.suptitle(f"{subject}\n{measured_on(facts)}", fontsize=10)

    return save_figure(stem, fill, size=(10, bars + 2.8))


def _bars(axes: Any, groups: dict[str, list[dict[str, Any]]]) -> None:
    place, ticks = 0.0, []
    for title, group in groups.items():
        first = place
        for row in sorted(group, key=lambda r: -statistics.median(r["seconds"])):
            ms = 1e3 * statistics.median(row["seconds"])
            axes.barh(place, ms, color=COLOURS.get(row["name"], OTHER), height=0.8)
            axes.text(ms * 1.05, place, f"{row['name']}  {ms:,.0f}", va="center", fontsize=8)
            place += 1
        ticks.append(((first + place - 1) / 2, title))
        place += 0.8
    axes.set(xscale="log", xlabel="ms, forward and backward (a step: optimiser too)")
    axes.set_yticks(*zip(*ticks, strict=True))
    axes.set_xlim(right=axes.get_xlim()[1] * 6)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _widths(axes: Any, maps: list[dict[str, Any]]) -> None:
    """Rows are named `<evaluation>, hidden <width>`."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in maps:
        how, width = row["name"].split(", hidden ")
        lines.setdefault(how, []).append((int(width), 1e3 * statistics.median(row["seconds"])))
    for how, points in lines.items():
        name = "luna, the listing" if how == "dense" else f"luna, {how}"
        axes.plot(*zip(*points, strict=True), "o-", color=COLOURS[name], clip_on=False)
        width, ms = points[-1]
        axes.annotate(f"{how}  {ms:,.0f}", (width, ms), (6, 0), textcoords="offset points",
                      va="center", fontsize=8)  # fmt: skip
    widths = sorted({width for points in lines.values() for width, _ in points})
    axes.set(xscale="log", yscale="log", xlabel="hidden width", xlim=(widths[0], widths[-1] * 1.4))
    axes.set(ylabel=f"feature map\nn = {maps[0]['n']:,}, ms")
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.minorticks_off()
