"""Pathfinder's pen: dashes, what they occupy, and where the next dash of a snake may go.

A coordinate is (row, column); an angle, in radians, turns from the columns' axis towards the rows'.
A pen owns every table that depends on an angle alone, so drawing an image costs lookups and small
array minima: no line, no resize, no dilation. The rules are those of drewlinsley/pathfinder
(`snakes.py`, December 2019), by which LRA's images were made.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

Point = tuple[int, int]
LANCZOS = 3  # support of the kernel, in pixels of the smaller image


def move(at: Point, angle: float, distance: float) -> Point:
    """A step from `at`, both coordinates rounded up."""
    row, column = at
    return (
        math.ceil(row + distance * math.sin(angle)),
        math.ceil(column + distance * math.cos(angle)),
    )


def reverse(angle: float) -> float:
    """The opposite direction, in [-pi, pi]."""
    return angle + math.pi if angle < 0 else angle - math.pi


def disc(radius: int) -> np.ndarray:
    """(2r+1, 2r+1) bool."""
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return x * x + y * y <= radius * radius


def scale8(array: np.ndarray) -> np.ndarray:
    """min ... max onto 0 ... 255 (SciPy's old bytescale); 8-bit arrays stay as they are."""
    if array.dtype == np.uint8:
        return array
    low, high = float(array.min()), float(array.max())
    scaled = (array - low) * (255.0 / ((high - low) or 1.0))
    return (scaled.clip(0, 255) + 0.5).astype(np.uint8)


def shrink(array: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Lanczos to (rows, columns), on 8 bits: Pillow rounds between its passes, and so must we."""
    image = Image.fromarray(scale8(array))
    return np.asarray(image.resize(shape[::-1], Image.Resampling.LANCZOS))


def dilate(array: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """OpenCV's grey dilation: the kernel unreflected and anchored at its centre, -inf outside."""
    ry, rx = kernel.shape[0] // 2, kernel.shape[1] // 2
    rows, columns = array.shape
    padded = np.pad(array.astype(np.float64), ((ry, ry), (rx, rx)), constant_values=-np.inf)
    out = np.full(array.shape, -np.inf)
    for i, j in np.argwhere(kernel):
        np.maximum(out, padded[i : i + rows, j : j + columns], out=out)
    return out


def covers(blocked: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Where a shape of these (k, 2) offsets would touch a blocked cell; outside nothing blocks."""
    reach = int(np.abs(cells).max())
    padded = np.pad(blocked, reach)
    rows, columns = blocked.shape
    out = np.zeros_like(blocked)
    for row, column in (cells + reach).tolist():
        out |= padded[row : row + rows, column : column + columns]
    return out


def stamp(layer: np.ndarray, mark: np.ndarray, at: Point) -> None:
    """Compose a square mark, centred on `at`, into a square layer by maximum, cropped."""
    half = len(mark) // 2
    inside = tuple(slice(max(c - half, 0), c + half + 1) for c in at)
    part = tuple(slice(max(half - c, 0), half + len(layer) - c) for c in at)
    np.maximum(layer[inside], mark[part], out=layer[inside])


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
    fine = (x * x + y * y <= (radius * scale) ** 2).astype(np.float64)
    return shrink(fine, (up + down + 1, left + right + 1))


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
    weights: np.ndarray  # (turns,) cos² of the bend, over 255


class Pen:
    """Dashes of one length, thickness and margin on images of one size."""

    def __init__(
        self,
        *,
        side: int,
        length: int,
        thickness: float,
        margin: int,
        scale: int,
        continuity: float,
    ) -> None:
        self.length, self.thickness, self.margin, self.scale = length, thickness, margin, scale
        self.continuity = continuity
        self.half = length + math.ceil(thickness) + margin
        self.radius = length + margin  # of the circle of endpoints around a pivot
        # A pivot with an endpoint in the image is at most radius + 1 outside, the next a step more.
        self.pad = 2 * (self.radius + 1) + length + 2 * margin + 1
        self.width = side + 2 * self.pad
        self._strokes: dict[float, Stroke] = {}
        self._headings: dict[float, Heading] = {}
        arc = np.deg2rad(np.arange(0, 360, 360 / (2 * self.radius * np.pi)))  # one pixel a step
        circle = self.radius * np.stack([np.sin(arc), np.cos(arc)], axis=1)
        ends = np.unique(np.floor(circle).astype(int), axis=0)
        angles = np.arctan2(ends[:, 0], ends[:, 1]).tolist()
        self.turns = [
            Turn(row, column, angle, self.stroke(reverse(angle)))
            for (row, column), angle in zip(ends.tolist(), angles, strict=True)
        ]

    def stroke(self, angle: float) -> Stroke:
        if angle not in self._strokes:
            ink, occupancy = self._draw(angle)
            near = np.pad(occupancy, self.margin)
            far = dilate(near, disc(self.margin)).astype(np.uint8)
            # a/255 + b/255 >= 1.8 is a + b >= 459, in float32 too: b needs a room of b - 203.
            need = np.maximum(near, 203) - np.uint8(203)
            self._strokes[angle] = Stroke(ink, occupancy, 255 - np.stack([near, far]), need)
        return self._strokes[angle]

    def heading(self, angle: float) -> Heading:
        if angle not in self._headings:
            bends = np.abs(np.array([turn.angle for turn in self.turns]) - angle)
            bends = np.minimum(bends, 2 * np.pi - bends) * self.continuity
            ahead = np.flatnonzero(bends < np.pi / 2)
            turns = [self.turns[i] for i in ahead]
            offsets = [turn.row * self.width + turn.column for turn in turns]
            step = self.length + 2 * self.margin
            self._headings[angle] = Heading(
                down=step * math.sin(angle),
                right=step * math.cos(angle),
                turns=turns,
                offsets=np.array(offsets) + self.width**2,  # the second map's
                weights=np.cos(bends[ahead]) ** 2 / 255,
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

    def _draw(self, angle: float) -> tuple[np.ndarray, np.ndarray]:
        """Ink and occupancy, drawn `scale` times larger and shrunk."""
        centre = self.half * self.scale
        canvas = Image.new("F", (2 * centre + 1, 2 * centre + 1))
        row, column = move((centre, centre), angle, self.length * self.scale)
        width = round(self.thickness * self.scale)
        ImageDraw.Draw(canvas).line([(centre, centre), (column, row)], fill=255, width=width)
        line = np.asarray(canvas)
        around = np.argwhere(disc(self.margin * self.scale)) - self.margin * self.scale
        grown = covers(line > 0, around) * np.uint8(255)
        shape = (2 * self.half + 1, 2 * self.half + 1)
        return shrink(line, shape), shrink(grown, shape)


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
        """(turns,) cos²(bend) (1 - dilated map) of each endpoint; 0 outside the image."""
        row, column = pivot
        origin = (row + self.pen.pad) * self.pen.width + column + self.pen.pad
        return self.maps.take(heading.offsets + origin) * heading.weights

    def _part(self, stroke: Stroke, at: Point) -> np.ndarray:
        width = len(stroke.need)
        corner = self.pen.pad - width // 2
        row, column = at[0] + corner, at[1] + corner
        return self.maps[:, row : row + width, column : column + width]
