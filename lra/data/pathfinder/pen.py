"""Pathfinder's pen: dashes, what they occupy, and where the next dash of a snake may go.

A coordinate is (row, column); an angle, in radians, turns from the columns' axis towards the rows'.
A pen owns every table that depends on an angle alone, so drawing an image costs lookups and small
array minima: no line, no resize, no dilation. The rules are those of drewlinsley/pathfinder
(`snakes.py`, December 2019), by which LRA's images were made.

Every machine draws the same: pixels, room and weights are integers, and sines come from
`lra.data.pathfinder.raster`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lra.data.pathfinder.raster import (
    LANCZOS,
    Point,
    arctan2,
    cosine,
    covers,
    dilate,
    disc,
    line,
    shrink,
    sine,
    stamp,
)
from lra.data.pathfinder.sizes import PathfinderSettings

# The weight of an endpoint straight ahead; 64 of them, each times 255 of room, fit a double.
CERTAIN = 2**38


def move(at: Point, angle: float, distance: float) -> Point:
    row, column = at
    return (math.ceil(row + distance * sine(angle)), math.ceil(column + distance * cosine(angle)))


def reverse(angle: float) -> float:
    return angle + math.pi if angle < 0 else angle - math.pi


def add_marker(layer: np.ndarray, at: Point, radius: float, scale: int) -> None:
    """A disc, drawn `scale` times larger and shrunk, composed into `layer` by maximum.

    The same pixels as from the whole enlarged image: the window ends at the image's border, or so
    far from the disc that no kernel which reaches over the window's edge sees ink.
    """
    reach = math.ceil(radius) + 2 * LANCZOS
    (row, column), (rows, columns) = at, layer.shape
    up, down = min(row, reach), min(rows - 1 - row, reach)
    left, right = min(column, reach), min(columns - 1 - column, reach)
    part = layer[row - up : row + down + 1, column - left : column + right + 1]
    np.maximum(part, _marker(radius, scale, up, down, left, right), out=part)


@lru_cache(maxsize=4096)
def _marker(radius: float, scale: int, up: int, down: int, left: int, right: int) -> np.ndarray:
    y, x = np.ogrid[-up * scale : (down + 1) * scale, -left * scale : (right + 1) * scale]
    fine = radius * scale
    return shrink(x * x + y * y <= fine * fine, (up + down + 1, left + right + 1))


class Stroke(NamedTuple):
    """One dash at one angle; every array is centred on the point it is drawn from."""

    ink: np.ndarray  # (2h+1, 2h+1) uint8
    occupancy: np.ndarray  # (2h+1, 2h+1) uint8: the dash grown by the margin
    room: np.ndarray  # (2, w, w) uint8: 255 - occupancy, 255 - its dilation; w = 2(h+m)+1
    need: np.ndarray  # (w, w) uint8: where less room than this is left, the dash does not fit


class Turn(NamedTuple):
    """One way to go on: an endpoint relative to the pivot, the way there, the dash back from it."""

    row: int
    column: int
    angle: float
    stroke: Stroke


class Heading(NamedTuple):
    """All that follows from a snake's direction of travel."""

    down: float  # from the last pivot to the next
    right: float
    turns: list[Turn]
    offsets: np.ndarray  # (turns,) of the endpoints from the pivot, in the flattened maps of `Room`
    weights: np.ndarray  # (turns,) int64: cos² of the bend, times CERTAIN


class Pen:
    def __init__(self, settings: PathfinderSettings, margin: int) -> None:
        length, self.length, self.margin = settings.length, settings.length, margin
        self.thickness, self.scale = settings.thickness, settings.scale
        self.continuity = settings.continuity
        self.half = length + math.ceil(self.thickness) + margin
        self.radius = length + margin  # of the circle of endpoints around a pivot
        # A pivot with an endpoint in the image is at most radius + 1 outside, the next a step more.
        self.pad = 2 * (self.radius + 1) + length + 2 * margin + 1
        self.width = settings.side + 2 * self.pad
        self._strokes: dict[Point, Stroke] = {}
        self._headings: dict[float, Heading] = {}
        arc = [step / self.radius for step in range(math.ceil(2 * math.pi * self.radius))]
        ends = {
            (math.floor(self.radius * sine(angle)), math.floor(self.radius * cosine(angle)))
            for angle in arc  # one pixel a step
        }
        self.turns = [
            Turn(row, column, arctan2(row, column), self.stroke(reverse(arctan2(row, column))))
            for row, column in sorted(ends)
        ]

    def stroke(self, angle: float) -> Stroke:
        """Many angles share one: on the enlarged canvas a line ends on a whole pixel."""
        centre = self.half * self.scale
        row, column = move((centre, centre), angle, self.length * self.scale)
        to = row - centre, column - centre
        if to not in self._strokes:
            ink, occupancy = self._draw(to)
            near = np.pad(occupancy, self.margin)
            far = dilate(near, disc(self.margin)).astype(np.uint8)
            # a/255 + b/255 >= 1.8 is a + b >= 459, in float32 too: b needs a room of b - 203.
            need = np.maximum(near, 203) - np.uint8(203)
            self._strokes[to] = Stroke(ink, occupancy, 255 - np.stack([near, far]), need)
        return self._strokes[to]

    def heading(self, angle: float) -> Heading:
        if angle not in self._headings:
            turns, weights = [], []
            for turn in self.turns:
                bend = abs(turn.angle - angle)
                bend = min(bend, 2 * math.pi - bend) * self.continuity
                if bend < math.pi / 2:
                    turns.append(turn)
                    weights.append(round(cosine(bend) * cosine(bend) * CERTAIN))
            offsets = [turn.row * self.width + turn.column for turn in turns]
            step = self.length + 2 * self.margin
            self._headings[angle] = Heading(
                down=step * sine(angle),
                right=step * cosine(angle),
                turns=turns,
                offsets=np.array(offsets) + self.width**2,  # the second map's
                weights=np.array(weights, np.int64),
            )
        return self._headings[angle]

    def footprint(self, angle: float) -> np.ndarray:
        """(k, 2) offsets from a seed's tail of the cells it must find free: those it fills wholly.

        Upstream draws the dash one cell below and to the right of this kernel's centre.
        """
        centre = self.length + self.margin
        kernel = np.zeros((2 * centre + 1, 2 * centre + 1), np.uint8)
        stamp(kernel, self.stroke(angle).occupancy, (centre + 1, centre + 1))
        return np.argwhere(kernel == 255) - centre

    def _draw(self, to: Point) -> tuple[np.ndarray, np.ndarray]:
        fine = line(self.half * self.scale, to, round(self.thickness * self.scale))
        reach = self.margin * self.scale
        grown = covers(fine, np.argwhere(disc(reach)) - reach)
        shape = (2 * self.half + 1, 2 * self.half + 1)
        return shrink(fine, shape), shrink(grown, shape)


class Room:
    """What is left of an image, per cell: for a dash's occupancy, and (dilated) for an endpoint.

    Both maps are padded, so that stamps need no cropping. Outside the image an endpoint finds no
    room and a dash finds all: one that would collide out there (occupancy 204 or more) covers a
    cell of the image's frame as heavily and collides with that. The dilation is kept up dash by
    dash: what lies outside reaches only cells that the frame's own dilation has filled.
    """

    def __init__(self, pen: Pen, side: int, padding: int) -> None:
        self.pen = pen
        self.image = (slice(pen.pad, pen.pad + side),) * 2
        frame = np.full((side, side), 255)
        frame[padding:-padding, padding:-padding] = 0
        self._empty = np.zeros((2, pen.width, pen.width), np.uint8)
        self._empty[0] = 255
        self._empty[0][self.image] = 255 - frame
        self._empty[1][self.image] = 255 - dilate(frame, disc(pen.margin))
        self.clear()

    def clear(self) -> None:
        self.maps = self._empty.copy()  # (2, width, width)

    def add(self, stroke: Stroke, at: Point) -> None:
        part = self._part(stroke, at)
        np.minimum(part, stroke.room, out=part)

    def fits(self, stroke: Stroke, at: Point) -> bool:
        """max(map + occupancy) < 1.8"""
        return not np.count_nonzero(self._part(stroke, at)[0] < stroke.need)

    def weights(self, pivot: Point, heading: Heading) -> np.ndarray:
        """(turns,) int64: 255 CERTAIN cos²(bend) (1 - dilated map) of each endpoint; 0 outside the
        image."""
        row, column = pivot
        origin = (row + self.pen.pad) * self.pen.width + column + self.pen.pad
        return self.maps.take(heading.offsets + origin) * heading.weights

    def _part(self, stroke: Stroke, at: Point) -> np.ndarray:
        width = len(stroke.need)
        corner = self.pen.pad - width // 2
        row, column = at[0] + corner, at[1] + corner
        return self.maps[:, row : row + width, column : column + width]
