"""The picture of `lra bench luna`: one bar a method, grouped by what was measured."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

COLOURS = {
    "luna, the listing": "#e3a6bd",
    "luna, piecewise": "#d4709a",
    "luna, compiled": "#c94a80",
    "luna": "#c2185b",
    "linear": "#d98e04",
    "softmax, fused": "black",
}
OTHER = "#f0c060"  # linear attention as wide as LUNA's features


def draw(rows: list[dict[str, Any]], stem: Path) -> list[Path]:
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "svg")]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["what"] != "feature map":
            groups.setdefault(f"{row['what']}\nn = {row['n']:,}", []).append(row)
    # No date and fixed ids: the same numbers give the same file.
    with mpl.rc_context({"svg.hashsalt": "luna", "font.size": 9, "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 1.6 + 0.26 * len(rows)), layout="constrained")
        axes = figure.subplots()
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
        axes.spines[["top", "right", "left"]].set_visible(False)
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=130, metadata=metadata)
    return paths
