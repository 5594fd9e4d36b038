"""Pathfinder images: two long snakes of dashes, short distractors, and two discs, which lie on the
same long snake (label 1) or not.

The distribution is that of drewlinsley/pathfinder (`snakes2.py`, December 2019), border quirk
included, with the parameters in the docstrings of google-research/long-range-arena
(`lra_benchmarks/data/pathfinder.py`). The random numbers are our own: an image is a function of
(settings, seed, number), whatever the number of workers.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lra.data.arrays import Example
from lra.data.parallel import ordered_map
from lra.data.pathfinder.pen import CERTAIN, Pen, Room, Stroke, add_marker, move, reverse
from lra.data.pathfinder.raster import Point, cosine, covers, scale8, sine, stamp
from lra.data.pathfinder.sizes import PathfinderSettings

VERSION = "pathfinder-generator-1"  # change it when the same seed gives other images
BLOCK = 100  # images a worker draws at a time

SEED_TRIES, TURN_TRIES, DISTRACTOR_TRIES = 3, 3, 5
DEAD_END = 255 * CERTAIN // 10_000  # a snake cannot go on when its endpoints weigh less in all
FREE = 179  # room of a cell that counts as free: its occupancy is at most 0.3
MIN_FREE = 0.01  # of the image, for another distractor


class Dash(NamedTuple):
    start: Point  # where it is drawn from: a first dash's tail, any other's endpoint
    angle: float
    stroke: Stroke


@dataclass(slots=True)
class Snake:
    dashes: list[Dash]
    pivot: Point  # around which the last dash lies
    angle: float  # direction of travel

    @property
    def tail(self) -> Point:
        return self.dashes[0].start

    @property
    def tip(self) -> Point:
        return self.dashes[-1].start


@dataclass(frozen=True)
class Scene:
    label: int  # 1: both markers on one snake
    margin: int
    targets: tuple[Snake, Snake]
    distractors: list[Snake]
    markers: tuple[Point, Point]


def sees_every_corner(cells: np.ndarray) -> bool:
    """Check that a footprint has a cell inside the image wherever it is put, even in a corner.

    The border quirk: upstream dilates with OpenCV, which gives -inf where every cell falls outside,
    and takes one such value for an image without a free cell. So the first target and every
    distractor start at some angles only; at 32x32 these span 30 degrees.
    """
    corners = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    return all((cells * corner >= 0).all(axis=1).any() for corner in corners)


def below(rng: np.random.Generator, n: int) -> int:
    """Draw from 0 ... n-1; for one number at a time many times faster than rng.integers."""
    return int(rng.random() * n)


class SnakeGrower:
    def __init__(self, settings: PathfinderSettings, margin: int) -> None:
        self.settings = settings
        self.pen = Pen(settings, margin)
        self.room = Room(self.pen, settings.side, settings.padding)
        self.angles = [degree * math.pi / 180 for degree in range(-180, 180)]
        footprints = {angle: self.pen.footprint(angle) for angle in self.angles}
        self.footprints = {a: cells for a, cells in footprints.items() if sees_every_corner(cells)}
        areas = {angle: self._first_tails(cells) for angle, cells in self.footprints.items()}
        self.first_tails = [(angle, area) for angle, area in areas.items() if all(area)]

    def targets(self, rng: np.random.Generator) -> tuple[Snake, Snake]:
        """Grow two snakes in turn; when one cannot go on, both start again."""
        while True:
            self.room.clear()
            pair = self._seeds(rng)
            if pair is not None and all(
                self._extend(snake, rng) for _ in range(self.settings.contour - 1) for snake in pair
            ):
                self._leave(pair[1])  # upstream never does so for the last dash of the first snake
                return pair

    def distractors(self, rng: np.random.Generator) -> list[Snake]:
        snakes: list[Snake] = []
        for _ in range(self.settings.distractors):
            tries = (self._distractor(rng) for _ in range(DISTRACTOR_TRIES))
            snakes += itertools.islice(filter(None, tries), 1)
        return snakes

    def _seeds(self, rng: np.random.Generator) -> tuple[Snake, Snake] | None:
        # Upstream starts again after a first seed it refuses: the law is that of those it accepts.
        first = None
        while first is None:
            angle, (rows, columns) = self.first_tails[below(rng, len(self.first_tails))]
            row, column = rows[below(rng, len(rows))], columns[below(rng, len(columns))]
            first = self._seed((row, column), angle)
        distance = self.settings.seed_distance
        for _ in range(SEED_TRIES):
            angle = self.angles[below(rng, 360)]
            around = below(rng, 360) * math.pi / 180
            tail = (round(row + distance * sine(around)), round(column + distance * cosine(around)))
            if (second := self._seed(tail, angle)) is not None:
                return first, second
        return None

    def _seed(self, tail: Point, angle: float) -> Snake | None:
        """Draw a first dash, unless its head or its pivot lies outside the image."""
        head = move(tail, angle, self.pen.length)
        pivot = move(head, reverse(angle), self.pen.radius)
        if not all(0 <= c < self.settings.side for c in (*head, *pivot)):
            return None
        return Snake([Dash(tail, angle, self.pen.stroke(angle))], pivot, angle)

    def _extend(self, snake: Snake, rng: np.random.Generator) -> bool:
        """Add one more dash, unless there is no room; most of the time is spent here."""
        heading = self.pen.heading(snake.angle)
        pivot = math.ceil(snake.pivot[0] + heading.down), math.ceil(snake.pivot[1] + heading.right)
        cumulative = self.room.weights(pivot, heading).cumsum()
        total = int(cumulative[-1])
        if total < DEAD_END:
            return False
        for _ in range(TURN_TRIES):
            turn = heading.turns[cumulative.searchsorted(below(rng, total), side="right")]
            end = pivot[0] + turn.row, pivot[1] + turn.column
            if self.room.fits(turn.stroke, end):
                self._leave(snake)
                snake.dashes.append(Dash(end, reverse(turn.angle), turn.stroke))
                snake.pivot, snake.angle = pivot, turn.angle
                return True
        return False

    def _leave(self, snake: Snake) -> None:
        """Let the snake's last dash take up room, which until now was the snake's own."""
        last = snake.dashes[-1]
        self.room.add(last.stroke, last.start)

    def _distractor(self, rng: np.random.Generator) -> Snake | None:
        snake = self._distractor_seed(rng)
        if snake is None:
            return None
        before = self.room.maps.copy()
        if all(self._extend(snake, rng) for _ in range(self.settings.distractor_contour - 1)):
            self._leave(snake)
            return snake
        self.room.maps = before
        return None

    def _distractor_seed(self, rng: np.random.Generator) -> Snake | None:
        # The padding holds the one-pixel frame that upstream adds here.
        blocked = self.room.maps[0][self.room.image] < FREE
        for _ in range(SEED_TRIES):
            angle = self.angles[below(rng, 360)]
            cells = self.footprints.get(angle)
            if cells is None or np.count_nonzero(~blocked) < MIN_FREE * blocked.size:
                return None
            free = np.flatnonzero(~covers(blocked, cells))
            if len(free) == 0:
                return None
            tail = divmod(int(free[below(rng, len(free))]), self.settings.side)
            if (snake := self._seed(tail, angle)) is not None:
                return snake
        return None

    def _first_tails(self, cells: np.ndarray) -> tuple[range, range]:
        """Give (rows, columns) from which a footprint stays clear of the frame."""
        frame = max(2 * self.settings.seed_distance, self.settings.padding)
        low, high = frame - cells.min(axis=0), self.settings.side - frame - cells.max(axis=0)
        return range(low[0], high[0]), range(low[1], high[1])


class ImageGenerator:
    def __init__(self, settings: PathfinderSettings) -> None:
        self.settings = settings
        self.stages = {margin: SnakeGrower(settings, margin) for margin in settings.margins}

    def image(self, seed: int, number: int) -> tuple[np.ndarray, Scene]:
        sequence = np.random.SeedSequence(seed, spawn_key=(number,))
        scene = self.scene(np.random.Generator(np.random.PCG64(sequence)))
        return self.render(scene), scene

    def scene(self, rng: np.random.Generator) -> Scene:
        label, margins = below(rng, 2), self.settings.margins
        margin = margins[below(rng, len(margins))]
        stage = self.stages[margin]
        targets = stage.targets(rng)
        distractors = stage.distractors(rng)
        one = below(rng, 2)
        other = one if label else 1 - one
        return Scene(label, margin, targets, distractors, (targets[one].tail, targets[other].tip))

    def render(self, scene: Scene) -> np.ndarray:
        """Draw (side, side) uint8, scaled so that 0 and 255 both occur."""
        settings = self.settings
        markers = np.zeros((settings.side, settings.side), np.uint8)
        for at in scene.markers:
            add_marker(markers, at, settings.marker_radius, settings.scale)
        layers = (
            self._ink(scene.targets, settings.contrast),
            self._ink(scene.distractors, settings.distractor_contrast),
            markers / 255,
        )
        return scale8(functools.reduce(np.maximum, layers))

    def _ink(self, snakes: Sequence[Snake], contrast: float) -> np.ndarray:
        layer = np.zeros((self.settings.side, self.settings.side), np.uint8)
        for snake in snakes:
            for dash in snake.dashes:
                stamp(layer, dash.stroke.ink, dash.start)
        return (layer / 255 * contrast).astype(np.float32)  # upstream's precision: it decides ties


def generate(
    numbers: Sequence[int] | np.ndarray,
    settings: PathfinderSettings,
    *,
    seed: int,
    workers: int = 1,
) -> Iterator[Example]:
    work = (numbers[at : at + BLOCK] for at in range(0, len(numbers), BLOCK))
    blocks = ordered_map(functools.partial(_block, settings, seed), work, workers=workers)
    return itertools.chain.from_iterable(blocks)


# A worker keeps its tables from block to block.
_image_generator = functools.lru_cache(maxsize=1)(ImageGenerator)


def _block(
    settings: PathfinderSettings, seed: int, numbers: Sequence[int] | np.ndarray
) -> list[Example]:
    drawn = (_image_generator(settings).image(seed, int(number)) for number in numbers)
    return [Example(image.reshape(-1), scene.label) for image, scene in drawn]
