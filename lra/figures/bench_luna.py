"""The picture of `lra bench luna`: bars of every evaluation in each group of measurements, and the
time of the feature map by hidden width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lra.bench.rows import BenchResult, Selection, median
from lra.figures.bench_lengths import measured_on
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
MAPS = "feature map"  # the group that has its own panel


def draw(result: BenchResult, stem: Path) -> list[Path]:
    groups: dict[str, dict[str, float]] = {}  # milliseconds by case
    for row in result.rows:
        if row.group != MAPS and row.measure.endswith("seconds") and row.values:
            group = groups.setdefault(f"{row.group}\nn = {row.n:,}", {})
            group[row.case] = 1e3 * median(row)
    bars = 1.0 + 0.26 * sum(map(len, groups.values()))
    settings = result.facts["settings"]
    subject = (
        f"LUNA's evaluations, batch {settings['batch']}, {settings['heads']} heads of "
        f"{settings['head_dim']}, M = {settings['M']}, L = {settings['L']}, float32; medians"
    )

    def fill(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, height_ratios=[bars, 2.6])
        _bars(above, groups)
        _widths(below, result.select(MAPS, "train_seconds"))
        figure.suptitle(f"{subject}\n{measured_on(result.facts)}", fontsize=10)

    return save_figure(stem, fill, size=(10, bars + 2.8))


def _bars(axes: Any, groups: dict[str, dict[str, float]]) -> None:
    place, ticks = 0.0, []
    for title, group in groups.items():
        first = place
        for name, ms in sorted(group.items(), key=lambda item: -item[1]):
            axes.barh(place, ms, color=COLOURS.get(name, OTHER), height=0.8)
            axes.text(ms * 1.05, place, f"{name}  {ms:,.0f}", va="center", fontsize=8)
            place += 1
        ticks.append(((first + place - 1) / 2, title))
        place += 0.8
    axes.set(xscale="log", xlabel="ms, forward and backward (a step: optimiser too)")
    axes.set_yticks(*zip(*ticks, strict=True))
    axes.set_xlim(right=axes.get_xlim()[1] * 6)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _widths(axes: Any, maps: Selection) -> None:
    """Cases are named `<evaluation>, hidden <width>`."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for case, rows in maps.items():
        how, hidden = case.split(", hidden ")
        ((n, row),) = rows.items()
        if row.values:
            lines.setdefault(how, []).append((int(hidden), 1e3 * median(row)))
    for how, points in lines.items():
        name = "luna, the listing" if how == "dense" else f"luna, {how}"
        axes.plot(*zip(*points, strict=True), "o-", color=COLOURS[name], clip_on=False)
        width, ms = points[-1]
        axes.annotate(f"{how}  {ms:,.0f}", (width, ms), (6, 0), textcoords="offset points",
                      va="center", fontsize=8)  # fmt: skip
    widths = sorted({width for points in lines.values() for width, _ in points})
    axes.set(xscale="log", yscale="log", xlabel="hidden width", xlim=(widths[0], widths[-1] * 1.4))
    axes.set(ylabel=f"feature map\nn = {n:,}, ms")
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.minorticks_off()
