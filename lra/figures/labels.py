"""Names beside lines and points, placed so that none covers another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

SIZE = 8  # of the letters, in points
BOLD = ("luna", "softmax")  # names in bold letters
INK = "0.15"
ROUNDS = 500  # of moving names apart: a limit of time would draw other pictures elsewhere
MOST_NAMES = 24  # beside points; of more, those that no cheaper point exceeds are named


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
    places = spread([float(to_axes.transform(end[1:3])[1]) for end in ends], gap, within=(0, 1))
    for (name, x, y, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            name, xy=(x, y), xycoords="data", xytext=(1.04, place), textcoords="axes fraction",
            va="center", fontsize=SIZE, color=INK, annotation_clip=False,
            fontweight=_weight(name), parse_math=False,
            arrowprops={"arrowstyle": "-", "relpos": (0, 0.5), "shrinkA": 1, "color": colour,
                        "linewidth": 0.5, "alpha": 0.7},
        )  # fmt: skip


def spread(
    places: list[float], gap: float, *, within: tuple[float, float] = (-math.inf, math.inf)
) -> list[float]:
    """Rising numbers, moved as little as possible (in least squares) until neighbours are `gap`
    apart: while neighbours collide, they get their mean offset. All lie `within` two bounds, if
    they fit."""
    blocks: list[tuple[float, int]] = []  # (mean of place - i gap, members), rising
    for i, place in enumerate(places):
        mean, members = place - i * gap, 1
        while blocks and blocks[-1][0] > mean:
            before, count = blocks.pop()
            mean = (before * count + mean * members) / (count + members)
            members += count
        blocks.append((mean, members))
    offsets = [mean for mean, members in blocks for _ in range(members)]
    low, high = within[0], within[1] - (len(places) - 1) * gap
    return [max(low, min(offset, high)) + i * gap for i, offset in enumerate(offsets)]


def beside(axes: Any, points: Sequence[Point]) -> None:
    """Put a name near every point, or with many points near those that no cheaper one exceeds:
    within the axes, off other names, points and error bars, with a line where it is far off."""
    from adjustText import adjust_text
    from matplotlib.transforms import Bbox

    axes.figure.draw_without_rendering()  # fixes the layout
    letters: dict[str, Any] = {"fontsize": SIZE, "color": INK, "ha": "center", "va": "center"}
    names = [
        axes.text(*point[:3], parse_math=False, fontweight=_weight(point.name), **letters)
        for point in _named(points)
    ]
    for name in names:
        name.set_in_layout(False)  # names must not change the layout they are placed in
    bars = [Bbox([(p.x, p.y - p.spread), (p.x, p.y + p.spread)]) for p in points]
    adjust_text(
        names, objects=bars, ax=axes, iter_lim=ROUNDS, force_text=(0.3, 0.6), expand=(1.3, 1.8),
        prevent_crossings=False, arrowprops={"arrowstyle": "-", "color": "0.5", "linewidth": 0.6},
    )  # fmt: skip


def _named(points: Sequence[Point]) -> list[Point]:
    if len(points) <= MOST_NAMES:
        return list(points)
    exceeded = {p for p in points if any(q.x <= p.x and q.y > p.y for q in points)}
    return [p for p in points if p.name in BOLD or p not in exceeded]


def _weight(name: str) -> str:
    return "bold" if name in BOLD else "normal"
