"""Names beside lines and points, placed so that none covers another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

SIZE = 8  # of the letters, in points
BOLD = ("luna", "softmax")  # names in bold letters
INK = "0.15"
Box = tuple[float, float, float, float]  # left, bottom, right, top


class Point(NamedTuple):
    name: str
    x: float
    y: float
    colour: Any
    spread: float = 0.0  # length of the error bar, up and down from y


class NamePlace(NamedTuple):
    """A place for a name: offset from its point (in points), and its side towards the point."""

    dx: float
    dy: float
    side: str
    far: bool  # has a line to its point


NEAR = tuple(
    NamePlace(dx, dy, side, False)
    for dx, dy, side in ((6, 0, "left"), (-6, 0, "right"), (5, 8, "left"), (5, -8, "left"),
                         (-5, 8, "right"), (-5, -8, "right"), (0, 12, "center"),
                         (0, -12, "center"))
)  # fmt: skip


def _far(radius: float, angle: float) -> NamePlace:
    dx, dy = radius * math.cos(angle), radius * math.sin(angle)
    side = "left" if dx > 0.3 * radius else "right" if dx < -0.3 * radius else "center"
    return NamePlace(dx, dy, side, True)


FAR = [_far(r, math.pi * k / 12) for r in (22, 34, 46, 60, 76, 94) for k in range(24)]
ROUNDS = 4  # in every round each name is placed again, with the others where they are


def at_ends(
    axes: Any, ends: Sequence[tuple[str, float, float, Any]], gap: float, *, ink: Any = None
) -> None:
    """A name to the right of the axes for every `(name, x, y, colour)`, at least `gap` apart (as a
    share of the height). Names have the colour `ink` or, without it, that of their line."""
    axes.get_ylim()  # fixes the limits
    to_axes = axes.transScale + axes.transLimits
    ends = sorted(ends, key=lambda end: end[2])
    places = spread([float(to_axes.transform(end[1:3])[1]) for end in ends], gap, within=(0, 1))
    for (name, x, y, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            name, xy=(x, y), xycoords="data", xytext=(1.04, place), textcoords="axes fraction",
            va="center", fontsize=SIZE, color=ink or colour, annotation_clip=False,
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
    """A name near every point, within the axes, where it covers the fewest points, bars and other
    names. Where there is no room near its point, the name is farther away, with a line."""
    figure = axes.figure
    figure.draw_without_rendering()  # fixes the layout
    inch = 72 / figure.dpi

    def at(x: float, y: float) -> tuple[float, float]:
        px, py = axes.transData.transform((x, y))
        return px * inch, py * inch

    frame: Box = tuple(v * inch for v in axes.get_window_extent().extents)
    centres = [at(p.x, p.y) for p in points]
    marks = [(x - 4, y - 4, x + 4, y + 4) for x, y in centres]
    for point in points:
        if point.spread:
            (x, low), (_, high) = (at(point.x, point.y + s * point.spread) for s in (-1, 1))
            marks.append((x - 2, low, x + 2, high))
    boxes: list[Box | None] = [None] * len(points)
    places: list[NamePlace] = [NEAR[0]] * len(points)
    for _ in range(ROUNDS):
        for i, point in enumerate(points):
            others = [box for j, box in enumerate(boxes) if box is not None and j != i]

            def cost(place: NamePlace, i: int = i, others: list[Box] = others) -> float:
                return _cost(place, points[i].name, centres[i], others, marks, frame)

            places[i] = min((*NEAR, *FAR), key=cost)
            boxes[i] = _box(places[i], point.name, centres[i])
    for point, place in zip(points, places, strict=True):
        line = {"arrowstyle": "-", "color": point.colour, "linewidth": 0.6, "shrinkA": 0,
                "shrinkB": 3, "relpos": _touching(place)}  # fmt: skip
        named = axes.annotate(
            point.name, (point.x, point.y), place[:2], textcoords="offset points", ha=place.side,
            va="center", fontsize=SIZE, color=INK, fontweight=_weight(point.name),
            parse_math=False,
            arrowprops=line if place.far else None,
            bbox={"facecolor": "w", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
        )  # fmt: skip
        named.set_in_layout(False)  # names must not change the layout they were placed in


def _cost(
    place: NamePlace,
    name: str,
    centre: tuple[float, float],
    others: Sequence[Box],
    marks: Sequence[Box],
    frame: Box,
) -> float:
    """The cost of a place: the area that the name would cover, in square points. Marks count three
    times, space outside of the axes five times; distance and lines through names cost extra."""
    box = _box(place, name, centre)
    area = (box[2] - box[0]) * (box[3] - box[1])
    covered = sum(_overlap(box, other) for other in others)
    covered += 3 * sum(_overlap(box, mark) for mark in marks)
    covered += 5 * (area - _overlap(box, frame))
    if place.far:
        covered += 10 + 0.3 * math.hypot(place.dx, place.dy)
        along = [(centre[0] + t * place.dx, centre[1] + t * place.dy) for t in (0.3, 0.5, 0.7, 0.9)]
        covered += 15 * sum(_within(spot, other) for spot in along for other in others)
    return covered


def _box(place: NamePlace, name: str, centre: tuple[float, float]) -> Box:
    width = _width(name)
    left = centre[0] + place.dx - {"left": 0, "center": width / 2, "right": width}[place.side]
    bottom = centre[1] + place.dy - 0.6 * SIZE
    return left - 1, bottom, left + width + 1, bottom + 1.2 * SIZE


@cache
def _width(name: str) -> float:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(weight=_weight(name))
    plain = name.replace("$", "S")  # no formulas in names
    return float(TextPath((0, 0), plain, size=SIZE, prop=font).get_extents().width)


def _weight(name: str) -> str:
    return "bold" if name in BOLD else "normal"


def _touching(place: NamePlace) -> tuple[float, float]:
    """Where on the box of a name its line starts."""
    return {"left": 0.0, "center": 0.5, "right": 1.0}[place.side], 0.5


def _overlap(a: Box, b: Box) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0


def _within(spot: tuple[float, float], box: Box) -> bool:
    return box[0] < spot[0] < box[2] and box[1] < spot[1] < box[3]
