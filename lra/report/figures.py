"""Figures from records: accuracy against options (M, L), against compute, and while training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lra.config import UserError
from lra.report.leaderboard import Row, Table

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "luna",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.axisbelow": True,
}
LINES = ("-", "--", ":")


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
    axes.errorbar(xs, [c.mean for c in cells], yerr=spread, marker="o", capsize=3, label="measured")
    known = [(x, c.published.value) for x, c in zip(xs, cells, strict=True) if c.published]
    if known:
        axes.plot(*zip(*known, strict=True), "s--", color="0.55", mfc="none",
                  label="published (another protocol)")  # fmt: skip
        axes.legend()
    axes.set_xscale("log", base=2)
    axes.set_xticks(xs, [str(x) for x in xs], minor=False)
    axes.set(xlabel=option, ylabel="test accuracy (%)")


def grid(axes: Any, rows: Sequence[Row], task: str) -> None:
    """Accuracy over two options, as a map with the numbers in it."""
    down, across = swept(rows)
    ys, xs = (sorted({row.options[key] for row in rows}) for key in (down, across))
    means = [[float("nan")] * len(xs) for _ in ys]
    for row in rows:
        y, x = ys.index(row.options[down]), xs.index(row.options[across])
        means[y][x] = row.cells[task].mean
        axes.text(x, y, f"{means[y][x]:.1f}", ha="center", va="center", color="w")
    axes.imshow(means, cmap="viridis", aspect="auto", origin="lower")
    axes.set_xticks(range(len(xs)), xs)
    axes.set_yticks(range(len(ys)), ys)
    axes.set(xlabel=across, ylabel=down)


def compute(axes: Any, rows: Sequence[Row], task: str) -> None:
    """Accuracy against forward FLOPs per example."""
    for i, row in enumerate(rows):
        cell = row.cells[task]
        x = cell.cost("compute.flops") / 1e9
        axes.errorbar(
            x, cell.mean, yerr=cell.deviation or 0, fmt="o", capsize=2, color=f"C{i % 10}"
        )
        axes.annotate(row.label, (x, cell.mean), (5, 3), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.set(xlabel="GFLOPs per example, forward", ylabel="test accuracy (%)")


def curves(axes: Any, rows: Sequence[Row], task: str) -> None:
    """Dev accuracy while training: mean over seeds, and the range of the seeds."""
    for i, row in enumerate(rows):
        seeds: dict[float, list[float]] = defaultdict(list)
        for record in row.cells[task].records:
            for step, accuracy in record["curve"]:
                seeds[step].append(100 * accuracy)
        steps = sorted(seeds)
        style = {"color": f"C{i % 10}", "linestyle": LINES[i // 10 % len(LINES)]}
        means = [sum(seeds[s]) / len(seeds[s]) for s in steps]
        axes.plot(steps, means, label=row.label, marker="" if len(steps) > 1 else "o", **style)
        low, high = ([f(seeds[s]) for s in steps] for f in (min, max))
        axes.fill_between(steps, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.set(xlabel="training step", ylabel="dev accuracy (%)")
    axes.legend(fontsize=7, ncols=1 + len(rows) // 10, loc="best")


def save(
    stem: Path, draw: Callable[..., None], rows: Sequence[Row], task: str, conditions: str
) -> list[Path]:
    def panel(figure: Any) -> None:
        axes = figure.subplots()
        draw(axes, rows, task)
        if draw is not grid:
            axes.grid(alpha=0.3)
        axes.set_title(f"{task}; {conditions}", fontsize=8)

    return save_figure(stem, panel, size=(6.4, 4.2))


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
