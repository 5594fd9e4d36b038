"""Pathfinder's pen: dashes, what they occupy, and where the next dash of a snake may go.

A coordinate is (row, column); an angle in radians turns from the columns' axis towards the rows'. A pen owns every
table that depends on an angle alone, so drawing an image costs lookups and small array maxima, no line, no resize and
no dilation. The drawing rules are those of drewlinsley/pathfinder (December 2019), whose images LRA holds.
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
    """min ... max onto 0 ... 255, the "bytescale" of SciPy before 1.3; 8-bit arrays pass unchanged."""
    if array.dtype == np.uint8:
        return array
    low, high = float(array.min()), float(array.max())
    scaled = (array - low) * (255.0 / ((high - low) or 1.0))
    return (scaled.clip(0, 255) + 0.5).astype(np.uint8)


def shrink(array: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """To (rows, columns), 8 bit in and out: the rounding between Pillow's two passes is part of the images."""
    image = Image.fromarray(scale8(array))
    return np.asarray(image.resize(shape[::-1], Image.Resampling.LANCZOS))


def dilate(array: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Grey dilation, OpenCV's: unreflected kernel anchored at its centre, cells outside the array never count."""
    ry, rx = kernel.shape[0] // 2, kernel.shape[1] // 2
    rows, columns = array.shape
    padded = np.pad(array.astype(np.float64), ((ry, ry), (rx, rx)), constant_values=-np.inf)
    out = np.full(array.shape, -np.inf)
    for i, j in np.argwhere(kernel):
        np.maximum(out, padded[i : i + rows, j : j + columns], out=out)
    return out


def window(start: Point, radius: int, side: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """A (2 radius + 1)² stamp centred on `start` in an image: (where in the image, which part of the stamp)."""
    on = [slice(max(c - radius, 0), c + radius + 1) for c in start]
    of = [slice(max(radius - c, 0), min(2 * radius + 1, side + radius - c)) for c in start]
    return (on[0], on[1]), (of[0], of[1])


@lru_cache(maxsize=4096)
def _marker(radius: float, scale: int, up: int, down: int, left: int, right: int) -> np.ndarray:
    y, x = np.ogrid[-up * scale : (down + 1) * scale, -left * scale : (right + 1) * scale]
    fine = (x * x + y * y <= (radius * scale) ** 2).astype(np.float64)
    return shrink(fine, (up + down + 1, left + right + 1))


def add_marker(layer: np.ndarray, at: Point, radius: float, scale: int) -> None:
    """A disc, drawn `scale` times larger and shrunk, composed into `layer` by maximum.

    Shrinking the whole enlarged image gives the same pixels: the window ends at the image's border, or so far from the
    disc that no kernel reaching over the window's edge sees ink.
    """
    reach = math.ceil(radius) + 2 * LANCZOS
    (row, column), (rows, columns) = at, layer.shape
    up, down = min(row, reach), min(rows - 1 - row, reach)
    left, right = min(column, reach), min(columns - 1 - column, reach)
    part = layer[row - up : row + down + 1, column - left : column + right + 1]
    np.maximum(part, _marker(radius, scale, up, down, left, right), out=part)


class Stroke(NamedTuple):
    """One dash at one angle; every array is centred on the point the dash starts from."""

    ink: np.ndarray  # (2h+1, 2h+1) uint8
    occupancy: (
        np.ndarray
    )  # (2h+1, 2h+1) uint8: the dash grown by the margin, what others keep away from
    room: (
        np.ndarray
    )  # (2, w, w) uint8: what it leaves, 255 - occupancy and 255 - its dilation; w = 2(h+m)+1
    need: np.ndarray  # (w, w) uint8: the room below which it does not fit


class Turn(NamedTuple):
    """One way to go on: an endpoint relative to the pivot, the direction of travel, the dash back from it."""

    row: int
    column: int
    angle: float
    stroke: Stroke


class Heading(NamedTuple):
    """All that follows from a snake's direction of travel."""

    down: float  # from the last pivot to the next
    right: float
    turns: list[Turn]
    offsets: np.ndarray  # (turns,) of the endpoints, in the flattened maps of `Room`
    weights: np.ndarray  # (turns,) cos² of the bend, over 255


class Pen:
    """Dashes of one length, thickness and margin on an image of one size, with every table they need."""

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
        if round(thickness * scale) != thickness * scale:
            raise ValueError(f"thickness {thickness} times scale {scale} must be a whole number")
        self.length, self.thickness, self.margin, self.scale = length, thickness, margin, scale
        self.continuity = continuity
        self.half = length + math.ceil(thickness) + margin
        self.radius = length + margin  # of the circle of endpoints around a pivot
        # A pivot that had an endpoint in the image is at most radius + 1 outside, the next one a step further.
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
            ink, occupancy = self._dash(angle)
            around = np.pad(occupancy, self.margin)
            wide = dilate(around, disc(self.margin)).astype(np.uint8)
            # Occupancies a and b collide when a/255 + b/255 >= 1.8: a + b >= 459, 255 - a <= b - 204.
            need = np.maximum(around, 203) - np.uint8(203)
            room = 255 - np.stack([around, wide])
            self._strokes[angle] = Stroke(ink, occupancy, room, need)
        return self._strokes[angle]

    def heading(self, angle: float) -> Heading:
        if angle not in self._headings:
            bends = np.abs(np.array([turn.angle for turn in self.turns]) - angle)
            bends = np.minimum(bends, 2 * np.pi - bends) * self.continuity
            ahead = np.flatnonzero(bends < np.pi / 2)
            turns = [self.turns[i] for i in ahead]
            step = self.length + 2 * self.margin
            self._headings[angle] = Heading(
                down=step * math.sin(angle),
                right=step * math.cos(angle),
                turns=turns,
                offsets=np.array([turn.row * self.width + turn.column for turn in turns])
                + self.width**2,
                weights=np.cos(bends[ahead]) ** 2 / 255,
            )
        return self._headings[angle]

    def footprint(self, angle: float) -> np.ndarray:
        """(k, 2) offsets of the cells a seed at this angle must find free: those that its occupancy fills wholly.

        The dash starts one cell below and right of the kernel's centre, as upstream draws it.
        """
        centre = self.length + self.margin
        kernel = np.zeros((2 * centre + 1, 2 * centre + 1), np.uint8)
        on, of = window((centre + 1, centre + 1), self.half, len(kernel))
        kernel[on] = self.stroke(angle).occupancy[of]
        return np.argwhere(kernel == 255) - centre

    def _dash(self, angle: float) -> tuple[np.ndarray, np.ndarray]:
        """Ink and occupancy, drawn `scale` times larger and shrunk."""
        centre = self.half * self.scale
        canvas = Image.new("F", (2 * centre + 1, 2 * centre + 1))
        row, column = move((centre, centre), angle, self.length * self.scale)
        width = round(self.thickness * self.scale)
        ImageDraw.Draw(canvas).line([(centre, centre), (column, row)], fill=255, width=width)
        line = np.asarray(canvas)
        grown = dilate(line, disc(self.margin * self.scale)).astype(np.uint8)
        shape = (2 * self.half + 1, 2 * self.half + 1)
        return shrink(line, shape), shrink(grown, shape)


class Room:
    """What is left of an image: at each cell for a dash's occupancy, and (dilated) for an endpoint.

    Both maps are padded so that no stamp is ever cropped. Outside the image there is no room for an endpoint and, for
    a dash, all room: a dash that reaches out of the image with an occupancy that could collide (204 or more) covers a
    cell of the frame with as much, and collides there. The occupancies' dilation is kept up stamp by stamp, which is
    exact because what a dash occupies outside the image only reaches cells that the frame's own dilation has filled.
    """

    def __init__(self, pen: Pen, side: int, padding: int) -> None:
        self.pen = pen
        frame = np.full((side, side), 255.0)
        frame[padding:-padding, padding:-padding] = 0
        self.image = (slice(pen.pad, pen.pad + side),) * 2
        self._empty = np.zeros((2, pen.width, pen.width), np.uint8)
        self._empty[0] = 255
        self._empty[0][self.image] = 255 - frame
        self._empty[1][self.image] = 255 - dilate(frame, disc(pen.margin))
        self.maps = self._empty.copy()

    def clear(self) -> None:
        self.maps = self._empty.copy()

    def add(self, stroke: Stroke, at: Point) -> None:
        part = self._part(stroke, at)
        np.minimum(part, stroke.room, out=part)

    def fits(self, stroke: Stroke, at: Point) -> bool:
        """max(map + occupancy) < 1.8"""
        return not (self._part(stroke, at)[0] < stroke.need).any()

    def weights(self, pivot: Point, heading: Heading) -> np.ndarray:
        """(turns,) cos²(bend) times what is free of each endpoint; 0 outside the image."""
        row, column = pivot
        origin = (row + self.pen.pad) * self.pen.width + column + self.pen.pad
        return self.maps.take(heading.offsets + origin) * heading.weights

    def _part(self, stroke: Stroke, at: Point) -> np.ndarray:
        width = len(stroke.need)
        corner = self.pen.pad - width // 2
        row, column = at[0] + corner, at[1] + corner
        return self.maps[:, row : row + width, column : column + width]
