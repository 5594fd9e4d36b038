"""Panels of examples, one below another: tokens in boxes or pictures, and beside them the answer.

All sizes are in points, each a pixel where a phone shows the figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lra.figures.schemes import BAND
from lra.figures.style import INK, NOTE, OTHERS

LEFT, WIDE, COLUMN = 4.3, 334.4, 92.0  # COLUMN: where it is said what is asked
LINE, ROW, BOX, GAP, BARS = 17.0, 21.0, 18.0, 18.0, 28.0  # heights
LETTER, ALONE, CLOSE = 7.25, 8.0, 2.85  # of a box: a letter, and what is beside it
MANY = 12  # boxes of a row that stand close
SIDES = {32: 100.8, 128: 172.8}  # of pictures: whole numbers of the file's pixels for each
Spot = tuple[int, int]  # row and column of a box


class Boxes(NamedTuple):
    rows: list[list[str]]  # a box for each token; an empty row is a gap
    answer: str
    asked: Spot | None = None
    shaded: Sequence[Spot] = ()
    bars: Sequence[float] = ()  # above the boxes, from 0 to 1


class Pixels(NamedTuple):
    levels: np.ndarray  # (side, side)
    answer: str


Examples = Sequence[Boxes | Pixels]


class Panel(NamedTuple):
    name: str
    asks: str
    note: str
    examples: Callable[[], Examples]


def draw_panels(figure: Any, panels: Sequence[Panel]) -> None:
    sheet = Sheet(figure)
    for panel in panels:
        sheet.begin(panel)
        for example in panel.examples():
            sheet.add(example)


class Sheet:
    """A figure below its title, from its top left. Examples of a panel stand side by side."""

    def __init__(self, figure: Any) -> None:
        part = figure.get_layout_engine().get()["rect"]
        figure.set_layout_engine("none")
        self.axes = figure.add_axes(part)
        self.axes.axis("off")
        wide, high = 72 * figure.get_size_inches() * part[2:]
        self.axes.set(xlim=(0, wide), ylim=(-high, 0))
        self.left = self.top = self.bottom = 0.0

    def begin(self, panel: Panel) -> None:
        """Write the name of a task, what it asks, and a note."""
        top = self.bottom - GAP
        self.axes.plot([LEFT, LEFT + WIDE], [top + GAP / 2] * 2, color=OTHERS, lw=0.6)
        self._write(LEFT, top - LINE / 2, panel.name, fontweight="bold")
        self._write(COLUMN, top - LINE / 2, panel.asks)
        self._write(COLUMN, top - 1.5 * LINE, panel.note, color=NOTE)
        self.left, self.top = LEFT, top - 2 * LINE - 5
        self.bottom = self.top

    def add(self, example: Boxes | Pixels) -> None:
        """Draw an example, an arrow, and the answer."""
        if isinstance(example, Pixels):
            right, middle = self._pixels(example)
        else:
            right, middle = self._boxes(example)
        self._write(right + 6, middle, "→", color=NOTE)
        ground = {"boxstyle": "round,pad=0.2", "fc": INK, "ec": "none"}
        look = {"color": "white", "fontweight": "bold", "bbox": ground}
        answer = self._write(right + 26, middle, example.answer, **look)
        end, _ = self.axes.transData.inverted().transform(answer.get_window_extent().max)
        self.left = end + 14

    def _pixels(self, example: Pixels) -> tuple[float, float]:
        """A picture; where it ends, and its middle."""
        side = SIDES[len(example.levels)]
        left, right, bottom = self.left, self.left + side, self.top - side
        place = {"extent": (left, right, bottom, self.top), "aspect": "auto"}
        limits = self.axes.get_xlim(), self.axes.get_ylim()
        grey = np.repeat(example.levels[:, :, None], 3, 2)  # as colours, which no page changes
        self.axes.imshow(grey, **place, interpolation="nearest")
        self.axes.set(xlim=limits[0], ylim=limits[1])
        self.bottom = min(self.bottom, bottom)
        return right, (self.top + bottom) / 2

    def _boxes(self, example: Boxes) -> tuple[float, float]:
        """Rows of boxes; where the last one ends, and its middle."""
        x, y = self.left, self.top - (BARS + 4 if example.bars else 0)
        rest = CLOSE if max(map(len, example.rows)) > MANY else ALONE
        for i, row in enumerate(example.rows):
            x = self.left
            for j, word in enumerate(row):
                wide = LETTER * len(word) + rest
                self._box(
                    x, y, wide, asked=(i, j) == example.asked, shaded=(i, j) in example.shaded
                )
                self._write(x + wide / 2, y - BOX / 2, word, ha="center", family="monospace")
                if example.bars:
                    self._bar(x + wide / 2, y + 3, BARS * example.bars[j])
                x += wide
            y -= ROW if row else 6
        self.bottom = min(self.bottom, y + ROW - BOX)
        return x, y + ROW - BOX / 2

    def _box(self, x: float, y: float, wide: float, *, asked: bool, shaded: bool) -> None:
        from matplotlib.patches import Rectangle

        box = Rectangle((x, y - BOX), wide, BOX, fc=BAND if shaded else "white")
        box.set(ec=INK if asked else OTHERS, lw=1.8 if asked else 0.8)
        box.set_zorder(1.5 if asked else 1)  # its edge is over those of its neighbours
        self.axes.add_patch(box)

    def _bar(self, x: float, y: float, high: float) -> None:
        self.axes.plot([x, x], [y, y + high], color=NOTE, lw=5, solid_capstyle="butt")

    def _write(self, x: float, y: float, words: str, **look: Any) -> Any:
        look = {"va": "center", "color": INK, "parse_math": False} | look
        return self.axes.text(x, y, words, **look)
