"""Pathfinder images: two long snakes of dashes, short distractors, and two discs, on one long snake or on both.

The distribution is that of drewlinsley/pathfinder (`snakes2.py`, December 2019), border quirk included, with the
parameters given by the builder docstrings of google-research/long-range-arena (`lra_benchmarks/data/pathfinder.py`).
The random numbers are our own: an image is a function of (settings, seed, number) alone, whatever the number of workers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from lra.config import UserError
from lra.data.draw import Pen, Point, Room, Stroke, add_marker, move, reverse, scale8, window
from lra.data.parallel import ordered_map

VERSION = "pathfinder-generator-1"  # change it when the same seed gives other images
BLOCK = 200  # images a worker draws at a time

SEED_TRIES, TURN_TRIES, DISTRACTOR_TRIES = 3, 3, 5
DEAD_END = 1e-4  # a snake cannot go on when its endpoints' weights sum to less
FREE = 179  # room of a cell that counts as free: occupancy <= 0.3
MIN_FREE = 0.01  # of the image, to try another distractor


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One kind of image. Distances are pixels; contours are counted in dashes."""

    side: int
    padding: int  # width of the frame that counts as occupied
    length: int  # of a dash
    thickness: float
    margins: tuple[int, ...]  # around a dash; each image draws one
    marker_radius: float
    seed_distance: int  # between the tails of the two targets
    continuity: float  # bends stay below 90 degrees / continuity
    contour: int
    distractors: int  # wanted; one that finds no place is left out
    contrast: float  # of a target's dash
    distractor_contrast: float
    scale: int = 2  # dashes are drawn this much larger and shrunk

    @property
    def distractor_contour(self) -> int:
        return self.contour // 3

    def __post_init__(self) -> None:
        if self.distractors < 0:
            raise UserError(
                f"distractors={self.distractors} is out of range: it must be at least 0"
            )


SIZES = {  # as "hard", the only difficulty the docstrings describe
    32: Settings(
        side=32, padding=1, length=2, thickness=0.5, margins=(1,), marker_radius=1.5, seed_distance=7,
        continuity=1.0, contour=14, distractors=20 // 4, contrast=1.5, distractor_contrast=2.0,
    ),
    64: Settings(
        side=64, padding=1, length=5, thickness=1.0, margins=(1,), marker_radius=2.5, seed_distance=12,
        continuity=1.8, contour=14, distractors=22 // 4, contrast=0.8, distractor_contrast=0.8,
    ),
    128: Settings(
        side=128, padding=1, length=5, thickness=1.5, margins=(2, 3), marker_radius=3.0, seed_distance=20,
        continuity=1.8, contour=14, distractors=35 // 4, contrast=0.9, distractor_contrast=0.9,
    ),
    256: Settings(
        side=256, padding=22, length=5, thickness=2.0, margins=(3,), marker_radius=5.0, seed_distance=27,
        continuity=1.8, contour=14, distractors=30 // 4, contrast=1.0, distractor_contrast=1.0,
    ),
}  # fmt: skip
DISTRACTOR_DASHES = {32: 20, 64: 22, 128: 35, 256: 30}  # the numerators above
CONTOURS = {"easy": 6, "intermediate": 9, "hard": 14}


def settings(side: int, difficulty: str = "hard", *, distractors: int | None = None) -> Settings:
    """The settings of `pathfinder<side>_<difficulty>`.

    How many distractors LRA asked for is documented for hard alone. By default easy and intermediate ask for as many
    as make up the same number of distractor dashes (10 and 6 at 32x32, against 5): an assumption.
    """
    for name, value, known in (("side", side, SIZES), ("difficulty", difficulty, CONTOURS)):
        if value not in known:
            raise UserError(f"{name}={value} is unknown: choose from {', '.join(map(str, known))}")
    contour = CONTOURS[difficulty]
    if distractors is None:
        distractors = DISTRACTOR_DASHES[side] // (contour // 3)
    return replace(SIZES[side], contour=contour, distractors=distractors)


class Dash(NamedTuple):
    start: Point  # where it was drawn from: a seed's tail, later the endpoint
    angle: float
    stroke: Stroke


@dataclass(slots=True)
class Snake:
    dashes: list[Dash]
    pivot: Point  # where the last dash bends away from the one before
    angle: float  # direction of travel

    @property
    def tail(self) -> Point:
        return self.dashes[0].start

    @property
    def tip(self) -> Point:
        return self.dashes[-1].start


@dataclass(frozen=True)
class Scene:
    """What an image shows."""

    label: int  # 1: both markers on one snake
    margin: int
    targets: tuple[Snake, Snake]
    distractors: list[Snake]
    markers: tuple[Point, Point]


def sees_every_corner(cells: np.ndarray) -> bool:
    """Whether a footprint has a cell inside the image wherever its centre lies, the four corners being the worst.

    Upstream dilates with OpenCV, which gives -inf where all cells fall outside, and takes one such value for a full
    image. So only some angles can ever start a first target or a distractor; at 32x32 they span 30 degrees.
    """
    return all(
        ((cells * signs) >= 0).all(axis=1).any() for signs in ((1, 1), (1, -1), (-1, 1), (-1, -1))
    )


class Stage:
    """Grows snakes on an image of one size, with dashes of one margin."""

    def __init__(self, settings: Settings, margin: int) -> None:
        self.settings = settings
        self.pen = Pen(
            side=settings.side,
            length=settings.length,
            thickness=settings.thickness,
            margin=margin,
            scale=settings.scale,
            continuity=settings.continuity,
        )
        self.room = Room(self.pen, settings.side, settings.padding)
        self.angles = [degrees * math.pi / 180 for degrees in range(-180, 180)]
        footprints = {angle: self.pen.footprint(angle) for angle in self.angles}
        self.footprints = {a: cells for a, cells in footprints.items() if sees_every_corner(cells)}
        areas = {angle: self._first_area(cells) for angle, cells in self.footprints.items()}
        self.first_areas = [(angle, area) for angle, area in areas.items() if all(area)]

    def targets(self, rng: np.random.Generator) -> tuple[Snake, Snake]:
        """Two snakes grown in turn; when either cannot go on, both start again."""
        while True:
            self.room.clear()
            pair = self._seeds(rng)
            if pair is not None and all(
                self._extend(snake, rng) for _ in range(self.settings.contour - 1) for snake in pair
            ):
                self._leave(pair[1])  # upstream forgets the last dash of the other
                return pair

    def distractors(self, rng: np.random.Generator) -> list[Snake]:
        found: list[Snake] = []
        blocked = self._blocked()
        for _ in range(self.settings.distractors):
            for _ in range(DISTRACTOR_TRIES):
                snake = self._distractor(rng, blocked)
                if snake is not None:
                    found.append(snake)
                    blocked = self._blocked()
                    break
        return found

    def _seeds(self, rng: np.random.Generator) -> tuple[Snake, Snake] | None:
        # A first seed that upstream refuses restarts the pair, so drawing from those it accepts is the same law.
        while True:
            angle, (rows, columns) = self.first_areas[below(rng, len(self.first_areas))]
            tail = rows[below(rng, len(rows))], columns[below(rng, len(columns))]
            if (first := self._seed(tail, angle)) is not None:
                break
        distance = self.settings.seed_distance
        for _ in range(SEED_TRIES):
            angle = self.angles[below(rng, 360)]
            around = below(rng, 360) * math.pi / 180
            row = round(tail[0] + distance * math.sin(around))
            column = round(tail[1] + distance * math.cos(around))
            if (second := self._seed((row, column), angle)) is not None:
                return first, second
        return None

    def _seed(self, tail: Point, angle: float) -> Snake | None:
        """The first dash, unless its head or pivot lies outside the image."""
        head = move(tail, angle, self.pen.length)
        pivot = move(head, reverse(angle), self.pen.radius)
        if not all(0 <= c < self.settings.side for c in (*head, *pivot)):
            return None
        return Snake([Dash(tail, angle, self.pen.stroke(angle))], pivot, angle)

    def _extend(self, snake: Snake, rng: np.random.Generator) -> bool:
        heading = self.pen.heading(snake.angle)
        pivot = math.ceil(snake.pivot[0] + heading.down), math.ceil(snake.pivot[1] + heading.right)
        cumulative = self.room.weights(pivot, heading).cumsum()
        if cumulative[-1] < DEAD_END:
            return False
        for _ in range(TURN_TRIES):
            pick = rng.random() * cumulative[-1]
            turn = heading.turns[cumulative.searchsorted(pick, side="right")]
            end = pivot[0] + turn.row, pivot[1] + turn.column
            if self.room.fits(turn.stroke, end):
                self._leave(snake)
                snake.dashes.append(Dash(end, reverse(turn.angle), turn.stroke))
                snake.pivot, snake.angle = pivot, turn.angle
                return True
        return False

    def _leave(self, snake: Snake) -> None:
        """The last dash becomes something to keep away from."""
        last = snake.dashes[-1]
        self.room.add(last.stroke, last.start)

    def _distractor(self, rng: np.random.Generator, blocked: np.ndarray) -> Snake | None:
        snake = self._distractor_seed(rng, blocked)
        if snake is None:
            return None
        before = self.room.maps.copy()
        if all(self._extend(snake, rng) for _ in range(self.settings.distractor_contour - 1)):
            self._leave(snake)
            return snake
        self.room.maps = before
        return None

    def _distractor_seed(self, rng: np.random.Generator, blocked: np.ndarray) -> Snake | None:
        for _ in range(SEED_TRIES):
            angle = self.angles[below(rng, 360)]
            cells = self.footprints.get(angle)
            if cells is None or blocked.mean() > 1 - MIN_FREE:
                return None
            free = np.flatnonzero(~covers(blocked, cells))
            if len(free) == 0:
                return None
            tail = divmod(int(free[below(rng, len(free))]), self.settings.side)
            if (snake := self._seed(tail, angle)) is not None:
                return snake
        return None

    def _blocked(self) -> np.ndarray:
        """(side, side) bool. The one-pixel frame that upstream adds for distractors lies within the padding."""
        return self.room.maps[0][self.room.image] < FREE

    def _first_area(self, cells: np.ndarray) -> tuple[range, range]:
        """Tails of a first target: its footprint stays clear of a frame 2 seed distances wide."""
        frame = max(2 * self.settings.seed_distance, self.settings.padding)
        low, high = frame - cells.min(axis=0), self.settings.side - frame - cells.max(axis=0)
        return range(low[0], high[0]), range(low[1], high[1])


def below(rng: np.random.Generator, n: int) -> int:
    """Uniform in 0 ... n-1; many times faster than rng.integers for a single number."""
    return int(rng.random() * n)


def covers(blocked: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Where a footprint would touch a blocked cell; cells outside the image block nothing."""
    reach = int(np.abs(cells).max())
    padded = np.pad(blocked, reach)
    rows, columns = blocked.shape
    out = np.zeros_like(blocked)
    for row, column in (cells + reach).tolist():
        out |= padded[row : row + rows, column : column + columns]
    return out


class Pathfinder:
    """Draws the images of one kind."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stages = {margin: Stage(settings, margin) for margin in settings.margins}

    def scene(self, rng: np.random.Generator) -> Scene:
        label = below(rng, 2)
        margin = self.settings.margins[below(rng, len(self.settings.margins))]
        stage = self.stages[margin]
        targets = stage.targets(rng)
        distractors = stage.distractors(rng)
        one = below(rng, 2)
        other = one if label else 1 - one
        return Scene(label, margin, targets, distractors, (targets[one].tail, targets[other].tip))

    def render(self, scene: Scene) -> np.ndarray:
        """(side, side) uint8, its darkest pixel 0 and its brightest 255."""
        settings = self.settings
        marks = np.zeros((settings.side, settings.side), np.uint8)
        for at in scene.markers:
            add_marker(marks, at, settings.marker_radius, settings.scale)
        layers = [
            self._ink(scene.targets) * (settings.contrast / 255),
            self._ink(scene.distractors) * (settings.distractor_contrast / 255),
            marks * (1 / 255),
        ]
        return scale8(functools.reduce(np.maximum, layers))

    def image(self, seed: int, number: int) -> tuple[np.ndarray, Scene]:
        """The image with this number in the series that `seed` begins."""
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
        scene = self.scene(rng)
        return self.render(scene), scene

    def _ink(self, snakes: Sequence[Snake]) -> np.ndarray:
        layer = np.zeros((self.settings.side, self.settings.side), np.uint8)
        for snake in snakes:
            for dash in snake.dashes:
                on, of = window(dash.start, dash.stroke.ink.shape[0] // 2, self.settings.side)
                np.maximum(layer[on], dash.stroke.ink[of], out=layer[on])
        return layer


class Block(NamedTuple):
    """Consecutive images of a series."""

    first: int  # number of the first
    images: np.ndarray  # (k, side, side) uint8
    labels: np.ndarray  # (k,) uint8
    margins: np.ndarray  # (k,) uint8


def generate(
    n: int,
    settings: Settings,
    *,
    seed: int,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Block]:
    """Images 0 ... n-1 of a series, in order. `progress` is told how many are done."""
    spans = (range(first, min(first + BLOCK, n)) for first in range(0, n, BLOCK))
    for block in ordered_map(functools.partial(_block, settings, seed), spans, workers=workers):
        yield block
        if progress is not None:
            progress(block.first + len(block.images))


_pathfinder = functools.lru_cache(maxsize=1)(Pathfinder)  # a worker's tables outlive its blocks


def _block(settings: Settings, seed: int, numbers: range) -> Block:
    pathfinder = _pathfinder(settings)
    images = np.empty((len(numbers), settings.side, settings.side), np.uint8)
    labels, margins = np.empty((2, len(numbers)), np.uint8)
    for i, number in enumerate(numbers):
        images[i], scene = pathfinder.image(seed, number)
        labels[i], margins[i] = scene.label, scene.margin
    return Block(numbers.start, images, labels, margins)
