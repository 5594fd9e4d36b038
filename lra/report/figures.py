"""Figures from records: accuracy against options (M, L), against compute, and while training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lra.config import UserError
from lra.report.leaderboard import Cell, Row, Table
from lra.report.looks import LUNA, looks

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "luna",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
AXES = {"M": "M, projections per head", "L": "L, channels per projection"}  # axis titles


def write(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Every figure these tables give, as PNG and SVG."""
    paths: list[Path] = []
    for table in tables:
        for task in table.tasks:
            rows = [row for row in table.rows if task in row.cells]
            for name, draw in _figures(rows):
                stem = folder / f"{table.spec.name}-{task}-{name}"
                paths += save(stem, draw, rows, task, table.conditions)
    return paths


def _figures(rows: Sequence[Row]) -> Iterator[tuple[str, Callable[..., None]]]:
    """What can be drawn of these rows: `(name, function)`."""
    yield "curves", curves
    options = swept(rows)
    if len(options) == 1:
        yield options[0], sweep
    if len(options) == 2:
        yield "-".join(options), grid
    if len(rows) > 1:
        yield "compute", compute


def swept(rows: Sequence[Row]) -> list[str]:
    """The options in which the rows of one attention differ, if all of them are numbers."""
    keys = sorted({key for row in rows for key in row.options})
    values = [row.options.get(key) for row in rows for key in keys]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in values)
    return keys if numeric and len({row.attention for row in rows}) == 1 else []


def sweep(axes: Any, rows: Sequence[Row], task: str) -> None:
    """Accuracy against one option, with the deviation over seeds; published values beside it."""
    (option,) = {key for row in rows for key in row.options}
    xs = [row.options[option] for row in rows]
    cells = [row.cells[task] for row in rows]
    spread = [c.deviation or 0 for c in cells]
    axes.errorbar(
        xs, [c.mean for c in cells], yerr=spread, marker="o", color=LUNA, capsize=3,
        label="measured",
    )  # fmt: skip
    known = [(x, c.published.value) for x, c in zip(xs, cells, strict=True) if c.published]
    if known:
        axes.plot(*zip(*known, strict=True), "s--", color="0.45", mfc="none",
                  label="published (another protocol)")  # fmt: skip
    axes.margins(y=0.2)
    axes.legend(frameon=False)
    axes.set_xscale("log", base=2)
    axes.set_xticks(xs, [str(x) for x in xs], minor=False)
    axes.set(xlabel=AXES.get(option, option), ylabel="test accuracy (%)")


def grid(axes: Any, rows: Sequence[Row], task: str) -> None:
    """Accuracy over two options, as a map with the numbers in it."""
    down, across = swept(rows)
    ys, xs = (sorted({row.options[key] for row in rows}) for key in (down, across))
    means = [[float("nan")] * len(xs) for _ in ys]
    for row in rows:
        means[ys.index(row.options[down])][xs.index(row.options[across])] = row.cells[task].mean
    image = axes.imshow(means, cmap="viridis", aspect="auto", origin="lower")
    for y, line in enumerate(means):
        for x, value in enumerate(line):
            if value == value:  # a number
                dark = image.norm(value) < 0.6
                axes.text(
                    x, y, f"{value:.1f}", ha="center", va="center", color="w" if dark else "k"
                )
    axes.set_xticks(range(len(xs)), xs)
    axes.set_yticks(range(len(ys)), ys)
    axes.set(xlabel=AXES.get(across, across), ylabel=AXES.get(down, down))
    axes.figure.colorbar(image, ax=axes, label="test accuracy (%)")


def compute(axes: Any, rows: Sequence[Row], task: str) -> None:
    """Accuracy against forward FLOPs per example."""
    points = []
    for row, look in zip(rows, looks(rows), strict=True):
        cell = row.cells[task]
        x = cell.cost("compute.flops") / 1e9
        axes.errorbar(
            x, cell.mean, yerr=cell.deviation or 0, fmt=look["marker"], capsize=2, ms=5,
            color=look["color"], elinewidth=1,
        )  # fmt: skip
        points.append((row.label, x, cell, look["color"]))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(_ticker().LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(_ticker().NullFormatter())
    axes.margins(x=0.14, y=0.1)
    axes.set(xlabel="GFLOPs per example, forward", ylabel="test accuracy (%)")
    _names(axes, points)


def _ticker() -> Any:
    from matplotlib import ticker

    return ticker


# Where a name may stand around its point: offset in points, and the side that touches it.
AROUND = ((6, 0, "left"), (-6, 0, "right"), (5, 8, "left"), (5, -8, "left"), (-5, 8, "right"),
          (-5, -8, "right"), (0, 14, "center"), (0, -14, "center"))  # fmt: skip


def _names(axes: Any, points: Sequence[tuple[str, float, Cell, Any]]) -> None:
    """A name beside every point, where it covers the fewest points and names."""
    to_pixels = axes.transData.transform
    scale = axes.figure.dpi / 72
    centres = [to_pixels((x, cell.mean)) for _, x, cell, _ in points]
    taken = [(cx - 4, cy - 4, cx + 4, cy + 4) for cx, cy in centres]
    edge = axes.transAxes.transform((0, 0))[0]
    taken.append((0, 0, edge, 1e4))  # what is left of the axes
    for _, x, cell, _ in points:  # error bars
        spread = cell.deviation or 0
        (left, low), (_, high) = (to_pixels((x, cell.mean + s * spread)) for s in (-1, 1))
        taken.append((left - 2, low, left + 2, high))
    for (label, x, cell, colour), (cx, cy) in zip(points, centres, strict=True):
        width, height = 5 * len(label) * scale, 8 * scale

        def box(
            place: tuple[int, int, str], cx: float = cx, cy: float = cy, width: float = width,
            height: float = height,
        ) -> tuple[float, float, float, float]:  # fmt: skip
            dx, dy, side = place
            left = cx + dx * scale - {"left": 0, "center": width / 2, "right": width}[side]
            bottom = cy + dy * scale - height / 2
            return left, bottom, left + width, bottom + height

        best = min(AROUND, key=lambda place: sum(_overlap(box(place), other) for other in taken))
        taken.append(box(best))
        axes.annotate(
            label, (x, cell.mean), best[:2], textcoords="offset points", ha=best[2], va="center",
            fontsize=8, color=colour, fontweight="bold" if label == "luna" else "normal",
        )  # fmt: skip


def _overlap(a: Sequence[float], b: Sequence[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0


def curves(axes: Any, rows: Sequence[Row], task: str) -> None:
    """Dev accuracy while training: mean over seeds, and the range of the seeds."""
    for row, look in zip(rows, looks(rows), strict=True):
        seeds: dict[float, list[float]] = defaultdict(list)
        for record in row.cells[task].records:
            for step, accuracy in record["curve"]:
                seeds[step].append(100 * accuracy)
        steps = sorted(seeds)
        means = [sum(seeds[s]) / len(seeds[s]) for s in steps]
        front = row.label in ("luna", "softmax")
        style = look | {"marker": "" if len(steps) > 1 else look["marker"]}
        width, z = (2.4, 4) if front else (1.2, 2)
        axes.plot(steps, means, label=row.label, lw=width, zorder=z, **style)
        low, high = ([f(seeds[s]) for s in steps] for f in (min, max))
        axes.fill_between(steps, low, high, color=look["color"], alpha=0.12, linewidth=0)
    axes.set(xlabel="training step", ylabel="dev accuracy (%)")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def save(
    stem: Path, draw: Callable[..., None], rows: Sequence[Row], task: str, conditions: str
) -> list[Path]:
    def panel(figure: Any) -> None:
        axes = figure.subplots()
        draw(axes, rows, task)
        if draw is not grid:
            axes.grid(alpha=0.3, linewidth=0.5)
        axes.set_title(f"{task}: {conditions}", fontsize=8, loc="left", color="0.3")

    return save_figure(stem, panel, size=(7.6, 4.4))


def save_figure(
    stem: Path, fill: Callable[[Any], None], *, size: tuple[float, float]
) -> list[Path]:
    """`fill(figure)`, written as PNG and SVG; the same figure gives the same files."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("figures need matplotlib: pip install 'luna-lra[plots]'") from error
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "svg")]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        fill(figure)
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=140, metadata=metadata)
    return paths
