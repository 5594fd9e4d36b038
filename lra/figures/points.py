"""Points of a picture, each with its name beside it: off other points and their error bars, off
other names, and off lines where there is room. A name is where it costs least among fixed places,
so the same points always give the same picture."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lra.figures.style import INK, LEADER, NAMED, OTHERS, ticked, weight

REACH = 4.0  # points (1/72 inch) that a marker, or half of a bar's caps, reaches from its middle
DIRECTIONS, DISTANCES = 16, 8  # of the places that are tried for a name
# What speaks against a place: it leaves the axes, covers something, is nearer to another point than
# to its own, or crosses a line; and each of its own sizes that it is away.
OUTSIDE, COVERS, MISLEADS, CROSSES = 1000, 100, 4, 2


class Point(NamedTuple):
    x: float
    y: float
    name: str
    spread: float = 0.0  # length of the error bar, up and down from y


def draw_front(
    axes: Any,
    points: Sequence[Point],
    styles: Sequence[dict[str, Any]],
    known: Collection[int] = (),
) -> None:
    """Draw points over a cost. The line joins those that no cheaper one exceeds; of many points
    these, the best two and the `known` ones are named, and the others grey."""
    front, best = list[Point](), sorted(p.y for p in points)[-2:]
    for point in sorted(points, key=lambda p: (p.x, -p.y)):
        front += [point] if not front or point.y > front[-1].y else []
    special = [
        point
        for i, point in enumerate(points)
        if len(points) <= NAMED or point in front or point.y in best or i in known
    ]
    for point, style in zip(points, styles, strict=True):
        axes.errorbar(
            point.x,
            point.y,
            yerr=point.spread or None,
            fmt=style["marker"],
            capsize=2,
            ms=6.5,
            mfc="none",  # points that lie on each other are both seen
            mew=1.6,
            color=style["color"] if point in special else OTHERS,
            elinewidth=0.8,
            zorder=style["zorder"],
        )
    # Corners of a step after each point; path_of sees them, but not those of axes.step
    corners = np.repeat([point[:2] for point in front], 2, axis=0)
    axes.plot(corners[1:, 0], corners[:-1, 1], color=OTHERS, lw=1, zorder=1)
    axes.set_xscale("log")
    ticked(axes.xaxis)
    axes.margins(x=0.14, y=0.12)
    axes.grid()
    beside(axes, special, [point for point in points if point not in special])


def beside(axes: Any, points: Sequence[Point], others: Sequence[Point] = ()) -> None:
    """Put a name near every point, and keep off `others`, which have none. The names of points that
    are close to each other are placed first."""
    from matplotlib.text import Text

    axes.figure.draw_without_rendering()  # fixes the layout
    all_points = (*points, *others)
    lines = np.concatenate([np.empty((0, 2)), *map(path_of, axes.lines)])
    boxes = np.array([box_of(axes, point) for point in all_points])
    taken = Taken(boxes, len(all_points), lines, axes.bbox)
    at = axes.transData.transform([point[:2] for point in points])
    near = np.sort(np.linalg.norm(at[:, None] - at, axis=-1), axis=1)[:, :3].sum(1)
    for i in np.argsort(near, kind="stable"):
        name = write(axes, points[i])
        extent = Text.get_window_extent(name)  # that of an annotation has its leader, too
        half = np.array([extent.width, extent.height]) / 2 + 2
        best = min(places(at[i], half), key=lambda place: taken.cost(i, place))
        name.set_position(best.shift * 72 / axes.figure.dpi)
        taken.boxes = np.vstack([taken.boxes, best.box, *best.leader])


def write(axes: Any, point: Point) -> Any:
    """The name of a point, on it, with a leader to it once it is moved."""
    name = axes.annotate(
        point.name,
        point[:2],
        (0, 0),
        textcoords="offset points",
        color=INK,
        ha="center",
        va="center",
        parse_math=False,
        fontweight=weight(point.name),
        arrowprops=LEADER | {"shrinkB": REACH},
    )
    name.set_in_layout(False)  # names must not change the layout they are placed in
    return name


# ---------------------------------------------------------------------- places, in pixels


class Place(NamedTuple):
    """A place for a name: its middle is `shift` away from the point."""

    point: np.ndarray  # (2,)
    shift: np.ndarray  # (2,)
    half: np.ndarray  # (2,), half of the name's width and height

    @property
    def box(self) -> np.ndarray:
        middle = self.point + self.shift
        return np.concatenate([middle - self.half, middle + self.half])

    @property
    def leader(self) -> list[np.ndarray]:
        """Boxes without a size along the line from the point to the name."""
        return [np.tile(self.point + share * self.shift, 2) for share in np.linspace(0, 0.7, 12)]


def places(point: np.ndarray, half: np.ndarray) -> list[Place]:
    angles = np.arange(DIRECTIONS) * 2 * math.pi / DIRECTIONS
    ways = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    # An ellipse as wide as the name, so that to the side of a point its end is near, not its middle
    radii = [2 * distance * half[1] + half * (0.9, 0.2) for distance in range(1, DISTANCES + 1)]
    return [Place(point, way * radius, half) for radius in radii for way in ways]


@dataclass
class Taken:
    """What a name keeps off. A box is (left, bottom, right, top)."""

    boxes: np.ndarray  # (n, 4), of points, then of names and leaders
    points: int  # how many of the boxes are points
    lines: np.ndarray  # (n, 2), points along drawn lines
    within: Any

    def cost(self, i: int, place: Place) -> float:
        """What speaks against a place for the name of the i-th point."""
        box, boxes = place.box, self.boxes
        outside = np.any(box[:2] < self.within.min) or np.any(box[2:] > self.within.max)
        covers = overlaps(box, boxes).sum()
        others = np.delete(boxes, i, axis=0)  # a leader begins on its own point
        covers += np.mean([overlaps(part, others).any() for part in place.leader])
        misleads = np.argmin(gaps(box, boxes[: self.points])) != i
        crosses = np.all((box[:2] < self.lines) & (self.lines < box[2:]), axis=1).any()
        away = np.linalg.norm(place.shift / place.half)
        cost = OUTSIDE * outside + COVERS * covers + MISLEADS * misleads + CROSSES * crosses
        return float(cost + away)


def box_of(axes: Any, point: Point) -> np.ndarray:
    """The box of a marker, its error bar and the bar's caps."""
    ends = axes.transData.transform([(point.x, point.y + d * point.spread) for d in (-1, 1)])
    reach = REACH * axes.figure.dpi / 72
    return np.concatenate([ends[0] - reach, ends[1] + reach])


def path_of(line: Any) -> np.ndarray:
    """Points along a drawn line; none of a marker alone."""
    path = line.get_path()
    if len(path.vertices) < 2 or line.get_linestyle() == "None":
        return np.empty((0, 2))
    return np.asarray(line.get_transform().transform_path(path).interpolated(64).vertices)


def overlaps(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Which of the boxes (n, 4) this one overlaps."""
    return np.all((box[:2] < boxes[:, 2:]) & (box[2:] > boxes[:, :2]), axis=1)


def gaps(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """How far each of the boxes (n, 4) is from this one."""
    apart = np.maximum(boxes[:, :2] - box[2:], box[:2] - boxes[:, 2:])
    return np.linalg.norm(np.maximum(apart, 0), axis=1)
