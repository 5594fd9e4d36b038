"""Style and saving of every picture; the same numbers always give the same files."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lra.base.config import UserError

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "luna",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType: journals refuse matplotlib's default
    "font.size": 9,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
NO_MATPLOTLIB = "figures need matplotlib: pip install 'luna-lra[plots]'"
DATES = {"svg": "Date", "pdf": "CreationDate"}  # metadata that is left out
_formats = ["png", "svg"]


@contextlib.contextmanager
def also_pdf() -> Iterator[None]:
    """Figures saved inside are written as PDF too."""
    _formats.append("pdf")
    try:
        yield
    finally:
        _formats.remove("pdf")


def save_figure(
    stem: Path, fill: Callable[[Any], None], *, size: tuple[float, float], title: str = ""
) -> list[Path]:
    """Write what `fill(figure)` draws, under a title, in every format."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(NO_MATPLOTLIB) from error
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in _formats]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        if title:
            heading(figure, title)
        fill(figure)
        for path, ending in zip(paths, _formats, strict=True):
            metadata = {DATES[ending]: None} if ending in DATES else None
            figure.savefig(path, dpi=140, metadata=metadata)
    return paths


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
    axes.fill_between(xs, low, high, color=style["color"], alpha=0.12, linewidth=0)


def finely_ticked(axis: Any, digits: Sequence[float]) -> None:
    """Ticks with plain numbers at these digits of every power of ten, on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def heading(figure: Any, text: str) -> None:
    """A title in small letters, in lines that fit the figure's width, and without formulas."""
    size = 8
    letters = int(figure.get_figwidth() * 72 / (0.56 * size))
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, letters)]
    figure.suptitle(
        "\n".join(lines), x=0.01, ha="left", fontsize=size, color="0.3", parse_math=False
    )
