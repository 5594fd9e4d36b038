"""Names beside lines and points, placed so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lra.figures.style import BOLD, INK

SIZE = 9  # of the letters, in points
LEADER = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.8}


class Point(NamedTuple):
    x: float
    y: float
    name: str
    spread: float = 0.0  # length of the error bar, up and down from y


def at_ends(axes: Any, ends: Sequence[tuple[str, float, float, Any]], gap: float) -> None:
    """A name to the right of the axes for every `(name, x, y, colour)`, at least `gap` apart (as a
    share of the height)."""
    axes.get_ylim()  # fixes the limits
    to_axes = axes.transScale + axes.transLimits
    ends = sorted(ends, key=lambda end: end[2])
    places = spread([float(to_axes.transform(end[1:3])[1]) for end in ends], gap)
    for (name, x, y, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            name, xy=(x, y), xytext=(1.05, place), textcoords="axes fraction", va="center",
            fontsize=SIZE, color=INK, annotation_clip=False, fontweight=_weight(name),
            parse_math=False, zorder=1,
            arrowprops=LEADER | {"relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 4, "linestyle": ":",
                                 "color": colour},
        )  # fmt: skip


def spread(places: Sequence[float], gap: float) -> np.ndarray:
    """Rising shares of an axis, moved as little as possible until neighbours are `gap` apart."""
    from scipy.optimize import isotonic_regression

    steps = gap * np.arange(len(places))
    moved = isotonic_regression(np.asarray(places) - steps).x if len(places) else steps
    return np.clip(moved, 0, max(0.0, 1 - gap * (len(places) - 1))) + steps


def beside(axes: Any, points: Sequence[Point]) -> None:
    """Put a name near every point: within the axes, off other names, points and error bars."""
    from adjustText import adjust_text
    from matplotlib.transforms import Bbox

    axes.figure.draw_without_rendering()  # fixes the layout
    letters = {"fontsize": SIZE, "color": INK, "ha": "center", "va": "center"}
    names = [
        axes.text(*p[:3], parse_math=False, fontweight=_weight(p.name), **letters) for p in points
    ]
    for name in names:
        name.set_in_layout(False)  # names must not change the layout they are placed in
    bars = [Bbox([(p.x, p.y - p.spread), (p.x, p.y + p.spread)]) for p in points]
    adjust_text(
        names, objects=bars, ax=axes, iter_lim=500, force_text=(0.3, 0.6), expand=(1.3, 1.8),
        prevent_crossings=False, arrowprops=LEADER,
    )  # fmt: skip


def _weight(name: str) -> str:
    return "bold" if name in BOLD else "normal"
