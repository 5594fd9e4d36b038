"""How a row is drawn: one colour, line and marker per method, the same in every figure and on the
page. Colours are told apart with the common colour deficiencies (Okabe and Ito, and darker)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Protocol

LUNA, SOFTMAX = "#c2185b", "#1d2126"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#8a6d00", "#56b4e9", "#9467bd", "#7f7f7f")
LINES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "v")
FIRST = ("luna", "softmax")  # the two methods with a colour of their own
# The others take palette and lines in turn. The list is fixed: a name added at its end moves no
# other method's look, and a method that is not in it needs no entry, see `_place`.
KNOWN = (
    *FIRST, "bigbird", "cosformer", "hedgehog", "informer", "kernelized", "linear", "linformer",
    "local", "longformer", "lotformer", "nystrom", "performer", "performer_relu", "polaformer",
    "reformer", "rff", "skyformer", "synthesizer", "t2r", "uniform",
)  # fmt: skip


class Drawn(Protocol):
    @property
    def attention(self) -> str: ...


def places(rows: Sequence[Drawn]) -> list[int]:
    """A number for the look of each row: its method's, or its own where a method has several."""
    names = [row.attention for row in rows]
    if len(set(names)) < len(names):
        return [len(FIRST) + i for i in range(len(rows))]
    return [_place(name) for name in names]


def _place(name: str) -> int:
    """The place of a method: its place in KNOWN, else one that its name alone decides, among looks
    that no method of KNOWN has. So a new method never changes how another one is drawn."""
    if name in KNOWN:
        return KNOWN.index(name)
    own = len(FIRST) + (len(LINES) - 1) * len(PALETTE)
    return own + zlib.crc32(name.encode()) % len(PALETTE)


def looks(rows: Sequence[Drawn], *, ordered: bool = True) -> list[dict[str, Any]]:
    """Colour, line style and marker of each row, as matplotlib has them. Rows of one method go from
    dark to light if they are `ordered`, as by a number."""
    if ordered and len(rows) > 1 and len({row.attention for row in rows}) == 1:
        from matplotlib import colormaps

        shades = colormaps["viridis"]
        return [
            {"color": shades(0.8 * i / (len(rows) - 1)), "linestyle": "-", "marker": "o"}
            for i in range(len(rows))
        ]
    return [_look(place) for place in places(rows)]


def _look(place: int) -> dict[str, Any]:
    if place < len(FIRST):
        colour = (LUNA, SOFTMAX)[place]
        return {"color": colour, "linestyle": "-", "marker": "D" if place == 0 else "o"}
    turn, colour_at = divmod(place - len(FIRST), len(PALETTE))
    return {
        "color": PALETTE[colour_at],
        "linestyle": LINES[turn % len(LINES)],
        "marker": MARKERS[turn % len(MARKERS)],
    }
