"""How a row is drawn: one colour, line and marker per method, the same in every figure and on the
page. The colours (Okabe and Ito's, some darker) differ for colour-blind readers too."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

LUNA, SOFTMAX = "#c2185b", "#1d2126"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#8a6d00", "#56b4e9", "#9467bd", "#7f7f7f")
LINES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "v", "P")
FIRST = ("luna", "softmax")  # the two methods with a colour of their own
# The others take palette and lines in turn, in this order. A name added at its end changes no other
# method's style; a method that is not in it gets a look from its name, see `_place`.
METHODS = (
    *FIRST, "bigbird", "cosformer", "hedgehog", "informer", "kernelized", "linear", "linformer",
    "local", "longformer", "lotformer", "nystrom", "performer", "performer_relu", "polaformer",
    "reformer", "rff", "skyformer", "synthesizer", "t2r", "uniform", "agent", "based", "conv",
    "flowformer", "luna2021", "mala", "rebased",
)  # fmt: skip


class Drawn(Protocol):
    @property
    def attention(self) -> str: ...

    @property
    def options(self) -> Mapping[str, Any]: ...


def places(rows: Sequence[Drawn]) -> list[int]:
    """The number of each row's colour: that of its method or, where all are of one method, of the
    first option in which they differ."""
    if len({row.attention for row in rows}) > 1 or not _factors(rows):
        return [_place(row.attention) for row in rows]
    (_, values), *_ = _factors(rows)
    order = list(dict.fromkeys(values))
    return [len(FIRST) + order.index(value) for value in values]


def _place(name: str) -> int:
    """Its place in METHODS; for other methods one that the name alone decides, among looks that no
    method of METHODS has. So a new method never changes how another one is drawn."""
    if name in METHODS:
        return METHODS.index(name)
    unlisted = len(FIRST) + (len(LINES) - 1) * len(PALETTE)
    return unlisted + zlib.crc32(name.encode()) % len(PALETTE)


def _factors(rows: Sequence[Drawn]) -> list[tuple[str, list[str]]]:
    """The attention and the options in which rows differ, each with its value in every row."""
    columns = {"attention": [row.attention for row in rows]}
    for key in dict.fromkeys(key for row in rows for key in row.options):
        columns[key] = [str(row.options.get(key, "none")) for row in rows]
    return [(name, values) for name, values in columns.items() if len(set(values)) > 1]


def styles_of(rows: Sequence[Drawn], *, ordered: bool = True) -> list[dict[str, Any]]:
    """Colour, line style, marker and filling of each row, in matplotlib's words. Colour shows the
    method or the first option that differs, line and marker the next, filling the one after.
    Rows of one method that are `ordered`, by a number say, go from dark to light."""
    if ordered and len(rows) > 1 and len({row.attention for row in rows}) == 1:
        from matplotlib import colormaps

        shades = colormaps["viridis"]
        plain = {"linestyle": "-", "marker": "o", "fillstyle": "full"}
        return [plain | {"color": shades(0.8 * i / (len(rows) - 1))} for i in range(len(rows))]
    styles = [_style(place) for place in places(rows)]
    if len({row.attention for row in rows}) == len(rows):
        return styles
    for style in styles:
        style |= {"linestyle": "-", "marker": "o"}
    for (_, values), values_of in zip(_factors(rows)[1:3], (_shape, _filling), strict=False):
        order = list(dict.fromkeys(values))
        for style, value in zip(styles, values, strict=True):
            style |= values_of(order.index(value))
    return styles


def of_method(attention: str) -> dict[str, Any]:
    return _style(_place(attention))


def keys(rows: Sequence[Drawn], channels: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The meaning of colours, shapes and fillings: `(dwc=conv2d, its style)`. Empty where every row
    is of a method of its own, because names are written beside the points."""
    if len({row.attention for row in rows}) == len(rows):
        return []
    entries = []
    functions = (_tint, _shape, _filling)
    for (name, values), style_of in zip(_factors(rows), functions, strict=False):
        for i, value in enumerate(dict.fromkeys(values)) if name != "attention" else ():
            style = {k: v for k, v in style_of(i).items() if k in ("color", *channels)}
            entries.append((f"{name}={value}", style))
    return entries


def _tint(turn: int) -> dict[str, Any]:
    return {"color": PALETTE[turn % len(PALETTE)]}


def _shape(turn: int) -> dict[str, Any]:
    return {"linestyle": LINES[turn % len(LINES)], "marker": MARKERS[turn % len(MARKERS)]}


def _filling(turn: int) -> dict[str, Any]:
    return {"fillstyle": ("full", "none", "left", "top")[turn % 4]}


def _style(place: int) -> dict[str, Any]:
    if place < len(FIRST):
        colour = (LUNA, SOFTMAX)[place]
        shape = {"linestyle": "-", "marker": "D" if place == 0 else "o"}
        return {"color": colour, "fillstyle": "full"} | shape
    turn, colour_at = divmod(place - len(FIRST), len(PALETTE))
    return {"color": PALETTE[colour_at], "fillstyle": "full"} | _shape(turn)
