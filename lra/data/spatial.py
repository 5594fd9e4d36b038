"""`spatial`, a probe of two dimensions: a cell of a picture asks for the colour of another one.

    3   1   4         cells with an arrow ask for the cell that is one row and one
    1   5   9>v       column further in its direction, around the edges; the answer
    2   6   5         at 9 is 2

It is what a network needs for the pixels of Image and Pathfinder, whose neighbours above and below
are a whole row away in the sequence. The cells of a picture are tokens, row by row. A token is a
colour, drawn uniformly. At `asked` cells it is a direction too, one of `directions`, which differ
in the signs of `down` and `right`. Both distances are non-zero around the edges.

What rules score that read less:

1. Colours are drawn by themselves, and the cell that is asked for is in another row and another
   column, so a rule that reads only the row or only the column of the question, or any cells
   without the right one, scores 1 / colours.
2. A rule without places knows the colours of the other cells at most, and every one is as likely to
   be the right one, so `most frequent other colour` is best, which is right in
   `largest_share(cells - 1, colours)` of all cases; a rule that reads only r fixed cells (the first
   or the last ones) sees the right one in r / cells of all cases, because questions are anywhere.
3. A rule of one dimension reads, for each direction, one distance in the sequence; this is the
   right cell but where the other edge lies between, in max(right, columns - right) / columns of all
   questions, and any other cell is right in 1 / colours of them: `one distance`.
4. One bit of the column is enough for more: with a distance for each half of the columns the edge
   lies between in 1 of 8 questions, with the default options: `one distance in each half`. A rule
   that knows more of the column does better still, up to all questions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lra.base.errors import UserError
from lra.data.arrays import IGNORED
from lra.data.recall import BLOCK, Probe, ProbeOptions, drawn, generator, sample
from lra.data.task import read_by

SIGNS = ((1, 1), (-1, -1), (1, -1), (-1, 1))  # of down and right, for each direction
ARROWS = (">v", "<^", "<v", ">^")


@dataclass
class SpatialOptions(ProbeOptions):
    rows: int = read_by("generated", default=8, least=2)
    columns: int = read_by("generated", default=8, least=2)
    down: int = read_by("generated", default=2, least=1)
    right: int = read_by("generated", default=3, least=1)
    directions: int = read_by("generated", default=4, least=1)
    asked: int = read_by("generated", default=32, least=1)
    colours: int = read_by("generated", default=8, least=2)
    n_train: int = read_by("generated", default=64_000, least=1)
    n_test: int = read_by("generated", default=1000, least=1)


class Spatial(Probe):
    name = "spatial"
    title = "the colours of cells at a distance in two dimensions"
    sources: ClassVar = drawn("spatial-generator-1")
    encoding: ClassVar = {"vocabulary": "spatial-v1"}
    Options = SpatialOptions

    def configured(self, options: dict[str, Any]) -> Spatial:
        task = copy.copy(self)
        task.classes, task.grid = options["colours"], (options["rows"], options["columns"])
        task.vocab = 1 + options["colours"] * (1 + options["directions"])
        return task

    def check_options(self, options: SpatialOptions) -> None:
        o = options
        for wrong, message in (
            (o.down >= o.rows, f"down={o.down} is not below rows={o.rows}"),
            (o.right >= o.columns, f"right={o.right} is not below columns={o.columns}"),
            (o.directions > len(SIGNS), f"directions={o.directions} is above {len(SIGNS)}"),
            (o.asked > o.rows * o.columns, f"asked={o.asked} is above the number of cells"),
        ):
            if wrong:
                raise UserError(message)

    def width(self, options: SpatialOptions, max_length: int) -> int:
        return options.rows * options.columns

    def block(self, options: SpatialOptions, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw ids and labels (BLOCK, rows x columns)."""
        o, rng = options, generator(options.seed, number)
        cells, row = o.rows * o.columns, np.arange(BLOCK)[:, None]
        colours = rng.integers(0, o.colours, (BLOCK, cells))
        asked = sample(rng, cells, o.asked)
        direction = rng.integers(0, o.directions, (BLOCK, o.asked))

        ids = 1 + colours
        ids[row, asked] += o.colours * (1 + direction)
        labels = np.full(ids.shape, IGNORED, np.int16)
        right_ones = cells_asked(o.rows, o.columns, o.down, o.right)
        labels[row, asked] = colours[row, right_ones[direction, asked]]
        return ids.astype(np.uint16), labels

    def decode(self, ids: np.ndarray) -> str:
        """Show the rows of the picture, each cell with its arrow."""
        marks, colours = np.divmod(ids.astype(np.int64) - 1, self.classes)
        words = [
            f"{colour}{('', *ARROWS)[mark]}"
            for mark, colour in zip(marks.tolist(), colours.tolist(), strict=True)
        ]
        assert self.grid is not None
        columns = self.grid[1]
        return " / ".join(" ".join(words[i : i + columns]) for i in range(0, len(words), columns))

    def rules(self, options: Mapping[str, Any]) -> dict[str, Any]:
        from lra.data.rules import Rule, from_ids

        shape = {name: options[name] for name in ("rows", "columns", "down", "right")}
        right, along, by_half = (
            cells_asked(**shape),
            cells_along(**shape),
            cells_along(**shape, parts=2),
        )
        usual = "which colour the other cells have most often"
        one = "the cell at one distance in the sequence for each direction"
        half = f"{one} and half of the columns"
        everything = "the cell at the distance in two dimensions"
        return {
            "most frequent other colour": Rule(usual, from_ids(self.usual_other)),
            "one distance": Rule(one, from_ids(lambda ids: self.colour_at(ids, along))),
            "one distance in each half": Rule(
                half, from_ids(lambda ids: self.colour_at(ids, by_half))
            ),
            "cell": Rule(everything, from_ids(lambda ids: self.colour_at(ids, right)), bound=True),
        }

    def usual_other(self, ids: np.ndarray) -> np.ndarray:
        """Answer at each cell the most frequent colour of the others."""
        colours = (ids.astype(np.int64) - 1) % self.classes
        counts = np.stack([(colours == c).sum(axis=1) for c in range(self.classes)], axis=1)
        best = np.empty_like(colours)
        for c in range(self.classes):  # the colour of the cell itself counts once less
            without = counts - (np.arange(self.classes) == c)
            best = np.where(colours == c, without.argmax(axis=1)[:, None], best)
        return best

    def colour_at(self, ids: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """Answer at each cell the colour of the one that `cells` (directions, cells) has for it."""
        marks, colours = np.divmod(ids.astype(np.int64) - 1, self.classes)
        at = cells[np.maximum(marks - 1, 0), np.arange(ids.shape[1])]
        return np.take_along_axis(colours, at, axis=1)


def cells_asked(rows: int, columns: int, down: int, right: int) -> np.ndarray:
    """Give the cell that each direction asks for at each cell: (directions, cells)."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    return np.stack(
        [(row + v * down) % rows * columns + (column + h * right) % columns for v, h in SIGNS]
    )


def cells_along(rows: int, columns: int, down: int, right: int, parts: int = 1) -> np.ndarray:
    """Give the cell at the distance in the sequence that is right most often, for each direction
    and each of so many parts of the columns: (directions, cells)."""
    cells = np.arange(rows * columns)
    part = cells % columns * parts // columns
    distance = (cells_asked(rows, columns, down, right) - cells) % len(cells)
    for here in (part == i for i in range(parts)):
        for of_direction in distance:
            of_direction[here] = np.bincount(of_direction[here]).argmax()
    return (cells + distance) % len(cells)
