"""The one style of all pictures: layout, heading, lines with their names, and saving; the same
numbers always give the same files. Points with names are in points.py; names, colours and markers
of methods are in lra/looks.py.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lra.base.errors import UserError
from lra.figures.png import write_png
from lra.figures.schemes import darkened
from lra.looks import BLACK, BLUE, INDIGO, LUNA, OLIVE, ORANGE, SKY, look_of

if TYPE_CHECKING:
    import pandas as pd

OTHERS, INK, NOTE = "#b4b4b4", "0.15", "0.4"
PALETTE = (BLUE, ORANGE, SKY, INDIGO, OLIVE)
CHANNELS = (LUNA, *PALETTE, BLACK)  # colours of learned channels
DASHES = (  # of the lines of one colour, in their order
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (9, 3)),
)
BOLD = ("luna", "softmax")  # methods drawn thick and named in bold letters
BOLD_NAMES = tuple(look_of(name).name for name in BOLD)
STYLE: dict[Any, Any] = {
    "pdf.fonttype": 42,  # TrueType: journals refuse matplotlib's default
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
BARS = 8  # points of a line that have error bars; of more, a band
NAMED = 12  # lines or points that all have names; of more, some


class Size(NamedTuple):
    """How wide a figure is, its smallest letters, and whether it has a dark file too."""

    inches: float
    points: float
    both: bool = False


HEADING, PITCH, EM = 7 / 6, 0.019, 0.0075  # of a title: letters, inches a line and a letter's width
PAGE = Size(7.4, 9)  # the column of a page
# Shown 343 pixels wide, as a page is on a phone of 375, a point is a pixel.
PHONE = Size(343 / 72, 12, both=True)
SCHEMES = ("-light", "-dark")  # ends of the names of files that are for one kind of page
LEADER = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.8}


def style_of(attention: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """How matplotlib draws a method, or one of its settings."""
    look, bold = look_of(attention, options), attention in BOLD
    return {
        "color": look.colour,
        "marker": look.marker,
        "linewidth": 2.2 if bold else 1.3,
        "zorder": 4 if bold else 3,
    }


def dashed(styles: Sequence[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """Give each line of a colour dashes of its own, as far as there are. After that dashes come
    again, with another marker; a line that would look like one before it gets None."""
    number, seen, lines = Counter[str](), list[tuple[Any, ...]](), list[dict[str, Any] | None]()
    for style in styles:
        dash = DASHES[number[style["color"]] % len(DASHES)]
        number[style["color"]] += 1
        drawn = style["color"], style["marker"], dash
        lines.append(None if drawn in seen else style | {"linestyle": dash})
        seen.append(drawn)
    return lines


# ---------------------------------------------------------------------- figures


def save(figure: Any, stem: Path, *, both: bool = False, dpi: int = 160) -> list[Path]:
    """Write PNG and PDF; for a page `both` schemes: NAME-light.png and NAME-dark.png."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    pdf = stem.with_name(f"{stem.name}.pdf")
    figure.savefig(pdf, metadata={"CreationDate": None})
    paths = []
    for scheme in SCHEMES if both else ("",):
        if scheme == "-dark":
            darkened(figure)
        paths.append(stem.with_name(f"{stem.name}{scheme}.png"))
        write_png(figure, paths[-1], dpi, letters(figure))
    return [*paths, pdf]


def letters(figure: Any) -> float:
    """Pixels of the smallest letters where a phone shows the figure."""
    from matplotlib.text import Text

    texts = figure.findobj(lambda part: isinstance(part, Text) and part.get_text().strip())
    points = min((text.get_fontsize() for text in texts if text.get_visible()), default=0)
    return float(points * PHONE.inches / figure.get_figwidth())


def save_figure(
    stem: Path,
    fill: Callable[[Any], None],
    title: str,
    height: float,
    size: Size = PAGE,
    dpi: int = 160,
) -> list[Path]:
    """Save what `fill(figure)` draws, `height` inches high with its title, whose further lines are
    grey."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("figures need matplotlib: pip install 'luna-lra[plots]'") from error
    width, points, both = size
    with mpl.rc_context(STYLE | {"font.size": points}):
        figure = Figure(figsize=(width, height), layout="constrained")
        lines = [
            (part, points * (1 if i else HEADING), NOTE if i else INK)
            for i, line in enumerate(title.splitlines())
            for part in textwrap.wrap(line, int(width / (EM * points * (1 if i else HEADING))))
        ]
        top = 0.06
        for text, letter, colour in lines:
            figure.text(
                0.06 / width,
                1 - top / height,
                text,
                va="top",
                fontsize=letter,
                color=colour,
                parse_math=False,
            )
            top += letter * PITCH
        figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - (top + 0.04) / height))
        fill(figure)
        return save(figure, stem, both=both, dpi=dpi)


def panels_for(figure: Any, n: int, columns: int, **shared: Any) -> Any:
    """At least n panels, (rows, columns); those beyond n are blank."""
    panels = figure.subplots(math.ceil(n / columns), columns, squeeze=False, **shared)
    for axes in panels.flat[n:]:
        axes.axis("off")
    return panels


def ticked(axis: Any, digits: Sequence[float] = ()) -> None:
    """Ticks with plain numbers on a logarithmic axis: at these digits of every power of ten, or at
    as many as fit."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    usual = (1,) if high > 500 * low else (1, 3) if high > 30 * low else (1, 2, 5)
    axis.set_major_locator(LogLocator(subs=digits or usual))
    axis.set_major_formatter("{x:,.7g}")
    axis.set_minor_formatter(NullFormatter())


def name_above(panels: Sequence[Any], names: Mapping[float, str]) -> None:
    """A name above each row of points, from the first panel on and over the next ones, so that all
    of a narrow figure's width is theirs."""
    for axes in panels:
        axes.set_yticks([*names], [])
        axes.tick_params(axis="y", length=0)
        axes.spines.left.set_visible(False)
        axes.grid(axis="x")
    for y, name in names.items():
        text = panels[-1].annotate(
            name,
            (0, y + 0.22),
            xycoords=panels[0].get_yaxis_transform(),
            va="bottom",
            color=INK,
            fontweight=weight(name),
            annotation_clip=False,
            parse_math=False,
            bbox={"fc": "white", "ec": "none", "pad": 0},
        )
        text.set_in_layout(False)


# ---------------------------------------------------------------------- lines and their names


def draw_lines(
    axes: Any, lines: Sequence[tuple[str, pd.DataFrame, dict[str, Any]]], gap: float = 0.06
) -> None:
    """Draw (name, data, style). Data with mean, min and max are a line with a band, or with bars of
    few points; each column of other data is a line of its own. Names stand at the ends; lines
    without a name are grey."""
    ends, grey = [], []
    for name, line, style in lines:
        several = "mean" not in line
        middle = line.median(axis=1) if several else line["mean"]
        if not name:
            axes.plot(line if several else middle, color=OTHERS, lw=0.8, zorder=1)
            grey.append((middle.iloc[-1], line.index[-1]))
        elif several:
            axes.plot(line, **style | {"marker": "", "linewidth": 1})
        elif len(line) > BARS:
            axes.plot(middle, **style, markersize=3)
            band = line["min"], line["max"]
            axes.fill_between(line.index, *band, color=style["color"], alpha=0.15, linewidth=0)
        else:
            reach = [middle - line["min"], line["max"] - middle]
            axes.errorbar(line.index, middle, reach, capsize=2, ms=4.5, elinewidth=0.8, **style)
        ends += [(name, line.index[-1], middle.iloc[-1], style["color"])] if name else []
    axes.grid()
    if grey:  # their name points at the lowest of them
        y, x = min(grey)
        ends.append((f"{len(grey)} others", x, y, OTHERS))
    at_ends(axes, ends, gap)


def at_ends(axes: Any, ends: Sequence[tuple[str, float, float, Any]], gap: float) -> None:
    """A name to the right of the axes for every `(name, x, y, colour)`, at least `gap` apart (as a
    share of the height)."""
    axes.get_ylim()  # fixes the limits
    to_axes = axes.transScale + axes.transLimits
    ends = sorted(ends, key=lambda end: end[2])
    lines = [1 + name.count("\n") for name, *_ in ends]
    places = spread([float(to_axes.transform(end[1:3])[1]) for end in ends], gap, lines)
    for (name, x, y, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            name,
            xy=(x, y),
            xytext=(1.05, place),
            textcoords="axes fraction",
            va="center",
            color=INK,
            annotation_clip=False,
            fontweight=weight(name),
            parse_math=False,
            zorder=1,
            arrowprops=LEADER
            | {"relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 4, "linestyle": ":", "color": colour},
        )


def spread(
    places: Sequence[float], gap: float, heights: Sequence[float] | None = None
) -> np.ndarray:
    """Rising shares of an axis, moved as little as possible until neighbours are `gap` apart, or
    more where they are higher than 1."""
    from scipy.optimize import isotonic_regression

    if not len(places):
        return np.zeros(0)
    height = np.ones(len(places)) if heights is None else np.asarray(heights, float)
    apart = gap * (height[1:] + height[:-1]) / 2
    steps = np.concatenate([[0.0], np.cumsum(apart)])
    moved = isotonic_regression(np.asarray(places) - steps).x
    return np.clip(moved, 0, max(0.0, 1 - steps[-1])) + steps


def weight(name: str) -> str:
    """Bold for a row of LUNA or softmax, whatever its options."""
    method = name.partition(",")[0].removesuffix(" as published")
    return "bold" if method in BOLD_NAMES else "normal"


def axis_of(cells: pd.DataFrame, split: str = "test") -> str:
    """`test accuracy (%)`"""
    first = cells.iloc[0]
    unit = f" ({first['unit']})" if first["unit"] else ""
    return f"{split} {first['title']}{unit}"
