"""Cost against length, log-log: `lra bench attention` and `causal`, and the panels of others."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import luna
from lra.bench.rows import MEASURES, BenchResult, fastest
from lra.figures import labels
from lra.figures.draw import finely_ticked, save_figure
from luna.linear import KernelAttention

PANELS = {
    "attention": ("train_seconds", "peak_bytes"),
    "causal": ("prefill_seconds", "decode_seconds", "peak_bytes", "state_bytes"),
}
# By kind of method, which follows from the class, so that a new method has a colour. Each has a
# contrast of 4.5 to white, because names are written in it.
COLOURS = {
    "quadratic": "#6f6f6f",
    "other linear: sparse, low rank, landmarks": "#2a7f8e",
    "feature maps": "#a36200",
    "luna": "#c2185b",
}
RING: dict[str, Any] = {"marker": "o", "fillstyle": "none", "ls": "", "color": "#333", "ms": 9}
Costs = dict[str, dict[int, float | None]]  # by case and length; None where it stopped
HEIGHT = 7.5  # inches
GAP = 0.021  # between two labels, as a share of the height


def kind(name: str) -> str:
    """The kind of a method, a key of COLOURS."""
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


class LengthPanel(NamedTuple):
    title: str
    group: str
    costs: Costs
    ticks: tuple[float, ...] | None = None  # digits with a tick in every power of ten (default: 1)
    rings: Sequence[tuple[float, float]] = ()  # points (n, value) that are ringed


def draw(result: BenchResult, stem: Path) -> list[Path]:
    settings = result.facts["settings"]
    subject = (
        f"One {'causal ' * (result.name == 'causal')}attention, batch {settings['batch']}, "
        f"{settings['heads']} heads of {settings['head_dim']}, float32"
    )
    panels = [_of_measure(result, measure) for measure in PANELS[result.name]]
    return draw_panels(result, panels, stem, subject=subject)


def _of_measure(result: BenchResult, measure: str) -> LengthPanel:
    title, unit, factor = MEASURES[measure]
    costs: Costs = {
        case: {n: fastest(row) * factor if row.values else None for n, row in rows.items()}
        for case, rows in result.select(result.name, measure).items()
    }
    return LengthPanel(f"{title.capitalize()}, {unit}", result.name, costs)


def draw_panels(
    result: BenchResult, panels: Sequence[LengthPanel], stem: Path, *, subject: str, rings: str = ""
) -> list[Path]:
    """Two panels per row; `rings` is the legend of rings."""
    lines = math.ceil(len(panels) / 2)
    rings = rings if any(panel.rings for panel in panels) else ""

    def fill(figure: Figure) -> None:
        for axes, panel in zip(figure.subplots(lines, 2).flat, panels, strict=True):
            _panel(axes, panel, _methods(result, panel), gap=GAP * lines)
        _legend(figure, result, panels, rings)
        figure.suptitle(f"{subject} · {measured_on(result.facts)}", fontsize=10)

    return save_figure(stem, fill, size=(13, HEIGHT))


def _methods(result: BenchResult, panel: LengthPanel) -> dict[str, str]:
    """The attention of each case."""
    return {case: result.cases[panel.group, case]["attention"] for case in panel.costs}


def measured_on(facts: dict[str, Any]) -> str:
    """Machine, threads, version of torch and date, for a title."""
    machine = facts["machine"]
    many = "threads" if machine["threads"] > 1 else "thread"
    threads = f", {machine['threads']} {many}" if machine["kind"] == "cpu" else ""
    torch = facts["versions"]["torch"]
    return f"{machine['device']}{threads} · torch {torch} · {facts['date']}"


def _panel(axes: Axes, panel: LengthPanel, methods: dict[str, str], *, gap: float) -> None:
    axes.set(xscale="log", yscale="log", xlabel="length n", title=panel.title)
    if panel.ticks:
        finely_ticked(axes.yaxis, panel.ticks)
    lengths = sorted({n for costs in panel.costs.values() for n in costs})
    ends: list[tuple[str, float, float, str]] = []
    for name, costs in panel.costs.items():
        points = [(n, value) for n, value in costs.items() if value is not None]
        if not points:
            continue
        family = kind(methods[name])
        special = family == "luna" or name == "softmax"
        colour = "black" if name == "softmax" else COLOURS[family]
        axes.plot(
            *zip(*points, strict=True), color=colour, marker="o", markersize=3 if special else 2,
            linewidth=2.4 if special else 1.0, zorder=3 if special else 2,
            alpha=1.0 if special else 0.8,
        )  # fmt: skip
        if len(points) < len(costs):
            axes.plot(*points[-1], color=colour, marker="x", markersize=8, zorder=3)
        ends.append((name, *points[-1], colour))
    for ring in panel.rings:
        axes.plot(*ring, **RING)
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
    axes.grid()
    labels.at_ends(axes, ends, gap)


def kind_lines(kinds: Collection[str]) -> list[Line2D]:
    """The legend of these kinds of methods."""
    return [Line2D([], [], color=c, label=name) for name, c in COLOURS.items() if name in kinds]


def _legend(figure: Figure, result: BenchResult, panels: Sequence[LengthPanel], rings: str) -> None:
    methods = {case: name for panel in panels for case, name in _methods(result, panel).items()}
    lines = kind_lines({kind(method) for case, method in methods.items() if case != "softmax"})
    if "softmax" in methods.values():
        lines.append(Line2D([], [], color="black", linewidth=2.4, label="softmax, fused"))
    settings = result.facts["settings"]
    if any(None in costs.values() for panel in panels for costs in panel.costs.values()):
        limits = f"{settings['seconds']:g} s or {settings['mib']:g} MiB"
        lines.append(
            Line2D([], [], color="#555", marker="x", ls="", label=f"the next length: over {limits}")
        )
    if rings:
        lines.append(Line2D([], [], label=rings, **RING))
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), frameon=False)
