"""Layout, heading and saving of every picture; the same numbers always give the same files."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lra.base.config import UserError
from lra.figures.style import INK, NOTE

STYLE: dict[Any, Any] = {
    "pdf.fonttype": 42,  # TrueType: journals refuse matplotlib's default
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
COLOURS = 96  # of a PNG
WIDTH = 7.4  # inches: the column of a page, so that letters keep their size


def save(figure: Any, stem: Path) -> list[Path]:
    """Write PNG, in few colours because pictures are committed, and PDF."""
    from PIL import Image

    stem.parent.mkdir(parents=True, exist_ok=True)
    png, pdf = (stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "pdf"))
    figure.savefig(pdf, metadata={"CreationDate": None})
    pixels = io.BytesIO()
    figure.savefig(pixels, format="png", dpi=160)
    with Image.open(pixels) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(png, optimize=True)
    return [png, pdf]


def save_figure(
    stem: Path, fill: Callable[[Any], None], *, size: tuple[float, float], title: str
) -> list[Path]:
    """Save what `fill(figure)` draws under a title, whose further lines are smaller."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("figures need matplotlib: pip install 'luna-lra[plots]'") from error
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        lines = [(part, 10.5 if i == 0 else 9, NOTE if i else INK)
                 for i, line in enumerate(title.splitlines())
                 for part in textwrap.wrap(line, int((14 if i else 12) * size[0]))]  # fmt: skip
        for i, (text, points, colour) in enumerate(lines):
            place: dict[str, Any] = {
                "x": 0.06 / size[0],
                "y": 1 - (0.06 + 0.17 * i) / size[1],
                "va": "top",
            }
            figure.text(s=text, **place, fontsize=points, color=colour, parse_math=False)
        below = 1 - (0.1 + 0.17 * len(lines)) / size[1]
        figure.set_layout_engine("constrained", rect=(0, 0, 1, below))
        fill(figure)
        return save(figure, stem)


def slug(text: str) -> str:
    """Turn the first words of a text into the name of a file."""
    return "-".join(re.findall(r"\w+", text.lower())[:5])[:60] or "text"


def rows_for(n: int, columns: int) -> int:
    return -(-n // columns)


def panels_for(figure: Any, n: int, columns: int, **shared: Any) -> Any:
    """At least n panels, (rows, columns); those beyond n are blank."""
    panels = figure.subplots(rows_for(n, columns), columns, squeeze=False, **shared)
    for axes in panels.flat[n:]:
        axes.axis("off")
    return panels


def mean_and_range(axes: Any, values: Mapping[float, Sequence[float]], **style: Any) -> None:
    """A line through the means of the values at every x, and a band between the extremes."""
    xs = sorted(values)
    axes.plot(xs, [sum(values[x]) / len(values[x]) for x in xs], **style)
    low, high = ([f(values[x]) for x in xs] for f in (min, max))
    axes.fill_between(xs, low, high, color=style["color"], alpha=0.15, linewidth=0)


def finely_ticked(axis: Any, digits: Sequence[float] = ()) -> None:
    """Ticks with plain numbers on a logarithmic axis: at these digits of every power of ten, or at
    as many as fit."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    usual = (1,) if high > 500 * low else (1, 3) if high > 30 * low else (1, 2, 5)
    axis.set_major_locator(LogLocator(subs=digits or usual))
    axis.set_major_formatter("{x:,.7g}")
    axis.set_minor_formatter(NullFormatter())
